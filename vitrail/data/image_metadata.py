"""What makes a reader work or allocate without a pixel being decoded: bounded before Pillow opens the file.

    PNG         chunks, which Pillow walks one by one in Python, and partly keeps
    TIFF, EXIF  tags of numbers, which become Python integers of 28 bytes each
    PPM         comments between plain numbers, each of which costs Pillow a copy of a megabyte
    JPEG 2000   tiles, code-blocks and precincts, for each of which OpenJPEG keeps hundreds of bytes

Ordinary files stay far below each bound.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from vitrail.errors import ImageError

MAX_CHUNKS = 200_000  # of a PNG; libpng writes one for 8 KB
MAX_NUMBERS = 500_000  # in the tags of a TIFF: the places and sizes of its strips, mostly
MAX_DIRECTORIES = 1000  # that an AVIF may seem to have
MAX_COMMENTS = 1000  # of a plain PPM
MAX_BOXES = 1000  # of JPEG 2000 before its pixels
MAX_TILES, MAX_LAYERS = 4096, 1000  # of JPEG 2000
MIN_CODE_BLOCK, MIN_PRECINCT = 16 * 16, 32 * 32  # samples

PNG_START, PLAIN_PPM = b"\x89PNG\r\n\x1a\n", (b"P1", b"P2", b"P3")
PIXEL_CHUNKS = (b"IDAT", b"fdAT")
JPEG_2000 = (b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  ")
TIFF_START = re.compile(rb"II[*+]\0|MM\0[*+]|MM[*+]\0|II\0[*+]")
# TIFF's types, but text and bytes.
NUMBER_BYTES = {3: 2, 4: 4, 5: 8, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
MORE_TAGS = (0x8769, 0x8825, 0xA005)  # directories of EXIF, GPS, interoperability: Pillow reads them as well
# JPEG 2000 (ITU T.800, annex A): the begin of a codestream with its sizes; how it, or a channel of it, is coded.
SIZES = re.compile(rb"\xff\x4f\xff\x51....(.{32})", re.DOTALL)
CODING = re.compile(
    rb"\xff(?:\x52(..)(.)[\0-\4](..)[\0\1]|\x53(..).(.))([\0-\x20])([\0-\x08])([\0-\x08]).[\0\1]", re.DOTALL
)


def check_metadata(data: bytes) -> None:
    """Refuse what would cost too much to open."""
    if data.startswith(PNG_START):
        _check_chunks(data)
    elif data.startswith(PLAIN_PPM) and data.count(b"#") > MAX_COMMENTS:
        raise ImageError(f"{data.count(b'#'):,} comments in a plain PPM; at most {MAX_COMMENTS:,} are read")
    elif TIFF_START.match(data):
        _check_tags(data, 0)
    elif data[4:8] == b"ftyp":  # AVIF, with EXIF in it
        for i, found in enumerate(TIFF_START.finditer(data)):
            if i == MAX_DIRECTORIES:
                raise ImageError(f"more than {MAX_DIRECTORIES:,} blocks of EXIF")
            _check_tags(data, found.start())
    elif data.startswith(JPEG_2000):
        codestream(data)


def other_chunks(data: bytes) -> int:
    """Return the bytes of a PNG that are not its pixels."""
    return sum(length for kind, _, length in _chunks(data) if kind not in PIXEL_CHUNKS)


def _check_chunks(data: bytes) -> None:
    """Compare the checksums of the pixels; of the chunks before them Pillow does."""
    view = memoryview(data)
    for kind, at, length in _chunks(data):
        end = at + 8 + length
        if kind not in PIXEL_CHUNKS or end + 4 > len(data):
            continue
        if zlib.crc32(view[at + 4 : end]) != int.from_bytes(view[end : end + 4], "big"):
            raise ImageError(f"damaged: a wrong checksum in its chunk at byte {at:,}")


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield (kind, place, length) of each chunk."""
    at = len(PNG_START)
    for _ in range(MAX_CHUNKS):
        if at + 8 > len(data):
            return
        length = int.from_bytes(data[at : at + 4], "big")
        yield data[at + 4 : at + 8], at, length
        if data[at + 4 : at + 8] == b"IEND":
            return
        at += 12 + length
    raise ImageError(f"more than {MAX_CHUNKS:,} chunks; at most so many are read")


