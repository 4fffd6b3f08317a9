"""One pass over the images of a source: what the audit and the search for copies remember of each.

    Source ──► scan ──► Scan (about 1 KiB an image) ──► duplicates.py, audit.py, dedup.py

Of each image: a digest of its bytes, its size, how its pixels are stored, and a thumbnail of S x S grey
levels, the whole image squeezed into a square. An image that cannot be read keeps its place, with the reason.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from vitrail.data.decode import decode, stored_mode
from vitrail.data.sources import Source
from vitrail.data.upright import STRIP
from vitrail.data.workers import begin_worker, start_fork_server
from vitrail.errors import DataError
from vitrail.runtime.progress import progress

THUMBNAIL = 32  # S
BATCH = 64  # images that a process sends at a time
PROCESSES = 2  # that read and decode, when there are at least PARALLEL images: starting them takes seconds
PARALLEL = 5000


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
    """Read every image of the source once, in `num_workers` further processes (None: as many as help)."""
    n = len(source)
    if num_workers is None:
        num_workers = min(PROCESSES, os.cpu_count() or 1) if n >= PARALLEL else 0
    # Forked from a server, not from here: a fork is not safe beside the threads of torch and of a progress bar.
    if num_workers:
        start_fork_server(preload=__name__)
    loader: DataLoader[Row] = DataLoader(
        _Reader(source),
        batch_size=BATCH,
        num_workers=num_workers,
        collate_fn=list,
        multiprocessing_context="forkserver" if num_workers else None,
        worker_init_fn=begin_worker,
    )
    digests, sizes, modes = np.zeros(n, "S32"), np.zeros((n, 2), np.int32), np.zeros(n, "U8")
    thumbnails = np.zeros((n, THUMBNAIL, THUMBNAIL), np.uint8)
    broken: dict[int, str] = {}
    rows = (row for batch in loader for row in batch)
    for index, row in enumerate(progress(rows, n, f"reading {source.name}")):
        if isinstance(row, str):
            broken[index] = row
        else:
            digests[index], sizes[index], modes[index], thumbnails[index] = row
    return Scan(digests, sizes, modes, thumbnails, broken)


# Digest, (height, width), mode and thumbnail of an image; text: why it cannot be read.
Row = tuple[bytes, tuple[int, int], str, NDArray[np.uint8]] | str


class _Reader(Dataset[Row]):
    """The source as torch's loader wants it: index -> what is remembered of that image."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Row:
        try:
            image = self.source.read(index).image
            if isinstance(image, bytes):
                pixels, stored, mode = decode(image, name=self.source.key(index)), image, stored_mode(image)
            else:
                pixels, mode = image, "array"
                stored = repr(image.shape).encode() + np.ascontiguousarray(image).tobytes()
        except DataError as error:
            return str(error)
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
