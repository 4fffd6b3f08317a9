"""The usual JPEG by simplejpeg, where that is installed: the whole picture, or only its first rows.

decode.py asks here first, and leaves to Pillow what simplejpeg cannot decode. The bits are those of Pillow, for both
are libjpeg-turbo with the same settings.

Where data are damaged or missing libjpeg goes on, with grey, and warns. Pillow keeps the warnings to itself;
simplejpeg tells the first. Some are harmless to the pixels, and may hide one that is not, so the file is then decoded
without their causes (`without_metadata`):
  harmless  unknown JFIF revision; unknown Adobe color transform code; bad ICC marker; invalid SOS parameters for
            sequential JPEG; extraneous bytes between two segments of the header; no end marker
  damage    premature end of data segment; bad Huffman or arithmetic code; a restart marker other than the next; an
            inconsistent progression sequence; extraneous bytes before any later marker, unless the codes before the
            end marker are complete (jpeg_codes.py)

A random crop needs no row below its own, and most files store rows from top to bottom. So the decoder is given the
file with another height in its header: it stops below the rows that are wanted, and reports the bytes that it had no
use for. A file that ends too early, or damaged rows, it reports otherwise, and then the whole file is decoded.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from vitrail.data.jpeg_codes import complete_codes, overwritten_codes, run_of_one_byte
from vitrail.data.jpeg_header import APP0, APP14, COMMENT, JPG0, SCAN, SEQUENTIAL, JpegHeader, segments
from vitrail.errors import ImageError

# Imported here, so that an installation of it that does not work is seen at once, and not as broken images.
_simplejpeg = importlib.import_module("simplejpeg") if find_spec("simplejpeg") else None
JPEG_DECODER = "pillow" if _simplejpeg is None else "simplejpeg"

# What libjpeg says of damaged or missing data (its jerror.h), and of bytes before the end of the file.
DAMAGE = ("Corrupt JPEG data", "Premature end of JPEG file", "Inconsistent progression sequence")
EXTRANEOUS = "extraneous bytes before marker 0xd9"
BELOW = 4  # rows under the last one wanted, from which it may take a part of its colour


def decode_jpeg(data: bytes, header: JpegHeader, rows: int | None = None) -> NDArray[np.uint8] | None:
    """Return the pixels as they are stored, uint8 (H, W, 3); with `rows`, at least so many from the top.

    None: of a kind that simplejpeg does not decode to RGB. ImageError: damaged.
    """
    suspect = header.one_scan and run_of_one_byte(data, header.scan_at, len(data)) is not None
    if rows is not None and header.row_by_row and rows + BELOW < header.height and not suspect:
        first = _first_rows(data, header, rows + BELOW)
        if first is not None:
            return first
    # CMYK is only searched for damage, at an eighth of the size.
    colours, least = ("RGB", 0) if len(header.channels) in (1, 3) else ("CMYK", 1)
    try:
        pixels = _decode(data, colours, least)
    except ValueError:
        plain = without_metadata(data, header, end=b"\xff\xd9")
        try:
            pixels = _decode(plain, colours, least)
        except ValueError as error:
            if not any(words in str(error) for words in DAMAGE):
                return None
            if EXTRANEOUS not in str(error) or not complete_codes(data, header):
                raise ImageError(f"damaged: {error}") from None
            suspect, pixels = False, _decode(plain, colours, least, strict=False)
    if suspect and overwritten_codes(data, header):
        raise ImageError("damaged: a part of it is overwritten with one byte")
    return pixels if colours == "RGB" else None


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


def _decode(data: bytes, colours: str, least: int, strict: bool = True) -> NDArray[np.uint8]:
    """Decode as small as leaves `least` rows and columns (0: at full size); ValueError: libjpeg objects."""
    assert _simplejpeg is not None
    pixels: NDArray[np.uint8] = _simplejpeg.decode_jpeg(
        data, colours, min_height=least, min_width=least, min_factor=8 if least else 1, strict=strict
    )
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
        return pixels if EXTRANEOUS in str(error) else None
    return pixels