def _check_tags(data: bytes, start: int) -> None:
    """Count the numbers in the first directory of a TIFF, or of EXIF, and in those that it names."""
    order = "<" if data[start] == ord("I") else ">"
    big = b"+" in data[start + 2 : start + 4]
    counted, offset, entry, entry_bytes = ("Q", "Q", "HHQQ", 20) if big else ("H", "I", "HHII", 12)
    numbers, size = 0, 0
    try:
        todo = [struct.unpack_from(order + offset, data, start + (8 if big else 4))[0]]
        for _ in range(1 + len(MORE_TAGS)):
            if not todo:
                return
            at = start + todo.pop()
            entries = struct.unpack_from(order + counted, data, at)[0]
            at += struct.calcsize(counted)
            for i in range(min(entries, MAX_NUMBERS)):
                tag, kind, count, value = struct.unpack_from(order + entry, data, at + i * entry_bytes)
                bytes_ = count * NUMBER_BYTES.get(kind, 1)
                if bytes_ > len(data):  # cannot be there
                    continue
                numbers, size = numbers + count * (kind in NUMBER_BYTES), size + bytes_
                if numbers + i > MAX_NUMBERS or size > 2 * len(data):
                    raise ImageError(
                        f"more than {MAX_NUMBERS:,} numbers in its tags, or tags larger than the file"
                    )
                if tag in MORE_TAGS:
                    todo.append(value)
    except (struct.error, OverflowError):  # a damaged directory, of which Pillow reads no more either
        return


@dataclass(frozen=True)
class Codestream:
    """JPEG 2000: its pixels, and the smallest code-block."""

    pixels: int
    code_block: int = 64 * 64  # samples


def codestream(data: bytes) -> Codestream:
    """Read sizes, and codings wherever they stand, for a tile may have its own; refuse what no encoder writes."""
    found = SIZES.match(data, _codestream_at(data))
    if found is None:
        raise ImageError("no JPEG 2000 codestream in it")
    width, height, left, top, tile_width, tile_height, tiles_left, tiles_top = struct.unpack(">8I", found[1])
    if not tile_width or not tile_height:
        raise ImageError("tiles without a size")
    tiles = -(-(width - tiles_left) // tile_width) * -(-(height - tiles_top) // tile_height)
    if tiles > MAX_TILES:
        raise ImageError(f"{tiles:,} tiles; at most {MAX_TILES:,} are decoded")
    smallest = Codestream.code_block
    for layers, block, precincts in _codings(data):
        if block < MIN_CODE_BLOCK or min(precincts) < MIN_PRECINCT or layers > MAX_LAYERS:
            raise ImageError(
                f"code-blocks of {block} samples, precincts of {min(precincts)}, {layers:,} layers; "
                f"at least {MIN_CODE_BLOCK} and {MIN_PRECINCT}, and at most {MAX_LAYERS:,}, are decoded"
            )
        smallest = min(smallest, block)
    return Codestream((width - left) * (height - top), smallest)


def _codestream_at(data: bytes) -> int:
    """Find the codestream: the file, or the contents of a box in it (T.800, annex I)."""
    at = 0
    for _ in range(MAX_BOXES):
        length, kind, header = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8], 8
        if data.startswith(JPEG_2000[0], at) or not kind:
            break
        if length == 1:
            length, header = int.from_bytes(data[at + 8 : at + 16], "big"), 16
        if kind == b"jp2c":
            return at + header
        at += max(length, header)
    return at


def _codings(data: bytes) -> Iterator[tuple[int, int, list[int]]]:
    """Yield the layers, and the samples of a code-block and of the precincts, scaled to the full picture."""
    for found in CODING.finditer(data):
        length = int.from_bytes(found[1] or found[4], "big")
        style, levels = (found[2] or found[5])[0], found[6][0]
        has_precincts = bool(style & 1)
        if length != (12 if found[1] else 9) + (levels + 1) * has_precincts:
            continue  # some other bytes that look like a marker
        layers = int.from_bytes(found[3], "big") if found[3] else 1
        sides = data[found.end() : found.end() + levels + 1] if has_precincts else b"\xff"
        precincts = [1 << (side & 15) + (side >> 4) + 2 * i for i, side in enumerate(reversed(sides))]
        yield layers, 1 << found[7][0] + found[8][0] + 4, precincts or [0]
