"""The usual JPEG by simplejpeg, where that is installed: the whole picture, or only its first rows.

decode.py asks here first, and leaves to Pillow what simplejpeg cannot decode. The bits are those of Pillow, for both
are libjpeg-turbo with the same settings.

A random crop needs no row below its own, and most files store rows from top to bottom. So the decoder is given the
file with another height in its header: it stops below the rows that are wanted, and reports the bytes that it had no
use for. A file that ends too early, or damaged rows, it reports otherwise, and then the whole file is decoded.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from vitrail.data.jpeg_header import APP0, APP14, COMMENT, JPG0, SCAN, SEQUENTIAL, JpegHeader, segments

# Imported here, so that an installation of it that does not work is seen at once, and not as broken images.
_simplejpeg = importlib.import_module("simplejpeg") if find_spec("simplejpeg") else None
JPEG_DECODER = "pillow" if _simplejpeg is None else "simplejpeg"

EXTRANEOUS = "extraneous bytes before marker 0xd9"  # what libjpeg says of bytes before the end of the file
BELOW = 4  # rows under the last one wanted, from which it may take a part of its colour


def decode_jpeg(data: bytes, header: JpegHeader, rows: int | None = None) -> NDArray[np.uint8] | None:
    """Return the pixels as they are stored, uint8 (H, W, 3); with `rows`, at least so many from the top.

    None: the decoder objects.
    """
    if len(header.channels) not in (1, 3):
        return None
    if rows is not None and header.row_by_row and rows + BELOW < header.height:
        first = _first_rows(data, header, rows + BELOW)
        if first is not None:
            return first
    assert _simplejpeg is not None
    try:
        pixels: NDArray[np.uint8] = _simplejpeg.decode_jpeg(data, "RGB", strict=True)
    except ValueError:
        return None
    return pixels


def without_metadata(data: bytes, header: JpegHeader, end: bytes = b"") -> bytes:
    """Return the same picture without what libjpeg may warn of in its header, and with an `end`."""
    parts, after = [data[:2]], 2
    for marker, begin, after in segments(data):
        segment = data[begin:after]
        if marker == APP0 and segment.startswith(b"JFIF\0", 4):
            segment = segment[:9] + b"\x01" + segment[10:]  # revision 1
        elif marker == APP14 and segment.startswith(b"Adobe", 4):
            # An unknown colour transform is taken for the usual one, as libjpeg does.
            usual = b"\x01" if len(header.channels) == 3 else b"\x02"
            segment = segment if segment[15:16] == b"\0" else segment[:15] + usual + segment[16:]
        elif APP0 <= marker < JPG0 or marker == COMMENT:
            continue
        elif marker == SCAN and header.frame in SEQUENTIAL:
            segment = segment[:-3] + b"\x00\x3f\x00"  # all coefficients in all bits
        parts.append(segment)
    return b"".join([*parts, memoryview(data)[after:], end])


def _first_rows(data: bytes, header: JpegHeader, height: int) -> NDArray[np.uint8] | None:
    """uint8 (height, W, 3); None: something is wrong above, or the file ends too early."""
    assert _simplejpeg is not None
    at = header.height_at
    lower = data[:at] + height.to_bytes(2, "big") + data[at + 2 :]
    pixels = np.empty((height, header.width, 3), np.uint8)
    try:
        _simplejpeg.decode_jpeg(lower, "RGB", buffer=pixels, strict=True)
    except ValueError as error:
        # It tells the first of its objections, and this one comes after all rows.
        return pixels if EXTRANEOUS in str(error) else None
    return pixels
