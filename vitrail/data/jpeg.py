"""The usual JPEG decoded by simplejpeg, if it is installed: the whole picture, or only its first rows.

decode.py calls this first, and leaves to Pillow what simplejpeg cannot decode. The bits are Pillow's, since both are
libjpeg-turbo with the same settings. This path has two advantages: rows below a random crop are not decoded
(docs/results/loader.md has the speeds), and damage in the codes is found, which Pillow hides.

If data is damaged or missing, libjpeg fills in grey and warns. Pillow discards the warnings; simplejpeg raises the
first. Some do not affect the pixels, and may hide one that does, so the file is then decoded without
their causes (`without_metadata`):
  harmless  unknown JFIF revision; unknown Adobe color transform code; bad ICC marker; invalid SOS parameters for
            sequential JPEG; extraneous bytes between two segments of the header; no end marker
  damage    premature end of data segment; bad Huffman or arithmetic code; a restart marker other than the next; an
            inconsistent progression sequence; extraneous bytes before any later marker, unless the codes before the
            end marker are complete

A random crop needs no row below its own, and most files store rows from top to bottom. So the decoder is given the
file with another height in its header: it stops below the rows that are wanted, and reports the bytes that it did
not use. For a file that ends too early, or damaged rows, it reports something else, and the whole file is decoded.

libjpeg decodes whatever bits there are. Bytes that are left over before the end marker are padding, or show that
codes were lost above them: `complete_codes` tells which, by reading all Huffman codes as in T.81, F.2.2. A part that
is overwritten with one byte is mostly valid codes, and by chance for as many blocks as it replaced:
`overwritten_codes` finds it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import cycle, islice

import numpy as np
from numpy.typing import NDArray

from vitrail.data.jpeg_header import (
    AFTER_CODES,
    APP0,
    APP14,
    COMMENT,
    JPG0,
    SCAN,
    SEQUENTIAL,
    TABLES,
    JpegHeader,
    segments,
)
from vitrail.errors import ImageError

# Imported here, so that an installation that does not work fails at once, and not as broken images.
_simplejpeg = importlib.import_module("simplejpeg") if find_spec("simplejpeg") else None
JPEG_DECODER = "pillow" if _simplejpeg is None else "simplejpeg"

# Warnings of libjpeg on damaged or missing data (its jerror.h), and on bytes before the end of the file.
DAMAGE = ("Corrupt JPEG data", "Premature end of JPEG file", "Inconsistent progression sequence")
EXTRANEOUS = "extraneous bytes before marker 0xd9"
EIGHTH = {"min_height": 1, "min_width": 1, "min_factor": 8}  # the smallest that is decoded
BELOW = 4  # rows under the last one wanted, from which it may take a part of its colour
MAX_CODES, MAX_BLOCKS = 4 << 20, 1_500_000  # that are read in Python, in about 3 s
END_OF_BLOCK, FILL = 0x00, 0xFF
MAX_BLOCK = 64 * 31 // 8 + 4  # bytes of its codes

# By the next 16 bits: how many the code and the value behind it take, and the symbol. (0, 0): no code.
Lookup = list[tuple[int, int]]
Unit = list[tuple[Lookup, Lookup]]  # of DC and of AC, for each block of a unit of the scan


def decode_jpeg(data: bytes, header: JpegHeader, rows: int | None = None) -> NDArray[np.uint8] | None:
    """Return the pixels as they are stored, uint8 (H, W, 3); with `rows`, at least that many from the top.

    None: of a kind that simplejpeg does not decode to RGB. ImageError: damaged.
    """
    assert _simplejpeg is not None
    suspect = header.one_scan and run_of_one_byte(data, header.scan_at, len(data)) is not None
    height, at = BELOW + (rows or header.height), header.height_at
    if header.row_by_row and height < header.height and not suspect:
        pixels: NDArray[np.uint8] = np.empty((height, header.width, 3), np.uint8)
        lower = data[:at] + height.to_bytes(2, "big") + data[at + 2 :]
        try:
            _simplejpeg.decode_jpeg(lower, "RGB", buffer=pixels)
            return pixels
        except ValueError as error:
            # It raises the first warning, and this one comes after all rows. Otherwise something is wrong above, or
            # the file ends too early.
            if EXTRANEOUS in str(error):
                return pixels
    # CMYK is only searched for damage, at an eighth of the size.
    in_rgb = len(header.channels) in (1, 3)
    how = {"colorspace": "RGB"} if in_rgb else {"colorspace": "CMYK", **EIGHTH}
    try:
        pixels = _simplejpeg.decode_jpeg(data, **how)
    except ValueError:
        plain = without_metadata(data, header, end=b"\xff\xd9")
        try:
            pixels = _simplejpeg.decode_jpeg(plain, **how)
        except ValueError as error:
            if not any(words in str(error) for words in DAMAGE):
                return None
            if EXTRANEOUS not in str(error) or not complete_codes(data, header):
                raise ImageError(f"damaged: {error}") from None
            suspect, pixels = False, _simplejpeg.decode_jpeg(plain, **how, strict=False)
    if suspect and overwritten_codes(data, header):
        raise ImageError("damaged: a part of it is overwritten with one byte")
    return pixels if in_rgb else None


def without_metadata(data: bytes, header: JpegHeader, end: bytes = b"") -> bytes:
    """Return the same picture without what libjpeg may warn of in its header, and with an `end`."""
    pieces, after = [data[:2]], 2
    for marker, begin, after in segments(data):
        segment = data[begin:after]
        if marker == APP0 and segment.startswith(b"JFIF\0", 4):
            segment = segment[:9] + b"\x01" + segment[10:]  # revision 1
        elif marker == APP14 and segment.startswith(b"Adobe", 4):
            # An unknown colour transform is taken for the usual one, as libjpeg does.
            usual = b"\x01" if len(header.channels) == 3 else b"\x02"
            segment = segment if segment[15:16] == b"\0" else segment[:15] + usual + segment[16:]
        elif APP0 <= marker < JPG0 or marker == COMMENT:
            continue
        elif marker == SCAN and header.frame in SEQUENTIAL:
            segment = segment[:-3] + b"\x00\x3f\x00"  # all coefficients in all bits
        pieces.append(segment)
        if marker == SCAN:
            break
    return b"".join([*pieces, memoryview(data)[after:], end])


def run_of_one_byte(data: bytes, begin: int, end: int) -> int | None:
    """Return a byte that occurs a hundred times in a row; fill bytes do not count.

    Only the same eight bytes of every 32 are compared.
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
    """Tell whether one byte is repeated up to `end` where no picture would have it.

    A flat area has such a repetition, if the codes can be read as blocks that end at once.
    """
    if end is None:
        marker = AFTER_CODES.search(data, header.codes_at)
        end = marker.start() if marker else len(data)
    value = run_of_one_byte(data, header.codes_at, end)
    if value is None:
        return False
    unit, codes = _unit(data, header), bytes([value]) * 72

    def is_flat(first: int, at: int) -> bool:
        for end, coefficients in _blocks(codes, unit[first:] + unit[:first], at):
            if coefficients > 1:
                return False
            at = end
        return at >= 62 * 8  # where codes are valid, the last block begins below

    return bool(unit) and not any(is_flat(first, at) for first in range(len(unit)) for at in range(8))


