"""One pass over the images of a source: what the audit and the search for copies remember of each.

    Source ──► scan ──► Scan (about 1 KiB an image) ──► duplicates.py, audit.py, dedup.py

Of each image: a digest of its bytes, its size, how its pixels are stored, and a thumbnail of S x S grey
levels, the whole image squeezed into a square. An image that cannot be read keeps its place, with the reason.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.decode import decode, stored_mode
from vitrail.data.sources import Source
from vitrail.data.upright import STRIP
from vitrail.errors import DataError
from vitrail.runtime.progress import progress

THUMBNAIL = 32  # S
BATCH = 64  # images that are read and decoded together


@dataclass(frozen=True)
class Scan:
    """Facts about all images. One that could not be read has size 0 x 0, no digest and a black thumbnail."""

    digests: NDArray[np.bytes_]  # S32 (n,): BLAKE2b of the file, or of shape and pixels, in hexadecimal
    sizes: NDArray[np.int32]  # (n, 2): height, width
    modes: NDArray[np.str_]  # (n,): how the file stores pixels, in Pillow's words; else "array"
    thumbnails: NDArray[np.uint8]  # (n, S, S)
    broken: dict[int, str]  # index -> why it cannot be read

    def __len__(self) -> int:
        return len(self.sizes)


def scan(source: Source, *, num_workers: int | None = None) -> Scan:
    """Read every image of the source once, here, and decode it in `num_workers` threads (None: one per core)."""
    n = len(source)
    digests, sizes, modes = np.zeros(n, "S32"), np.zeros((n, 2), np.int32), np.zeros(n, "U8")
    thumbnails = np.zeros((n, THUMBNAIL, THUMBNAIL), np.uint8)
    broken: dict[int, str] = {}
    with ThreadPoolExecutor(num_workers or os.cpu_count()) as pool:
        for start in progress(range(0, n, BATCH), -(-n // BATCH), f"reading {source.name}"):
            images = [_read(source, index) for index in range(start, min(start + BATCH, n))]
            for index, row in enumerate(pool.map(_describe, images), start):
                if isinstance(row, str):
                    broken[index] = row
                else:
                    digests[index], sizes[index], modes[index], thumbnails[index] = row
    return Scan(digests, sizes, modes, thumbnails, broken)


# Digest, (height, width), mode and thumbnail of an image; text: why it cannot be read.
Row = tuple[bytes, tuple[int, int], str, NDArray[np.uint8]] | str


def _read(source: Source, index: int) -> tuple[str, bytes | np.ndarray | None]:
    """Return the key and the image of an example; a reason and None where it cannot be read."""
    try:
        return source.key(index), source.read(index).image
    except DataError as error:
        return str(error), None


def _describe(example: tuple[str, bytes | np.ndarray | None]) -> Row:
    key, image = example
    if image is None:
        return key
    try:
        pixels = decode(image, name=key) if isinstance(image, bytes) else image
        mode = stored_mode(image) if isinstance(image, bytes) else "array"
    except DataError as error:
        return str(error)
    stored = image
    if isinstance(stored, np.ndarray):
        stored = repr(stored.shape).encode() + np.ascontiguousarray(stored).tobytes()
    digest = hashlib.blake2b(stored, digest_size=16).hexdigest().encode()
    return digest, pixels.shape[:2], mode, thumbnail(pixels)


def thumbnail(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Reduce (H, W, 3) RGB to (S, S) grey levels."""
    rows = max(1, STRIP // pixels.shape[1])
    strips = (pixels[top : top + rows] for top in range(0, len(pixels), rows))
    grey = Image.fromarray(
        np.concatenate([np.asarray(Image.fromarray(strip).convert("L")) for strip in strips])
    )
    return np.asarray(grey.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BILINEAR, reducing_gap=4.0))
