"""The header of a JPEG, and its scans: size, orientation, and the cost of decoding it.

    SOI, segments (marker, length, body), SOS, codes, more segments, SOS, codes, ..., EOI        (ITU T.81, B.1)

It is read here, and not by a library, because it shows cost and damage: a progressive file of few bytes can ask for
thousands of passes over all blocks, EXIF and XMP can have any size, and a file with missing scans is decoded without
an error, to a picture that is blurred or grey.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from vitrail.data.upright import EXIF, find_orientation
from vitrail.errors import ImageError

START = b"\xff\xd8\xff"
# Markers: the byte after 0xff (T.81, table B.1).
TABLES, END, SCAN, RESTARTS = 0xC4, 0xD9, 0xDA, 0xDD
APP0, APP1, APP14, JPG0, COMMENT = 0xE0, 0xE1, 0xEE, 0xF0, 0xFE
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
SEQUENTIAL = (0xC0, 0xC1)  # frames in Huffman codes, each block in one piece
PROGRESSIVE = (0xC2, 0xCA)
ARITHMETIC = (0xC9, 0xCA)
ALONE = frozenset({0x01, *range(0xD0, 0xD8)})  # markers without a length
SEGMENTS = frozenset(range(0xC0, 0xFF)) - frozenset(range(0xD0, 0xDA))  # those with one
USUAL_SAMPLING = ((1, 1), (2, 1), (2, 2), (1, 2), (4, 1), (1, 4))
MARKER = re.compile(rb"\xff[^\x00\xff]")
AFTER_CODES = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")  # restarts belong to the codes
XMP = b"http://ns.adobe.com/xap/1.0/\0"

MAX_SEGMENTS = 10_000  # in all; a photograph has some ten
MAX_STRAY = 1 << 16  # bytes between two segments that belong to neither
MAX_SCANS = 1000  # the usual progressive file has ten

# Nanoseconds of libjpeg-turbo on one core, rounded up: for a pixel, for a byte of the file where it has one scan or
# several, for a block in a scan, and for each of its coefficients in that scan.
PIXEL, BYTE, BYTE_OF_SCANS, BLOCK, COEFFICIENT, ARITHMETIC_COEFFICIENT = 8, 6, 25, 12, 0.8, 15
BLOCK_BYTES = 128  # the coefficients of a block, which are kept where there are several scans


class Channel(NamedTuple):
    number: int  # by which scans name it
    across: int  # blocks in a unit of the scan, T.81's H and V
    down: int


@dataclass(frozen=True)
class JpegHeader:
    """The contents of a JPEG before its pixels."""

    height: int
    width: int
    channels: tuple[Channel, ...]
    frame: int  # its marker: the kind of coding
    height_at: int  # where in the file the height stands, two bytes
    scan_at: int  # where the segment of the first scan begins
    codes_at: int  # and where it ends
    one_scan: bool  # all channels in one, by Huffman codes, each block in one piece
    row_by_row: bool  # the first rows can be decoded alone: top to bottom, in one scan without restarts
    orientation: int  # by EXIF or XMP

    @property
    def usual_sampling(self) -> bool:
        """Tell whether it is 4:4:4, 4:2:2, 4:2:0, 4:4:0, 4:1:1 or 4:4:1, which simplejpeg knows."""
        (first, *others) = [(channel.across, channel.down) for channel in self.channels]
        return first in USUAL_SAMPLING and all(factors == (1, 1) for factors in others)

    @property
    def units(self) -> int:
        """Count the units of the scan, T.81's MCUs, if all channels are in it."""
        across = max(channel.across for channel in self.channels)
        down = max(channel.down for channel in self.channels)
        return -(-self.width // (8 * across)) * -(-self.height // (8 * down))

    @property
    def blocks(self) -> int:
        return self.units * sum(channel.across * channel.down for channel in self.channels)


def read_jpeg_header(data: bytes) -> JpegHeader:
    """Read up to the first scan; ImageError where that is damaged."""
    frame = begin = end = 0
    restarts, exif, xmp = False, b"", b""
    for marker, begin, end in segments(data):
        if marker in FRAMES:
            frame = begin
        elif marker == RESTARTS:
            restarts = True
        elif marker == APP1 and data.startswith(EXIF, begin + 4):
            exif = exif or data[begin + 4 : end]
        elif marker == APP1 and data.startswith(XMP, begin + 4):
            xmp = data[begin + 4 : end]
        elif marker == SCAN:
            break
    if not frame or frame + 10 + 3 * data[frame + 9] > begin:
        raise ImageError("its header is damaged: the size is missing")
    height, width = data[frame + 5] << 8 | data[frame + 6], data[frame + 7] << 8 | data[frame + 8]
    places = range(frame + 10, frame + 10 + 3 * data[frame + 9], 3)
    channels = tuple([Channel(data[i], data[i + 1] >> 4, data[i + 1] & 15) for i in places])
    if len(channels) == 1:  # whose blocks stand one by one, whatever its factors (T.81, A.2.2)
        channels = (Channel(channels[0].number, 1, 1),)
    if not height or not width or not channels or any(not 0 < c.across * c.down <= 16 for c in channels):
        raise ImageError(f"its header is damaged: {width} x {height} pixels in {len(channels)} channels")
    one_scan = data[frame + 1] in SEQUENTIAL and data[begin + 4] == len(channels)
    return JpegHeader(
        height,
        width,
        channels,
        frame=data[frame + 1],
        height_at=frame + 5,
        scan_at=begin,
        codes_at=end,
        one_scan=one_scan,
        row_by_row=one_scan and not restarts,
        orientation=find_orientation(exif, xmp) if exif or xmp else 1,
    )


def segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, begin, end) of every segment; after the first scan, damage is left for the decoder to report."""
    at, marker, scanned = 2, 0, False
    for _ in range(MAX_SEGMENTS):
        until = len(data) if scanned else at + MAX_STRAY
        match = (AFTER_CODES if marker == SCAN else MARKER).search(data, at, until)
        begin, marker = (match.start(), match[0][1]) if match else (at, END)
        at = begin + 2
        if marker in ALONE:
            continue
        at += int.from_bytes(data[at : at + 2], "big")
        if marker not in SEGMENTS or not begin + 4 <= at <= len(data):
            if scanned:
                return
            raise ImageError("its header is damaged, or ends early")
        yield marker, begin, at
        scanned = scanned or marker == SCAN
    raise ImageError(f"more than {MAX_SEGMENTS:,} segments")


def decoding_seconds(data: bytes, header: JpegHeader) -> float:
    """Estimate the time that decoding takes. ImageError where scans are missing, or more than are decoded."""
    pixels = header.height * header.width
    if header.one_scan:
        return (PIXEL * pixels + BYTE * len(data) + (BLOCK + 64 * COEFFICIENT) * header.blocks) / 1e9
    coefficient = ARITHMETIC_COEFFICIENT if header.frame in ARITHMETIC else COEFFICIENT
    blocks = {channel.number: header.units * channel.across * channel.down for channel in header.channels}
    bits = {number: [-1] * 64 for number in blocks}  # the lowest sent of each coefficient; -1: nothing of it
    nanoseconds, scans = float(PIXEL * pixels + BYTE_OF_SCANS * len(data)), 0
    for marker, begin, end in segments(data):
        if marker != SCAN:
            continue
        scans, numbers = scans + 1, data[begin + 5 : end - 3 : 2]
        if end != begin + 8 + 2 * data[begin + 4] or not blocks.keys() >= set(numbers):
            raise ImageError("its header is damaged: a scan of channels that it does not have")
        if scans > MAX_SCANS:
            raise ImageError(f"more than {MAX_SCANS:,} scans, the limit for an image")
        first, last, bit = 0, 63, 0  # coefficients, in zigzag order
        if header.frame in PROGRESSIVE:
            first, last, bit = data[end - 3], min(data[end - 2], 63), data[end - 1] & 15
        band = max(0, last + 1 - first)
        for number in numbers:
            bits[number][first : first + band] = [bit] * band
            nanoseconds += blocks[number] * (BLOCK + band * coefficient)
    if any(sent[0] < 0 or max(sent) > 0 for sent in bits.values()):
        raise ImageError("some of its scans are missing: the file was truncated, or never finished")
    return nanoseconds / 1e9
