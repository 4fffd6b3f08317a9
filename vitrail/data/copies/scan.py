"""One pass over the images of a source: what the audit and the search for copies remember of each.

    Source ──► scan ──► Scan (about 1 KiB an image) ──► duplicates.py, audit.py, dedup.py

Of each image: a digest of its bytes, its size, how its pixels are stored, and a thumbnail of S x S grey
levels, the whole image squeezed into a square. An image that cannot be read keeps its place, with the reason.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.bad_files import BadExample
from vitrail.data.decode import decode, stored_mode
from vitrail.data.map_images import map_images
from vitrail.data.sources import Source
from vitrail.data.upright import STRIP
from vitrail.runtime.progress import progress

THUMBNAIL = 32  # S


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
    rows = map_images(source, describe, threads=num_workers)
    for index, row in enumerate(progress(rows, n, f"reading {source.name}")):
        if isinstance(row, BadExample):
            broken[index] = row.reason
        else:
            digests[index], sizes[index], modes[index], thumbnails[index] = row
    return Scan(digests, sizes, modes, thumbnails, broken)


def describe(image: bytes | np.ndarray, key: str) -> tuple[bytes, tuple[int, int], str, NDArray[np.uint8]]:
    """Return digest, (height, width), mode and thumbnail of an image."""
    if isinstance(image, bytes):
        stored, pixels, mode = image, decode(image, name=key), stored_mode(image)
    else:
        pixels, mode = image, "array"
        stored = repr(image.shape).encode() + np.ascontiguousarray(image).tobytes()
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
