"""An image that Pillow has loaded becomes upright RGB, by the rules of decode.py.

Strip by strip: whole, the copies between two modes would take several times the memory of the image.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.orientation import as_pixels, upright_buffer
from vitrail.errors import ImageError

STRIP = 1 << 20  # pixels that are converted at a time


def upright_rgb(image: Image.Image, orientation: int) -> NDArray[np.uint8]:
    """Return uint8 (H, W, 3)."""
    width, height = image.size
    rows = max(1, STRIP // width)
    # Pillow keeps 16-bit PPM, and 16-bit PNG before its version 11, in 32-bit integers.
    sixteen = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    low_high = None if sixteen or image.mode not in ("I", "F") else _range(image, rows)
    upright, stored = upright_buffer(height, width, orientation)
    for top, strip in _strips(image, rows):
        if low_high is not None:
            rgb = _three_times(_stretched(strip, *low_high))
        elif sixteen:
            rgb = _three_times(_high_bytes(strip))
        else:
            rgb = np.asarray(_rgb(strip))
        stored[top : top + rows] = as_pixels(rgb)
    return upright


def _strips(image: Image.Image, rows: int) -> Iterator[tuple[int, Image.Image]]:
    """Yield each strip with the row at which it begins."""
    width, height = image.size
    if rows >= height:
        yield 0, image
        return
    for top in range(0, height, rows):
        yield top, image.crop((0, top, width, min(top + rows, height)))


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _three_times(grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.repeat(grey[..., None], 3, axis=2)  # (H, W, 3)


def _high_bytes(image: Image.Image) -> NDArray[np.uint8]:
    """16 bits as bytes, the transparent value as white: uint8 (H, W)."""
    pixels = np.asarray(image)
    grey = (pixels >> 8).astype(np.uint8)
    grey[pixels == image.info.get("transparency", -1)] = 255
    return grey


def _stretched(image: Image.Image, low: float, high: float) -> NDArray[np.uint8]:
    """32 bits as bytes: uint8 (H, W)."""
    return np.rint((np.asarray(image) - low) * (255 / max(high - low, 1e-30))).astype(np.uint8)


def _range(image: Image.Image, rows: int) -> tuple[float, float]:
    """Return the darkest and the brightest value."""
    lows, highs = [], []
    for _, strip in _strips(image, rows):
        pixels = np.asarray(strip)
        if not np.isfinite(pixels).all():
            raise ImageError("some pixels are not finite numbers")
        lows.append(float(pixels.min()))
        highs.append(float(pixels.max()))
    return min(lows), max(highs)
