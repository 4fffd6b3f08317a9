"""What decoding an image will cost, from what its header says: at most 1 GB of memory and 5 s.

A file of few bytes can have many pixels, and decoders keep several copies of them: WebP 17 bytes a pixel, AVIF up to
20. `check_cost` and `check_jpeg_cost` refuse what would take more, before any pixel is decoded. Bytes are upper
bounds, and the file itself is counted. Seconds are estimates from measurements on one core of a server, rounded up.

Readers that Pillow has in Python (chunks, tags, plain PPM, run lengths of BMP) are stopped by `MeteredFile` when they
have taken too long.
"""

from __future__ import annotations

import time
from io import BytesIO

from PIL import Image, ImageFile, TiffImagePlugin

from vitrail.data.image_metadata import codestream, other_chunks
from vitrail.data.jpeg_header import JpegHeader, coefficient_bytes, decoding_seconds
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
OTHER_PIXEL = {"WEBP": 40, "GIF": 12, "bmp_rle": 150}


class MeteredFile(BytesIO):
    """The bytes of a file for Pillow, as long as it does not take too long over them."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.taken = 0  # bytes that were read
        self.end = time.thread_time() + READING_SECONDS

    def read(self, size: int | None = -1) -> bytes:
        if time.thread_time() > self.end:
            raise ImageError(
                f"it takes more than {MAX_SECONDS:g} s to decode, the most that is spent on an image"
            )
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
    memory = 2 * len(data) + stored * pixels + max(coefficient_bytes(header), result * pixels) + SPARE
    _check(memory, seconds, f"JPEG of {header.width} x {header.height} pixels")


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
    """Return the bytes that are needed beside the loaded image, the result among them, and nanoseconds."""
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
            coded = codestream(data)
            samples = bands * max(pixels, coded.pixels)
            working = (4 + (2 if bands == 1 else 1) + 600 / coded.code_block) * samples
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
            raise ImageError(f"the value {value!r} in its tag {tag}; a whole number from 1 on is needed")
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
