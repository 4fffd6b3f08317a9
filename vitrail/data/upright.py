"""Convert stored pixels to upright RGB: orientation by EXIF or XMP, and conversion from other modes.

EXIF is a TIFF directory (EXIF 2.32, 4.6.4 A): only the entries of its first directory are looked at, for the one tag
that matters here. However large the block, it costs no more than 65,535 entries of twelve bytes.

An image that Pillow has loaded is converted strip by strip, by the rules of decode.py: converted whole, the copies
between two modes would take several times the memory of the image.
"""

from __future__ import annotations

import re
import struct
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.errors import ImageError

STRIP = 1 << 20  # pixels that are converted at a time
EXIF, ORIENTATION = b"Exif\0\0", 0x0112
INTEGERS = {1: "B", 3: "H", 4: "I"}  # TIFF's types BYTE, SHORT and LONG
XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')

# Orientation -> steps over rows and columns that undo the mirroring; from 5 on, rows and columns are exchanged, too.
FLIPS = {1: (1, 1), 2: (1, -1), 3: (-1, -1), 4: (-1, 1), 5: (1, 1), 6: (-1, 1), 7: (-1, -1), 8: (1, -1)}
EXCHANGED = 5


def find_orientation(exif: bytes, xmp: bytes = b"") -> int:
    """Return the orientation, 1 (upright) to 8; 1 where neither block has a valid one."""
    tiff = exif.removeprefix(EXIF).removeprefix(EXIF)  # some writers repeat it
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    orientation = None
    if order is not None:
        with suppress(struct.error):  # a damaged block
            (first,) = struct.unpack_from(order + "I", tiff, 4)
            (entries,) = struct.unpack_from(order + "H", tiff, first)
            for at in range(first + 2, first + 2 + 12 * entries, 12):
                tag, kind, count = struct.unpack_from(order + "HHI", tiff, at)
                if tag == ORIENTATION and kind in INTEGERS and count == 1:
                    orientation = int(struct.unpack_from(order + INTEGERS[kind], tiff, at + 8)[0])
                    break
    if orientation is None and (match := XMP_ORIENTATION.search(xmp)):
        orientation = int(match[1])
    return orientation if orientation in FLIPS else 1


def upright_buffer(height: int, width: int, orientation: int) -> tuple[NDArray[np.uint8], NDArray[np.void]]:
    """Make room for the upright picture: uint8 (H', W', 3), and the same memory as it is stored, V3 (H, W)."""
    exchanged = orientation >= EXCHANGED
    pixels = np.empty((width, height) if exchanged else (height, width), "V3")
    rows, columns = FLIPS[orientation]
    stored = (pixels.T if exchanged else pixels)[::rows, ::columns]  # (H, W)
    return pixels.view(np.uint8).reshape(*pixels.shape, 3), stored


def as_pixels(rgb: NDArray[np.uint8]) -> NDArray[np.void]:
    """View uint8 (H, W, 3) as V3 (H, W)."""
    return np.ascontiguousarray(rgb).view("V3")[..., 0]


def upright_rgb(image: Image.Image, orientation: int) -> NDArray[np.uint8]:
    """Convert an image that Pillow has loaded to uint8 (H, W, 3)."""
    width, height = image.size
    rows = max(1, STRIP // width)
    # Pillow keeps 16-bit PPM, and 16-bit PNG before its version 11, in 32-bit integers.
    sixteen = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    stretched = image.mode in ("I", "F") and not sixteen
    low, high = map(float, image.getextrema()) if stretched else (0.0, 0.0)  # type: ignore[arg-type]
    upright, stored = upright_buffer(height, width, orientation)
    for top in range(0, height, rows):
        strip = image if rows >= height else image.crop((0, top, width, min(top + rows, height)))
        if stretched:  # 32 bits as bytes
            values = np.asarray(strip)
            if not np.isfinite(values).all():
                raise ImageError("some pixels are not finite numbers")
            grey = np.rint((values - low) * (255 / max(high - low, 1e-30))).astype(np.uint8)
            rgb = np.repeat(grey[..., None], 3, axis=2)  # (rows, W, 3)
        elif sixteen:  # the high bytes; the transparent value is white
            values = np.asarray(strip)
            grey = (values >> 8).astype(np.uint8)
            grey[values == strip.info.get("transparency", -1)] = 255
            rgb = np.repeat(grey[..., None], 3, axis=2)  # (rows, W, 3)
        else:
            if strip.has_transparency_data:
                rgba = strip.convert("RGBA")
                strip = Image.alpha_composite(Image.new("RGBA", rgba.size, (255, 255, 255, 255)), rgba)
            rgb = np.asarray(strip if strip.mode == "RGB" else strip.convert("RGB"))
        stored[top : top + rows] = as_pixels(rgb)
    return upright
