"""An encoded image file becomes RGB pixels, or an `ImageError` that says why not.

First stage of the data flow: file bytes -> `decode` -> uint8 (H, W, 3) -> preprocess.py.

What an image becomes, by how it was stored:
  EXIF orientation         applied, so that up is up; an EXIF block that cannot be read counts as none
  RGB, YCbCr               the three 8-bit channels; a colour profile is not applied
  greyscale, 1-bit         the one channel, three times
  palette                  the colours that the palette names
  transparency of any kind composited on white: alpha channel, palette entry or key colour
  CMYK and YCCK JPEG       stored inverted, as Adobe writes them; then R = (1 - C)(1 - K), and so on
  16 bits a channel        the high byte: 0..65535 becomes 0..255, and 257 v becomes v
  32-bit integer or float  no white level is stated, so the darkest value becomes 0 and the brightest 255
  animation, several pages the first frame
The size is read from the header and bounded before any pixel is decoded. A file that ends early is an error,
whatever `PIL.ImageFile.LOAD_TRUNCATED_IMAGES` says: never grey pixels.

Pillow reads every format. Where `simplejpeg` is installed it decodes the usual JPEG instead (jpeg.py), with the same
bits and sooner, and only as many rows as are wanted; a JPEG that is turned or CMYK, or that simplejpeg objects to, is
left to Pillow.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from vitrail.data.jpeg import JPEG_DECODER, JpegHeader, decode_jpeg, read_header
from vitrail.errors import ImageError

MAX_PIXELS = 178_956_970  # half a GiB of RGB; the size at which Pillow refuses by itself

# What may be opened. A format whose reader starts another program (EPS) is not among them.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")

# Photographs of phones in files of the ISO format: by the brands in their heads. Pillow has no reader for HEIC, and
# for AVIF not everywhere.
BRANDS = {
    "AVIF": {b"avif", b"avis"},
    "HEIC": {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"},
}
CONVERT = "convert to JPEG or PNG first, as `heif-convert a.heic a.jpg` or macOS's `sips -s format jpeg` do"

TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(data: bytes, *, name: str = "<bytes>", max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """The pixels of an encoded image: uint8 (H, W, 3) RGB. `name` is what errors call it."""
    return decode_rows(data, usual_jpeg(data), None, name=name, max_pixels=max_pixels)


def decode_rows(
    data: bytes,
    jpeg: JpegHeader | None,
    rows: int | None,
    *,
    name: str = "<bytes>",
    max_pixels: int = MAX_PIXELS,
) -> NDArray[np.uint8]:
    """The same, where so many rows from the top are wanted (None: all): those below them may be missing.

    `jpeg` is what `usual_jpeg` says of the data; by it a caller knows the size before the pixels.
    """
    if not data:
        raise ImageError(f"{name}: the file is empty")
    if jpeg is not None:
        _check_size((jpeg.width, jpeg.height), name, max_pixels)
        pixels = decode_jpeg(data, jpeg, rows)
        if pixels is not None:
            return pixels
    try:
        with _strict_pillow(), Image.open(BytesIO(data), formats=FORMATS) as image:
            _check_size(image.size, name, max_pixels)
            return rgb_pixels(image, name=name)
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(f"{name}: {_unknown(data)}") from None
    except Image.DecompressionBombError as error:
        raise ImageError(f"{name}: at most {max_pixels:,} pixels are decoded ({error})") from error
    # Given broken bytes, Pillow's readers raise almost anything: OSError, SyntaxError, struct.error...
    except Exception as error:
        raise ImageError(f"{name}: cannot be decoded ({type(error).__name__}: {error})") from error


def usual_jpeg(data: bytes) -> JpegHeader | None:
    """The header of an upright JPEG in colour or grey, where simplejpeg is there to decode it."""
    header = read_header(data) if JPEG_DECODER == "simplejpeg" else None
    if header is None or header.channels not in (1, 3) or (header.app1 and _is_turned(data)):
        return None
    return header


def rgb_pixels(image: Image.Image, *, name: str = "<image>") -> NDArray[np.uint8]:
    """The pixels of an image that Pillow has opened, by the same rules: uint8 (H, W, 3) RGB."""
    image.load()
    turn = TURNS.get(_orientation(image))
    rgb = _rgb(image, name)
    return np.array(rgb if turn is None else rgb.transpose(turn))  # (H, W, 3)


def _is_turned(data: bytes) -> bool:
    try:
        with _strict_pillow(), Image.open(BytesIO(data), formats=FORMATS) as image:
            return _orientation(image) in TURNS
    except Exception:  # a damaged header: Pillow, which is asked next, says how
        return True


def _unknown(data: bytes) -> str:
    """What to say of bytes that Pillow has no reader for."""
    if data[4:8] == b"ftyp":
        end = min(int.from_bytes(data[:4], "big"), 256)
        brands = {data[at : at + 4] for at in (8, *range(16, end, 4))}  # at 12 stands a version
        for kind, known in BRANDS.items():
            if brands & known:
                return f"an image in the format {kind}, which cannot be read here: {CONVERT}"
    return f"not an image in a known format ({', '.join(FORMATS)})"


def _check_size(size: tuple[int, int], name: str, max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise ImageError(f"{name}: {width} x {height} pixels; at most {max_pixels:,} pixels are decoded")


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 (upright) to 8."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # a damaged EXIF block, which Pillow reports in as many ways as damaged pixels
        return 1


def _rgb(image: Image.Image, name: str) -> Image.Image:
    """The image in mode RGB, by the rules at the top of this file."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_eight_bits(image, name)).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _eight_bits(image: Image.Image, name: str) -> NDArray[np.uint8]:
    """The greyscale pixels of 16 or 32 bits as bytes: uint8 (H, W)."""
    pixels = np.asarray(image)
    # Pillow keeps 16-bit PPM, and 16-bit PNG before its version 11, in 32-bit integers.
    if image.mode.startswith("I;16") or image.format in ("PNG", "PPM"):
        grey = (pixels >> 8).astype(np.uint8)
        grey[pixels == image.info.get("transparency", -1)] = 255
        return grey
    if not np.isfinite(pixels).all():
        raise ImageError(f"{name}: some pixels are not finite numbers")
    low, high = float(pixels.min()), float(pixels.max())
    return np.rint((pixels - low) * (255 / max(high - low, 1e-30))).astype(np.uint8)


_pillow_lock = threading.Lock()
_pillow_users = 0
_pillow_before: tuple[bool, warnings.catch_warnings[None]] = (False, warnings.catch_warnings())


@contextmanager
def _strict_pillow() -> Iterator[None]:
    """Pillow that never fills in what is missing and never warns, whatever the process has set.

    Both settings belong to the process, so threads share one change: the first in makes it, the last out
    undoes it.
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
