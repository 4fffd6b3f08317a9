"""Small pictures of the images of a source, for indexes and pages."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from vitrail.data.sources import Source
from vitrail.inference.images import decode_example

QUALITY = 80  # of JPEG


def thumbnail(source: Source, index: int, side: int) -> bytes:
    """Return an image of a source as a small JPEG file."""
    return small_jpeg(decode_example(source, index), side)


def small_jpeg(pixels: np.ndarray, side: int) -> bytes:
    """Return an image (H, W, 3) as a JPEG file, shrunk so that no side is longer than `side`."""
    image = Image.fromarray(pixels)
    by = min(1.0, side / max(image.size))
    size = max(1, round(image.width * by)), max(1, round(image.height * by))
    file = io.BytesIO()
    image.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
