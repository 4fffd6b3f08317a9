"""HEIC, the format of phones, by pi-heif (`pip install "vitrail[heif]"`): libheif without its encoders.

    file bytes ──► size by the header ──► limits ──► pixels, turned as the file says ──► upright.py

The size is known before a pixel is decoded, and what would take too much is refused, as for the other formats.
libheif turns the picture itself; the orientation in its EXIF, which says the same once more, is not applied.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from io import BytesIO

import numpy as np
from numpy.typing import NDArray

from vitrail.data.image_limits import check_heic_cost
from vitrail.data.upright import upright_rgb
from vitrail.errors import ImageError

INSTALL = 'pip install "vitrail[heif]"'


@cache
def heif_installed() -> bool:
    return importlib.util.find_spec("pi_heif") is not None


def decode_heif(data: bytes, max_pixels: int) -> NDArray[np.uint8]:
    """Decode the primary image of a file: uint8 (H, W, 3) RGB."""
    import pi_heif

    opened = pi_heif.open_heif(BytesIO(data), convert_hdr_to_8bit=True)
    width, height = opened.size
    if not 0 < width * height <= max_pixels:
        raise ImageError(f"{width} x {height} pixels; 1 to {max_pixels:,} pixels are decoded")
    check_heic_cost(width, height, data)
    return upright_rgb(opened.to_pillow(), 1)


def heif_mode(data: bytes) -> str:
    """Return how a file stores its pixels, in Pillow's words."""
    import pi_heif

    return str(pi_heif.open_heif(BytesIO(data), convert_hdr_to_8bit=True).mode)
