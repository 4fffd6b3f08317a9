"""Decode an image file to RGB pixels, or raise an `ImageError` with the reason.

First stage of the data flow: file bytes -> `decode` -> uint8 (H, W, 3) -> preprocess.py.

How an image is converted, by how it was stored:
  EXIF orientation         applied, so that up is up; an EXIF block that cannot be read counts as none
  RGB, YCbCr               the three 8-bit channels; a colour profile is not applied
  greyscale, 1-bit         the one channel, three times
  palette                  the colours that the palette names
  transparency of any kind composited on white: alpha channel, palette entry or key colour
  CMYK and YCCK JPEG       stored inverted, as Adobe writes them; then R = (1 - C)(1 - K), and so on
  16 bits a channel        the high byte: 0..65535 becomes 0..255, and 257 v becomes v
  32-bit integer or float  no white level is stated, so the darkest value becomes 0 and the brightest 255
  animation, several pages the first frame
The cost is known from the header: more than 1 GB or 5 s is an error before any pixel is decoded. A file that ends
early is one too, whatever `PIL.ImageFile.LOAD_TRUNCATED_IMAGES` is, and so is damage that a decoder warns of or a
checksum shows. docs/data.md lists the damage that cannot be seen.

    JPEG        jpeg_header.py ──► jpeg.py (simplejpeg, where installed) ──► Pillow, for CMYK and unusual kinds
    HEIC        heif.py, where pi-heif is installed
    all others  image_limits.py ──► Pillow opens ──► image_limits.py ──► Pillow decodes ──► upright.py
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from vitrail.data.heif import INSTALL, decode_heif, heif_installed, heif_mode
from vitrail.data.image_limits import MeteredFile, check_cost, check_jpeg_cost, check_metadata
from vitrail.data.jpeg import JPEG_DECODER, decode_jpeg, without_metadata
from vitrail.data.jpeg_header import START, JpegHeader, read_jpeg_header
from vitrail.data.upright import FLIPS, as_pixels, find_orientation, upright_buffer, upright_rgb
from vitrail.errors import ImageError

Stored = bytes | NDArray[np.uint8]  # a file, or pixels (H, W, 3)
MAX_PIXELS = 178_956_970  # half a GiB of RGB; the size at which Pillow refuses by itself

# What may be opened. A format whose reader starts another program (EPS) is not among them.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")

# Photographs of phones in files of the ISO format: by the brands in their heads. Pillow has no reader for HEIC
# (heif.py has), and for AVIF not everywhere.
BRANDS = {
    "AVIF": {b"avif", b"avis"},
    "HEIC": {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"},
}
CONVERT = "convert to JPEG or PNG first, as `heif-convert a.heic a.jpg` or macOS's `sips -s format jpeg` do"
WITH_HEIF = f"{CONVERT}; or {INSTALL}"


def decode(
    data: Stored,
    *,
    name: str = "<bytes>",
    max_pixels: int = MAX_PIXELS,
    jpeg: JpegHeader | None = None,
    rows: int | None = None,
) -> NDArray[np.uint8]:
    """Decode an image: uint8 (H, W, 3) RGB; pixels are returned unchanged. Errors begin with `name`.

    `jpeg` is the header that `usual_jpeg` returned, if the caller needed the size before the pixels; with `rows`,
    only the top of such an image is decoded, at least that many rows.
    """
    if not isinstance(data, bytes):
        return data
    try:
        if data.startswith(START):
            return _decode_jpeg(data, read_jpeg_header(data) if jpeg is None else jpeg, rows, max_pixels)
        return _decode_by_pillow(data, max_pixels)
    except ImageError as error:
        raise ImageError(f"{name}: {error}") from error.__cause__
    except UnidentifiedImageError:
        raise ImageError(f"{name}: {_unknown(data)}") from None
    except Image.DecompressionBombError as error:
        raise ImageError(f"{name}: at most {max_pixels:,} pixels are decoded ({error})") from error
    # Given broken bytes, Pillow's readers raise almost anything: OSError, SyntaxError, struct.error...
    except Exception as error:
        raise ImageError(f"{name}: cannot be decoded ({type(error).__name__}: {error})") from error


def usual_jpeg(data: Stored) -> JpegHeader | None:
    """Return the header of an upright JPEG in colour or grey, if simplejpeg is installed to decode it."""
    if JPEG_DECODER != "simplejpeg" or not isinstance(data, bytes) or not data.startswith(START):
        return None
    try:
        header = read_jpeg_header(data)
    except ImageError:  # decode raises it again, with a name
        return None
    return header if len(header.channels) in (1, 3) and header.orientation == 1 else None


def rgb_pixels(image: Image.Image, *, name: str = "<image>") -> NDArray[np.uint8]:
    """Return the pixels of an image that Pillow has opened, by the same rules: uint8 (H, W, 3) RGB."""
    image.load()
    try:
        orientation = int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # a damaged EXIF block, which Pillow reports in as many ways as damaged pixels
        orientation = 1
    try:
        return upright_rgb(image, orientation if orientation in FLIPS else 1)
    except ImageError as error:
        raise ImageError(f"{name}: {error}") from error


def stored_mode(data: bytes) -> str:
    """Return how an image that `decode` has read stores its pixels, in Pillow's words."""
    if data.startswith(START):
        return {1: "L", 3: "RGB"}.get(len(read_jpeg_header(data).channels), "CMYK")
    if phone_format(data) == "HEIC":
        return heif_mode(data)
    with _strict_pillow(), Image.open(MeteredFile(data), formats=FORMATS) as image:
        return image.mode


