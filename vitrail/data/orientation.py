"""Which way up a stored picture is, by its EXIF or XMP, and where its pixels go in the upright one.

EXIF is a TIFF directory (EXIF 2.32, 4.6.4 A): only the entries of its first directory are looked at, for the one tag
that matters here. However large the block, it costs no more than 65,535 entries of twelve bytes.
"""

from __future__ import annotations

import re
import struct

import numpy as np
from numpy.typing import NDArray

EXIF, ORIENTATION = b"Exif\0\0", 0x0112
INTEGERS = {1: "B", 3: "H", 4: "I"}  # TIFF's types BYTE, SHORT and LONG
XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')

# Orientation -> steps over rows and columns that undo the mirroring; from 5 on, rows and columns are exchanged, too.
FLIPS = {1: (1, 1), 2: (1, -1), 3: (-1, -1), 4: (-1, 1), 5: (1, 1), 6: (-1, 1), 7: (-1, -1), 8: (1, -1)}
EXCHANGED = 5


def find_orientation(exif: bytes, xmp: bytes = b"") -> int:
    """Return the orientation, 1 (upright) to 8; 1 where neither block says one that exists."""
    found = _exif_orientation(exif.removeprefix(EXIF).removeprefix(EXIF))  # some writers repeat it
    if found is None and (match := XMP_ORIENTATION.search(xmp)):
        found = int(match[1])
    return found if found in FLIPS else 1


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


def _exif_orientation(tiff: bytes) -> int | None:
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return None
    try:
        (first,) = struct.unpack_from(order + "I", tiff, 4)
        (entries,) = struct.unpack_from(order + "H", tiff, first)
        for at in range(first + 2, first + 2 + 12 * entries, 12):
            tag, kind, count = struct.unpack_from(order + "HHI", tiff, at)
            if tag == ORIENTATION and kind in INTEGERS and count == 1:
                return int(struct.unpack_from(order + INTEGERS[kind], tiff, at + 8)[0])
    except struct.error:  # a damaged block
        return None
    return None
