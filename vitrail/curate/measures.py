"""Measures of the pixels and of the file of one image, by which odd ones and shortcuts are found.

    measure(as it is stored, pixels) ──► Measures        while data/copies.py reads all images of a source, once

blur is that of Crété et al., "The blur effect" (2007): an image that is blurred a second time changes little.

    b = sum |dF| - sum max(0, |dF| - |dG|), over sum |dF|          F grey levels, G the mean of 9 pixels in a row of F

along rows and along columns; 0 is sharp, 1 has no detail. The largest of both counts, at a longer side of 512 pixels,
since a model sees images smaller than that, and of 128, where a strong blur is told from the steps of 8 bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.decode import stored_mode
from vitrail.data.jpeg_header import APP0, COMMENT, FRAMES, SCAN, START, segments

LONGER_SIDES = (512, 128)  # pixels at which blur is measured
SMALLEST = 24  # pixels of a side below which it is not
WINDOW = 9
RING = 32  # a side is so many times the width of its border
QUANTISATION = 0xDB  # marker of a JPEG


class Measures(NamedTuple):
    bytes: int | None  # of the file; None for pixels that are in no file of their own
    blur: float | None  # 0 to 1; None for an image that is too small
    darkest: float  # grey level, 0 to 1, that 5% of the pixels are below
    brightest: float  # and that 5% are above
    border: NDArray[np.float32]  # (24,): mean and deviation of R, G, B at the top, bottom, left and right
    metadata: NDArray[np.float32]  # (8,)


def measure(stored: bytes | np.ndarray, pixels: NDArray[np.uint8]) -> Measures:
    """Measure an image, (H, W, 3) RGB."""
    image, blurs = Image.fromarray(pixels), []
    for side in LONGER_SIDES:
        image.thumbnail((side, side), Image.Resampling.BILINEAR, reducing_gap=2.0)
        grey = np.asarray(image.convert("L"), np.float32) / 255  # (h, w)
        if min(grey.shape) >= SMALLEST:
            blurs += [blur(grey), blur(grey.T)]
    darkest, brightest = np.quantile(np.asarray(image.convert("L")), (0.05, 0.95)) / 255
    return Measures(
        bytes=len(stored) if isinstance(stored, bytes) else None,
        blur=max(blurs, default=None),
        darkest=float(darkest),
        brightest=float(brightest),
        border=border(pixels),
        metadata=metadata(stored) if isinstance(stored, bytes) else np.zeros(8, np.float32),
    )


def blur(grey: NDArray[np.floating]) -> float:
    """Return how little a blur along the rows of (h, w) changes."""
    sums = np.cumsum(np.pad(grey, ((0, 0), (1, 0))), axis=1, dtype=np.float64)  # (h, w + 1)
    smooth = (sums[:, WINDOW:] - sums[:, :-WINDOW]) / WINDOW  # (h, w - 8)
    edge = WINDOW // 2
    before = np.abs(np.diff(grey[:, edge:-edge], axis=1))  # (h, w - 9)
    lost = np.maximum(0, before - np.abs(np.diff(smooth, axis=1)))  # (h, w - 9)
    total = float(before.sum())
    return 1.0 if total < 1e-6 * before.size else 1 - float(lost.sum()) / total


def border(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return mean and deviation of the colours along each side: (24,)."""
    high, wide = (max(1, side // RING) for side in pixels.shape[:2])
    sides = (pixels[:high], pixels[-high:], pixels[:, :wide], pixels[:, -wide:])
    numbers = [f(side.reshape(-1, 3).astype(np.float32), axis=0) for side in sides for f in (np.mean, np.std)]
    return np.concatenate(numbers).astype(np.float32)  # (24,)


def metadata(data: bytes) -> NDArray[np.float32]:
    """Return what a file says beside its pixels: its format and mode, and of a JPEG how it was written: (8,)."""
    numbers = np.zeros(8, np.float32)
    mode = stored_mode(data)
    numbers[0] = int.from_bytes(data[:2], "big")  # the format
    numbers[1] = sum(map(ord, mode))
    if not data.startswith(START):
        return numbers
    for marker, begin, end in segments(data):
        body = data[begin + 4 : end]
        if marker == QUANTISATION:
            numbers[2] += sum(body)  # the quality
        elif marker in FRAMES:
            numbers[3], numbers[4] = marker, sum(body[7::3])  # progressive, sampling of colours
        elif APP0 <= marker < APP0 + 16:
            numbers[5] += 1 << (marker - APP0)
            numbers[6] += len(body)
        elif marker == COMMENT:
            numbers[7] += len(body)
        elif marker == SCAN:
            break
    return numbers
