"""Limits on images, checked by their headers before a pixel is decoded: at most 1 GB of memory and 5 s for each.

A file of few bytes can have many pixels, and decoders keep several copies of them: WebP 17 bytes a pixel, AVIF up to
20. `check_cost` and `check_jpeg_cost` refuse what would take more. Bytes are upper bounds, and the file itself is
counted. Seconds are estimates from measurements on one core of a server, rounded up.

Some metadata makes a reader work or allocate before any pixel, so `check_metadata` bounds it before Pillow opens the
file. Ordinary files stay far below each bound:
    PNG         chunks, which Pillow walks one by one in Python, and partly keeps
    TIFF, EXIF  tags of numbers, which become Python integers of 28 bytes each
    PPM         comments between plain numbers, each of which costs Pillow a copy of a megabyte
    JPEG 2000   tiles, code-blocks and precincts, for each of which OpenJPEG keeps hundreds of bytes

Readers that Pillow has in Python (chunks, tags, plain PPM, run lengths of BMP) are stopped by `MeteredFile` when
they have taken too long.
"""

from __future__ import annotations

import re
import struct
import time
import zlib
from collections.abc import Iterator
from io import BytesIO

from PIL import Image, ImageFile, TiffImagePlugin

from vitrail.data.jpeg_header import BLOCK_BYTES, JpegHeader, decoding_seconds
from vitrail.errors import ImageError

MAX_MEMORY = 1_000_000_000  # bytes
MAX_SECONDS = 5.0
READING_SECONDS = 4.0  # after which nothing more is read: the last piece has to be decoded, too

RESULT = 3  # bytes of a pixel as it is returned
SPARE = 32_000_000  # bytes for the strips that are converted, and for what decoders keep besides pixels

# Nanoseconds for a pixel that is copied, and for one with transparency, in CMYK or of 32 bits.
COPIED, CONVERTED = 12, 22
# For a byte as it was before compression, by the names that Pillow has for those of TIFF, and "png".
UNPACKED = {"raw": 2, "png": 6, "lzma": 35, "webp": 20}
UNPACKED_OTHERWISE = 7
SCANS = 100  # that libtiff lets a JPEG in a TIFF have
JPEG_2000_SAMPLE, JPEG_2000_BYTE, AVIF_PIXEL, AVIF_BYTE = 16, 130, 20, 70
HEIC_MEMORY, HEIC_PIXEL, HEIC_BYTE = 18, 40, 100  # bytes of a pixel; nanoseconds
OTHER_PIXEL = {"WEBP": 40, "GIF": 12, "bmp_rle": 150}

MAX_CHUNKS = 200_000  # of a PNG; libpng writes one for 8 KB
MAX_NUMBERS = 500_000  # in the tags of a TIFF: the places and sizes of its strips, mostly
MAX_DIRECTORIES = 1000  # that an AVIF may seem to have
MAX_COMMENTS = 1000  # of a plain PPM
MAX_BOXES = 1000  # of JPEG 2000 before its pixels
MAX_TILES, MAX_LAYERS = 4096, 1000  # of JPEG 2000
USUAL_CODE_BLOCK, MIN_CODE_BLOCK, MIN_PRECINCT = 64 * 64, 16 * 16, 32 * 32  # samples

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