def _decode_jpeg(data: bytes, header: JpegHeader, rows: int | None, max_pixels: int) -> NDArray[np.uint8]:
    _check_size((header.width, header.height), max_pixels)
    by_pillow = JPEG_DECODER == "pillow"
    check_jpeg_cost(data, header, by_pillow=by_pillow)
    stored = None if by_pillow else decode_jpeg(data, header, rows)
    if stored is None:
        plain = BytesIO(without_metadata(data, header))
        with _strict_pillow(), Image.open(plain, formats=("JPEG",)) as image:
            image.load()
            return upright_rgb(image, header.orientation)
    if header.orientation == 1:
        return stored
    upright, pixels = upright_buffer(header.height, header.width, header.orientation)
    pixels[:] = as_pixels(stored)
    return upright


def _decode_by_pillow(data: bytes, max_pixels: int) -> NDArray[np.uint8]:
    if not data:
        raise ImageError("the file is empty")
    check_metadata(data)
    if heif_installed() and phone_format(data) == "HEIC":
        return decode_heif(data, max_pixels)
    file = MeteredFile(data)
    with _strict_pillow(), Image.open(file, formats=FORMATS) as image:
        _check_size(image.size, max_pixels)
        check_cost(image, data, file)
        image.load()
        # The blocks that may hold the orientation. TIFF is left out: Pillow has turned it already.
        info: dict[Any, Any] = image.info
        exif, xmp = info.get("exif"), info.get("XML:com.adobe.xmp") or info.get("xmp")
        if not exif and "Raw profile type exif" in info:  # a PNG by ImageMagick, in hexadecimal digits
            with suppress(ValueError):
                exif = bytes.fromhex("".join(info["Raw profile type exif"].split("\n")[3:]))
        xmp = xmp.encode() if isinstance(xmp, str) else xmp
        blocks = (block if isinstance(block, bytes) else b"" for block in (exif, xmp))
        return upright_rgb(image, find_orientation(*blocks))


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if not width * height:
        raise ImageError(f"{width} x {height} pixels: there is nothing to decode")
    if width * height > max_pixels:
        raise ImageError(f"{width} x {height} pixels; at most {max_pixels:,} pixels are decoded")


def _unknown(data: bytes) -> str:
    """Describe bytes that there is no reader for."""
    if kind := phone_format(data):
        advice = WITH_HEIF if kind == "HEIC" else CONVERT
        return f"an image in the format {kind}, which is not supported here: {advice}"
    return f"not an image in a known format ({', '.join(FORMATS)})"


def phone_format(data: bytes) -> str | None:
    """Return AVIF or HEIC by the brands in the head of a file of the ISO format; None for all others."""
    if data[4:8] != b"ftyp":
        return None
    end = min(int.from_bytes(data[:4], "big"), 256)
    brands = {data[at : at + 4] for at in (8, *range(16, end, 4))}  # at 12 stands a version
    return next((kind for kind, known in BRANDS.items() if brands & known), None)


_pillow_lock = threading.Lock()
_pillow_users = 0
_pillow_before: tuple[bool, warnings.catch_warnings[None]] = (False, warnings.catch_warnings())


@contextmanager
def _strict_pillow() -> Iterator[None]:
    """Make Pillow strict: it never fills in missing pixels and never warns, whatever the settings of the process.

    Both settings are global, so threads share one change: the first to enter makes it, the last to leave undoes it.
    """
    global _pillow_users, _pillow_before
    with _pillow_lock:
        if _pillow_users == 0:
            _pillow_before = (ImageFile.LOAD_TRUNCATED_IMAGES, warnings.catch_warnings())
            _pillow_before[1].__enter__()
            warnings.simplefilter("ignore")
            ImageFile.LOAD_TRUNCATED_IMAGES = False
        _pillow_users += 1
    try:
        yield
    finally:
        with _pillow_lock:
            _pillow_users -= 1
            if _pillow_users == 0:
                ImageFile.LOAD_TRUNCATED_IMAGES = _pillow_before[0]
                _pillow_before[1].__exit__(None, None, None)
