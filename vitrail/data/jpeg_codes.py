"""The Huffman codes of a JPEG of one scan, looked at where libjpeg's word does not decide.

libjpeg decodes whatever bits there are. Bytes that are left over before the end marker are padding, or show that
codes were lost above them: `complete_codes` tells which, by reading all codes as T.81, F.2.2 has them. One byte over
and over in a part of the file is valid codes, mostly, and by chance for as many blocks as it replaced:
`overwritten_codes` finds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import cycle, islice

import numpy as np

from vitrail.data.jpeg_header import TABLES, JpegHeader, segments

MAX_CODES, MAX_BLOCKS = 4 << 20, 1_500_000  # that are read in Python, in about 3 s
END_OF_CODES = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
END_OF_BLOCK, FILL = 0x00, 0xFF
MAX_BLOCK = 64 * 31 // 8 + 4  # bytes of its codes

# By the next 16 bits: how many the code and the value behind it take, and the symbol. (0, 0): no code.
Lookup = list[tuple[int, int]]
Unit = list[tuple[Lookup, Lookup]]  # of DC and of AC, for each block of a unit of the scan


def run_of_one_byte(data: bytes, begin: int, end: int) -> int | None:
    """Return a byte that stands a hundred times in a row; fill bytes do not count.

    Looked at are the same eight bytes of every 32.
    """
    begin = (begin + 7) // 8 * 8  # for aligned words are faster
    words = np.frombuffer(data, np.uint64, max(0, end - begin) // 8, begin)[::4]
    repeated = words[1:] == words[:-1]
    if not repeated.any():
        return None
    twice = words[:-2][repeated[1:] & repeated[:-1]]
    values = set(twice[twice == (twice & 0xFF) * 0x0101010101010101] & 0xFF) - {FILL}
    return int(min(values)) if values else None


def overwritten_codes(data: bytes, header: JpegHeader, end: int | None = None) -> bool:
    """Tell whether one byte stands over and over, up to `end`, where no picture has it.

    A flat area has it, if the codes can be read as blocks that end at once.
    """
    begin = _codes_at(data, header)
    if end is None:
        found = END_OF_CODES.search(data, begin)
        end = found.start() if found else len(data)
    value = run_of_one_byte(data, begin, end)
    if value is None:
        return False
    unit, words = _unit(data, header), _words(bytes([value]) * 64)
    starts = [(unit[first:] + unit[:first], at) for first in range(len(unit)) for at in range(8)]
    return bool(starts) and not any(_is_flat(words, *start) for start in starts)


def complete_codes(data: bytes, header: JpegHeader) -> bool:
    """Tell whether there are valid codes for all blocks, and what is left over is not more of them."""
    begin = _codes_at(data, header)
    found = END_OF_CODES.search(data, begin)
    unit, end = _unit(data, header), 0
    blocks = header.units * len(unit)
    if found is None or found.start() - begin > MAX_CODES or blocks > MAX_BLOCKS or not header.row_by_row:
        return False
    codes = data[begin : found.start()].replace(b"\xff\0", b"\xff")
    for block, at in enumerate(islice(_ends_of_blocks(codes, unit), 2 * blocks), 1):
        ones = (1 << -at % 8) - 1  # that fill the last byte of a scan
        if block == blocks:
            end = (at + 7) // 8 if not ones or codes[at >> 3] & ones == ones else 0
        elif block > blocks and (at + 7) // 8 == len(codes) and (not ones or codes[-1] & ones == ones):
            return False
    return end > 0 and not overwritten_codes(data, header, begin + end)


def _ends_of_blocks(codes: bytes, unit: Unit) -> Iterator[int]:
    """Yield the bit after each block, as long as there are valid codes."""
    words, at = _words(codes), 0
    for dc, ac in cycle(unit):
        taken, _ = dc[words[at >> 3] >> (8 - (at & 7)) & 0xFFFF]
        at, coefficients = at + taken, 1
        while taken and coefficients < 64:
            taken, symbol = ac[words[at >> 3] >> (8 - (at & 7)) & 0xFFFF]
            at += taken
            if symbol == END_OF_BLOCK:
                break
            coefficients += 1 + (symbol >> 4)
        if not taken or coefficients > 64 or at > 8 * len(codes):
            return
        yield at


def _is_flat(words: list[int], unit: Unit, at: int) -> bool:
    """Tell whether all blocks from a bit on have one colour each."""
    for dc, ac in cycle(unit):
        taken, _ = dc[words[at >> 3] >> (8 - (at & 7)) & 0xFFFF]
        at += taken
        if at >> 3 >= len(words) - MAX_BLOCK:
            return True
        taken_at_end, symbol = ac[words[at >> 3] >> (8 - (at & 7)) & 0xFFFF]
        if not taken or not taken_at_end or symbol != END_OF_BLOCK:
            return False
        at += taken_at_end
    return False


def _words(codes: bytes) -> list[int]:
    """The 24 bits from each byte on, and as many zeros behind the last as a block may ask for."""
    padded = np.frombuffer(codes + bytes(MAX_BLOCK), np.uint8).astype(np.int64)
    return (padded[:-2] << 16 | padded[1:-1] << 8 | padded[2:]).tolist()


def _unit(data: bytes, header: JpegHeader) -> Unit:
    """The tables for each block of a unit; none where some are missing."""
    lookups = {key: _lookup(*table) for key, table in _tables(data).items()}
    unit: Unit = []
    for i, channel in enumerate(header.channels):
        both = data[header.scan_at + 6 + 2 * i]
        dc, ac = lookups.get((0, both >> 4)), lookups.get((1, both & 15))
        if dc is None or ac is None:
            return []
        unit += [(dc, ac)] * (channel.across * channel.down)
    return unit


def _codes_at(data: bytes, header: JpegHeader) -> int:
    at = header.scan_at + 2
    return at + int.from_bytes(data[at : at + 2], "big")


def _tables(data: bytes) -> dict[tuple[int, int], tuple[bytes, bytes]]:
    """Read the tables before the scan: (0 for DC or 1 for AC, number) -> codes of each length, symbols in order."""
    tables = {}
    for marker, begin, end in segments(data):
        at = begin + 4
        while marker == TABLES and at + 17 <= end:
            counts = data[at + 1 : at + 17]
            symbols = data[at + 17 : at + 17 + sum(counts)]
            tables[data[at] >> 4, data[at] & 15] = counts, symbols
            at += 17 + sum(counts)
    return tables


def _lookup(counts: bytes, symbols: bytes) -> Lookup:
    entries: Lookup = []
    lengths = [length for length, count in enumerate(counts, 1) for _ in range(count)]
    for length, symbol in zip(lengths, symbols, strict=False):
        entries += [(length + (symbol & 15), symbol)] * (1 << (16 - length))
    return (entries + [(0, 0)] * (0x10000 - len(entries)))[:0x10000]
