"""One pass over the images of a source: what the audit and the search for copies remember of each.

    Source ──► scan ──► Scan (about 1 KiB an image) ──► audit.py, duplicates.py, leaks.py

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
from rich.progress import Progress
from torch.utils.data import DataLoader, Dataset

from vitrail.data.decode import decode, stored_mode
from vitrail.data.rgb import STRIP
from vitrail.data.sources import Source
from vitrail.data.workers import begin_worker, start_fork_server
from vitrail.errors import DataError

THUMBNAIL = 32  # S
PROCESSES = 2  # that read and decode, when there are at least PARALLEL images: starting them takes seconds
PARALLEL = 5000


@dataclass(frozen=True)
class Scan:
    """What was seen. An image that could not be read has size 0 x 0, no digest and a black thumbnail."""

    digests: NDArray[np.bytes_]  # S32 (n,): BLAKE2b of the file, or of shape and pixels, in hexadecimal
    sizes: NDArray[np.int32]  # (n, 2): height, width
    modes: NDArray[np.str_]  # (n,): how the file stores pixels, in Pillow's words; else "array"
    thumbnails: NDArray[np.uint8]  # (n, S, S)
    broken: dict[int, str]  # index -> why it cannot be read

    def __len__(self) -> int:
        return len(self.sizes)


def scan(source: Source, *, processes: int | None = None, progress: Progress | None = None) -> Scan:
    """Read every image of the source once, in `processes` further processes (None: as many as help)."""
    n = len(source)
    if processes is None:
        processes = min(PROCESSES, os.cpu_count() or 1) if n >= PARALLEL else 0
    # Forked from a server, not from here: a fork is not safe beside the threads of torch and of a progress bar.
    if processes:
        start_fork_server(preload=__name__)
    loader: DataLoader[_Seen] = DataLoader(
        _Reader(source),
        batch_size=64,
        num_workers=processes,
        collate_fn=list,
        multiprocessing_context="forkserver" if processes else None,
        worker_init_fn=begin_worker,
    )
    task = progress.add_task(f"reading {source.name}", total=n) if progress else None
    digests, sizes, modes = np.zeros(n, "S32"), np.zeros((n, 2), np.int32), np.zeros(n, "U8")
    thumbnails = np.zeros((n, THUMBNAIL, THUMBNAIL), np.uint8)
    broken: dict[int, str] = {}
    index = 0
    for batch in loader:
        for seen in batch:
            digests[index], sizes[index], modes[index] = seen.digest, seen.size, seen.mode
            thumbnails[index] = seen.thumbnail
            if seen.reason:
                broken[index] = seen.reason
            index += 1
        if progress and task is not None:
            progress.advance(task, len(batch))
    return Scan(digests, sizes, modes, thumbnails, broken)


@dataclass(frozen=True)
class _Seen:
    digest: bytes
    size: tuple[int, int]  # height, width
    mode: str
    thumbnail: NDArray[np.uint8]  # (S, S)
    reason: str = ""


class _Reader(Dataset[_Seen]):
    """The source as torch's loader wants it: index -> what is remembered of that image."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> _Seen:
        try:
            return _see(self.source.read(index).image, self.source.key(index))
        except DataError as error:
            return _Seen(b"", (0, 0), "", np.zeros((THUMBNAIL, THUMBNAIL), np.uint8), str(error))


def _see(image: bytes | np.ndarray, key: str) -> _Seen:
    if isinstance(image, bytes):
        pixels, stored = decode(image, name=key), image
    else:
        pixels, stored = image, repr(image.shape).encode() + np.ascontiguousarray(image).tobytes()
    height, width, _ = pixels.shape
    return _Seen(
        hashlib.blake2b(stored, digest_size=16).hexdigest().encode(),
        (height, width),
        stored_mode(image) if isinstance(image, bytes) else "array",
        thumbnail(pixels),
    )


def thumbnail(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(H, W, 3) RGB -> (S, S) grey levels."""
    rows = max(1, STRIP // pixels.shape[1])
    strips = (pixels[top : top + rows] for top in range(0, len(pixels), rows))
    grey = Image.fromarray(
        np.concatenate([np.asarray(Image.fromarray(strip).convert("L")) for strip in strips])
    )
    return np.asarray(grey.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BILINEAR, reducing_gap=4.0))