def complete_codes(data: bytes, header: JpegHeader) -> bool:
    """Tell whether there are valid codes for all blocks, and what is left over is not more of them."""
    begin = header.codes_at
    marker = AFTER_CODES.search(data, begin)
    unit, end = _unit(data, header), 0
    blocks = header.units * len(unit)
    if marker is None or marker.start() - begin > MAX_CODES or blocks > MAX_BLOCKS or not header.row_by_row:
        return False
    codes = data[begin : marker.start()].replace(b"\xff\0", b"\xff")
    for block, (at, _) in enumerate(islice(_blocks(codes, unit), 2 * blocks), 1):
        ones = (1 << -at % 8) - 1  # that fill the last byte of a scan
        if block == blocks:
            end = (at + 7) // 8 if not ones or codes[at >> 3] & ones == ones else 0
        elif block > blocks and (at + 7) // 8 == len(codes) and (not ones or codes[-1] & ones == ones):
            return False
    return end > 0 and not overwritten_codes(data, header, begin + end)


def _blocks(codes: bytes, unit: Unit, at: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the bit after each block, and its coefficients, as long as there are valid codes."""
    padded = np.frombuffer(codes + bytes(MAX_BLOCK), np.uint8).astype(np.int64)
    words = (padded[:-2] << 16 | padded[1:-1] << 8 | padded[2:]).tolist()  # the 24 bits from each byte on
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
        yield at, coefficients


def _unit(data: bytes, header: JpegHeader) -> Unit:
    """Return the tables for each block of a unit; none where some are missing."""
    lookups: dict[tuple[int, int], Lookup] = {}  # by 0 for DC or 1 for AC, and the number
    for marker, at, end in segments(data):
        if marker == SCAN:
            break
        at += 4
        while marker == TABLES and at + 17 <= end:
            counts = data[at + 1 : at + 17]  # codes of each length
            lengths = [length for length, count in enumerate(counts, 1) for _ in range(count)]
            entries: Lookup = []
            for length, symbol in zip(lengths, data[at + 17 : at + 17 + sum(counts)], strict=False):
                entries += [(length + (symbol & 15), symbol)] * (1 << (16 - length))
            entries += [(0, 0)] * (0x10000 - len(entries))
            lookups[data[at] >> 4, data[at] & 15] = entries[:0x10000]
            at += 17 + sum(counts)
    unit: Unit = []
    for i, channel in enumerate(header.channels):
        both = data[header.scan_at + 6 + 2 * i]
        dc, ac = lookups.get((0, both >> 4)), lookups.get((1, both & 15))
        if dc is None or ac is None:
            return []
        unit += [(dc, ac)] * (channel.across * channel.down)
    return unit
