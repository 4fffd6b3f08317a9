"""The usual JPEG by simplejpeg, where that is installed: the whole picture, or only its first rows.

decode.py asks here first, and leaves to Pillow what this refuses. The bits are those of Pillow, for both are
libjpeg-turbo with the same settings.

A random crop needs no row below its own, and most files store rows from top to bottom. So the decoder is given the
file with another height in its header: it stops below the rows that are wanted, and reports the bytes that it had no
use for. A file that ends too early, or damaged rows, it reports otherwise, and then the whole file is decoded.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

# Imported here, so that an installation of it that does not work is seen at once, and not as broken images.
_simplejpeg = importlib.import_module("simplejpeg") if find_spec("simplejpeg") else None
JPEG_DECODER = "pillow" if _simplejpeg is None else "simplejpeg"

START = b"\xff\xd8\xff"
# Markers: the byte after 0xff (ITU T.81, table B.1).
SEGMENTS = frozenset(range(0xC0, 0xFF)) - frozenset(range(0xD0, 0xDA))  # those with a length
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
SEQUENTIAL = (0xC0, 0xC1)  # frames in Huffman codes, each block in one piece
APP1, RESTARTS, SCAN = 0xE1, 0xDD, 0xDA

STOPPED_EARLY = "extraneous bytes before marker 0xd9"  # what libjpeg says of bytes before the end of the file
BELOW = 4  # rows under the last one wanted, from which it may take a part of its colour


@dataclass(frozen=True)
class JpegHeader:
    """What stands before the pixels."""

    height: int
    width: int
    channels: int
    height_at: int  # where in the file the height stands, two bytes
    app1: bool  # EXIF or XMP, which may say that the picture is turned
    row_by_row: bool  # from top to bottom, in one scan without restarts: the first rows can be decoded alone


def read_header(data: bytes) -> JpegHeader | None:
    """The header of a JPEG; None: it is none, or its segments make no sense."""
    if not data.startswith(START):
        return None
    at, frame, app1, restarts = 2, 0, False, False
    while at + 10 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker not in SEGMENTS or length < 2:
            return None
        if marker == SCAN:
            break
        if marker in FRAMES:
            frame = at
        app1, restarts = app1 or marker == APP1, restarts or marker == RESTARTS
        at += 2 + length
    else:
        return None
    if not frame:
        return None
    height, width = (int.from_bytes(data[i : i + 2], "big") for i in (frame + 5, frame + 7))
    if not height or not width:
        return None
    channels = data[frame + 9]
    row_by_row = data[frame + 1] in SEQUENTIAL and data[at + 4] == channels and not restarts
    return JpegHeader(height, width, channels, frame + 5, app1, row_by_row)


def decode_jpeg(data: bytes, header: JpegHeader, rows: int | None = None) -> NDArray[np.uint8] | None:
    """The pixels, uint8 (H, W, 3); with `rows`, at least so many from the top. None: the decoder objects."""
    assert _simplejpeg is not None
    if rows is not None and header.row_by_row and rows + BELOW < header.height:
        first = _first_rows(data, header, rows + BELOW)
        if first is not None:
            return first
    try:
        pixels: NDArray[np.uint8] = _simplejpeg.decode_jpeg(data, "RGB", strict=True)
    except ValueError:
        return None
    return pixels


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
        return pixels if STOPPED_EARLY in str(error) else None
    return pixels