class MeteredFile(BytesIO):
    """The bytes of a file for Pillow, as long as it does not take too long over them."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.taken = 0  # bytes that were read
        self.end = time.thread_time() + READING_SECONDS

    def read(self, size: int | None = -1) -> bytes:
        if time.thread_time() > self.end:
            raise ImageError(f"it takes more than {MAX_SECONDS:g} s to decode, the limit for an image")
        data = super().read(size)
        self.taken += len(data)
        return data


def check_jpeg_cost(data: bytes, header: JpegHeader, *, by_pillow: bool) -> None:
    """Refuse a JPEG by the sizes in its header and by its scans."""
    pixels, cmyk = header.height * header.width, len(header.channels) == 4
    seconds = decoding_seconds(data, header)
    if cmyk:  # which another decoder searches for damage
        stored, result, seconds = 4, RESULT, 2 * seconds + CONVERTED * pixels / 1e9
    elif by_pillow or not header.usual_sampling:
        stored, result, seconds = 4, RESULT, seconds + COPIED * pixels / 1e9
    elif header.orientation != 1:
        stored, result, seconds = RESULT, RESULT, seconds + COPIED * pixels / 1e9
    else:
        stored, result = RESULT, 0
    # The file itself, and once more where something in it is to be left out.
    kept = 0 if header.one_scan else BLOCK_BYTES * header.blocks  # until the last scan
    memory = 2 * len(data) + stored * pixels + max(kept, result * pixels) + SPARE
    _check(memory, seconds, f"JPEG of {header.width} x {header.height} pixels")


def check_heic_cost(width: int, height: int, data: bytes) -> None:
    """Refuse a HEIC by the size in its header."""
    pixels = width * height
    seconds = (HEIC_PIXEL * pixels + HEIC_BYTE * len(data)) / 1e9
    _check(2 * len(data) + HEIC_MEMORY * pixels + SPARE, seconds, f"HEIC of {width} x {height} pixels")


def check_cost(image: Image.Image, data: bytes, file: MeteredFile) -> None:
    """Refuse an image that Pillow has opened and not yet loaded."""
    pixels = image.width * image.height
    stored = 1 if image.mode in ("1", "L", "P") else 2 if image.mode.startswith("I;16") else 4
    held = sum(len(value) for value in image.info.values() if isinstance(value, bytes | str))
    bytes_, nanoseconds = _decoder_cost(image, data, stored)
    plain = image.mode in ("1", "L", "P", "RGB", "I;16", "I;16B") and "transparency" not in image.info
    memory = len(data) + file.taken + held + SPARE + bytes_ + pixels * stored
    seconds = (nanoseconds + pixels * (COPIED if plain else CONVERTED)) / 1e9
    _check(memory, seconds, f"{image.format} of {image.width} x {image.height} pixels ({image.mode})")


def _decoder_cost(image: Image.Image, data: bytes, stored: int) -> tuple[float, float]:
    """Return the bytes that are needed besides the loaded image, including the result, and the nanoseconds."""
    pixels, bands = image.width * image.height, len(image.getbands())
    assert isinstance(image, ImageFile.ImageFile)
    codec, args = (image.tile[0][0], str(image.tile[0][3])) if image.tile else ("", "")
    result = RESULT * pixels
    match image.format:
        case "PNG":
            raw = bands * (2 if "16" in args else 1) * pixels
            return result + other_chunks(data), UNPACKED["png"] * raw
        case "WEBP":
            return 13 * pixels, OTHER_PIXEL["WEBP"] * pixels
        case "AVIF":
            return 16 * pixels, AVIF_PIXEL * pixels + AVIF_BYTE * len(data)
        case "JPEG2000":
            coded, code_block = codestream(data)
            samples = bands * max(pixels, coded)
            working = (4 + (2 if bands == 1 else 1) + 600 / code_block) * samples
            return max(working, result), JPEG_2000_SAMPLE * samples + JPEG_2000_BYTE * len(data)
        case "TIFF":
            chunk, raw = _tiff_bytes(image)
            compression = str(image.info.get("compression"))
            progressive = "jpeg" in compression and b"\xff\xc2" in data
            nanoseconds = UNPACKED.get(compression, UNPACKED_OTHERWISE) * raw * (SCANS if progressive else 1)
            return max(result, stored * pixels) + 2 * chunk, nanoseconds
        case "GIF":
            return result + 2 * pixels, OTHER_PIXEL["GIF"] * pixels
        case _:  # BMP, PPM
            unpacked = 0 if codec == "raw" else 2 * bands * (4 if stored == 4 and bands == 1 else 1) * pixels
            return result + unpacked, OTHER_PIXEL.get(codec, UNPACKED["raw"] * bands) * pixels


def _tiff_bytes(image: Image.Image) -> tuple[int, int]:
    """Return the bytes before compression: of a strip or tile, and of all of them."""
    assert isinstance(image, TiffImagePlugin.TiffImageFile)

    def number(tag: int, otherwise: int) -> int:
        value = image.tag_v2.get(tag, otherwise)
        value = max(value, default=0) if isinstance(value, tuple) else value
        if not isinstance(value, int) or value < 1:
            raise ImageError(f"the value {value!r} in its tag {tag}; it must be a whole number of at least 1")
        return value

    width, height = number(TiffImagePlugin.IMAGEWIDTH, 0), number(TiffImagePlugin.IMAGELENGTH, 0)
    pixel = number(TiffImagePlugin.SAMPLESPERPIXEL, 1) * -(-number(TiffImagePlugin.BITSPERSAMPLE, 1) // 8)
    across = number(TiffImagePlugin.TILEWIDTH, width)
    down = number(TiffImagePlugin.TILELENGTH, min(height, number(TiffImagePlugin.ROWSPERSTRIP, height)))
    chunks = -(-width // across) * -(-height // down)
    return across * down * max(pixel, 4), chunks * across * down * pixel  # libtiff makes RGBA of some kinds


def _check(memory: float, seconds: float, what: str) -> None:
    if memory > MAX_MEMORY:
        need, most = f"{memory / 1e9:.1f} GB of memory", f"{MAX_MEMORY / 1e9:g} GB"
    elif seconds > MAX_SECONDS:
        need, most = f"{seconds:.1f} s", f"{MAX_SECONDS:g} s"
    else:
        return
    raise ImageError(
        f"decoding this {what} needs about {need}; the limit for an image is {most}: make it smaller first"
    )


def check_metadata(data: bytes) -> None:
    """Refuse what would cost too much to open, and a PNG with a wrong checksum."""
    if data.startswith(PNG_START):
        view = memoryview(data)
        # Those of the pixels; Pillow compares the checksums of the chunks before them.
        for kind, at, length in _chunks(data):
            end = at + 8 + length
            if kind not in PIXEL_CHUNKS or end + 4 > len(data):
                continue
            if zlib.crc32(view[at + 4 : end]) != int.from_bytes(view[end : end + 4], "big"):
                raise ImageError(f"damaged: a wrong checksum in its chunk at byte {at:,}")
    elif data.startswith(PLAIN_PPM) and data.count(b"#") > MAX_COMMENTS:
        raise ImageError(f"{data.count(b'#'):,} comments in a plain PPM; at most {MAX_COMMENTS:,} are read")
    elif TIFF_START.match(data):
        _check_tags(data, 0)
    elif data[4:8] == b"ftyp":  # AVIF, with EXIF in it
        for i, start in enumerate(TIFF_START.finditer(data)):
            if i == MAX_DIRECTORIES:
                raise ImageError(f"more than {MAX_DIRECTORIES:,} blocks of EXIF")
            _check_tags(data, start.start())
    elif data.startswith(JPEG_2000):
        codestream(data)


def other_chunks(data: bytes) -> int:
    """Return the bytes of a PNG that are not its pixels."""
    return sum(length for kind, _, length in _chunks(data) if kind not in PIXEL_CHUNKS)


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
    raise ImageError(f"more than {MAX_CHUNKS:,} chunks, the limit for an image")


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


def codestream(data: bytes) -> tuple[int, int]:
    """Return the pixels of a JPEG 2000 and the samples of its smallest code-block; refuse what no encoder writes.

    Coding parameters are read wherever they are, since a tile may have its own.
    """
    at = 0  # of the codestream: the file, or the contents of a box in it (T.800, annex I)
    for _ in range(MAX_BOXES):
        length, kind, header = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8], 8
        if data.startswith(JPEG_2000[0], at) or not kind:
            break
        if length == 1:
            length, header = int.from_bytes(data[at + 8 : at + 16], "big"), 16
        at += header if kind == b"jp2c" else max(length, header)
        if kind == b"jp2c":
            break
    sizes = SIZES.match(data, at)
    if sizes is None:
        raise ImageError("it contains no JPEG 2000 codestream")
    width, height, left, top, tile_width, tile_height, tiles_left, tiles_top = struct.unpack(">8I", sizes[1])
    if not tile_width or not tile_height:
        raise ImageError("tiles without a size")
    tiles = -(-(width - tiles_left) // tile_width) * -(-(height - tiles_top) // tile_height)
    if tiles > MAX_TILES:
        raise ImageError(f"{tiles:,} tiles; at most {MAX_TILES:,} are decoded")
    smallest = USUAL_CODE_BLOCK
    for coding in CODING.finditer(data):
        length = int.from_bytes(coding[1] or coding[4], "big")
        levels, has_precincts = coding[6][0], bool((coding[2] or coding[5])[0] & 1)
        if length != (12 if coding[1] else 9) + (levels + 1) * has_precincts:
            continue  # some other bytes that look like a marker
        layers, block = int.from_bytes(coding[3] or b"\1", "big"), 1 << coding[7][0] + coding[8][0] + 4
        sides = data[coding.end() : coding.end() + levels + 1] if has_precincts else b"\xff"
        # scaled to the full picture
        precinct = min(
            [1 << (side & 15) + (side >> 4) + 2 * i for i, side in enumerate(reversed(sides))] or [0]
        )
        if block < MIN_CODE_BLOCK or precinct < MIN_PRECINCT or layers > MAX_LAYERS:
            raise ImageError(
                f"code-blocks of {block} samples, precincts of {precinct}, {layers:,} layers; "
                f"at least {MIN_CODE_BLOCK} and {MIN_PRECINCT}, and at most {MAX_LAYERS:,}, are decoded"
            )
        smallest = min(smallest, block)
    return (width - left) * (height - top), smallest
