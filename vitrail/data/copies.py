"""The search for copies: images that are the same picture, between two sets or inside one.

    Source ──► scan ──► Scan (about 1 KiB an image) ──► find_pairs(first, second) ──► pairs ──► audit.py, dedup.py

A copy is the same file, or the same picture after a common change: compressed again, resized, cropped by about 5%
a side, made a little brighter or darker, mirrored, or reduced to the central square of a wider picture.

  search   the 8 x 8 lowest cosine frequencies of each thumbnail, the mean left out and the rest weighted by
           frequency (pictures have power 1/f^2: weighted, all count alike), as a unit vector d. Two images are
           candidates when d_f . d_g > ALIKE for one of the VIEWS. Mirroring changes the sign of the odd
           horizontal frequencies, so the products E of the even and O of the odd ones serve both:
               max(E + O, E - O) = E + |O|
  verify   alignment.py registers each candidate and scores it; from THRESHOLD on it is the same picture

Every view that makes a pair a candidate is verified, the score is the mean of both directions, and the best view
counts: neither other images nor which of the two comes first decides whether they are a pair. So `data inspect`,
`data dedup` and its exclusions agree. docs/results/dedup.md has the recall and the precision.

A flat image, whose thumbnail deviates by less than FLAT grey levels, is compared by its bytes only. For each image of
the first set, the MOST most similar candidates are verified, which bounds the work if all images are similar. Nothing
is random. Memory is bounded: the scans, 2 KiB for each image of the second set, and one block of
similarities.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from vitrail.data.alignment import same_picture
from vitrail.data.bad_files import BadExample
from vitrail.data.decode import decode, stored_mode
from vitrail.data.map_images import map_images
from vitrail.data.sources import Source
from vitrail.data.upright import STRIP
from vitrail.runtime.progress import progress

THUMBNAIL = 32  # S
ALIKE = 0.7
THRESHOLD = 0.75  # set on the first half of Tiny-ImageNet's training images: docs/results/dedup.md
FLAT = 2.0
MOST = 64
FREQUENCIES = 8
HALF = FREQUENCIES * FREQUENCIES // 2  # of a vector: the even horizontal frequencies
BLOCK = 1 << 22  # similarities in memory at a time
AT_ONCE = 2048  # thumbnails that become vectors, or pairs that are verified, together
INNER = 0.9  # what a crop of 5% at both ends leaves of a side
SQUEEZED = 0.75  # what the central square of a 4:3 picture shows of the longer side
OBLONG = 0.95  # short over long side below which an image is not square

# The views compared: of the first set, of the second. `square`, of an oblong image, is its central square.
# `narrow` and `low`, of a square image, are the middle of its width and of its height: what the central square
# shows of a picture that was squeezed to be square.
PARTS = ("inner", "square", "inner square", "narrow", "low")
VIEWS = (("whole", "whole"), *((part, "whole") for part in PARTS), *(("whole", part) for part in PARTS))


@dataclass(frozen=True)
class Scan:
    """Facts about all images. One that could not be read has size 0 x 0, no digest and a black thumbnail."""

    digests: NDArray[np.bytes_]  # S32 (n,): BLAKE2b of the file, or of shape and pixels, in hexadecimal
    sizes: NDArray[np.int32]  # (n, 2): height, width
    modes: NDArray[np.str_]  # (n,): how the file stores pixels, in Pillow's words; else "array"
    thumbnails: NDArray[np.uint8]  # (n, S, S): the whole image squeezed into a square, in grey levels
    broken: dict[int, str]  # index -> why it cannot be read
    measures: list[Any] = field(default_factory=list)  # (n,): what `measure` of `scan` returned, or None

    def __len__(self) -> int:
        return len(self.sizes)


def scan(
    source: Source,
    *,
    num_workers: int | None = None,
    measure: Callable[[bytes | np.ndarray, NDArray[np.uint8]], object] | None = None,
) -> Scan:
    """Read every image of the source once, here, and decode it in `num_workers` threads (None: one per core).

    `measure`: called with each image as it is stored, and its pixels, in one of the threads.
    """
    n = len(source)
    measures: list[Any] = [None] * n
    digests, sizes, modes = np.zeros(n, "S32"), np.zeros((n, 2), np.int32), np.zeros(n, "U8")
    thumbnails = np.zeros((n, THUMBNAIL, THUMBNAIL), np.uint8)
    broken: dict[int, str] = {}

    def describe(image: bytes | np.ndarray, key: str) -> tuple[Any, ...]:
        if isinstance(image, bytes):
            stored, pixels, mode = image, decode(image, name=key), stored_mode(image)
        else:
            pixels, mode = image, "array"
            stored = repr(image.shape).encode() + np.ascontiguousarray(image).tobytes()
        digest = hashlib.blake2b(stored, digest_size=16).hexdigest().encode()
        measured = None if measure is None else measure(image, pixels)
        return digest, pixels.shape[:2], mode, thumbnail(pixels), measured

    rows = map_images(source, describe, threads=num_workers)
    for index, row in enumerate(progress(rows, n, f"reading {source.name}")):
        if isinstance(row, BadExample):
            broken[index] = row.reason
        else:
            digests[index], sizes[index], modes[index], thumbnails[index], measures[index] = row
    return Scan(digests, sizes, modes, thumbnails, broken, measures)


def thumbnail(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Reduce (H, W, 3) RGB to (S, S) grey levels."""
    rows = max(1, STRIP // pixels.shape[1])
    strips = (pixels[top : top + rows] for top in range(0, len(pixels), rows))
    grey = np.concatenate([np.asarray(Image.fromarray(strip).convert("L")) for strip in strips])
    small = Image.fromarray(grey).resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BILINEAR, reducing_gap=4.0)
    return np.asarray(small)


class Pair(NamedTuple):
    """Image i of the first set and image j of the second that are the same picture."""

    i: int
    j: int
    score: float  # 1 for the same bytes
    how: str  # "bytes", "near" or "mirrored"


def find_pairs(first: Scan, second: Scan | None = None, *, threshold: float = THRESHOLD) -> list[Pair]:
    """Find the pairs between two sets, by i, then j; without a second one, those inside the first, with i < j.

    Each of several equal files inside one set is paired with the earliest of them, not with all others.
    """
    other = first if second is None else second
    places: dict[bytes, list[int]] = {}  # of equal files
    for index, digest in enumerate(other.digests):
        if digest:
            places.setdefault(digest, []).append(index)
    if second is None:
        same = [(equal[0], later) for equal in places.values() for later in equal[1:]]
    else:
        same = [(i, j) for i, digest in enumerate(first.digests) for j in places.get(digest, [])[:MOST]]
    pairs = [Pair(i, j, 1.0, "bytes") for i, j in same]

    blocks = [_vectors(other, slice(k, k + AT_ONCE)) for k in range(0, max(1, len(other)), AT_ONCE)]
    vectors = {view: torch.cat([part[view] for part in blocks]) for view in blocks[0]}
    candidates = [np.empty((2, 0), np.int64)]
    rows = max(1, BLOCK // max(1, len(other)))
    starts = range(0, len(first), rows)
    for start in progress(starts, len(starts), "comparing"):
        own = _vectors(first, slice(start, start + rows))
        left = start if second is None else 0  # inside one set, i < j
        best = torch.zeros(len(own["whole"]), len(other) - left)
        for view, other_view in VIEWS:
            a, b = own[view], vectors[other_view][left:]
            if a.any() and b.any():  # otherwise no image has this view
                odd = a[:, HALF:] @ b[:, HALF:].T
                torch.maximum(best, odd.abs_().addmm_(a[:, :HALF], b[:, :HALF].T), out=best)
        if second is None:
            best.triu_(1)
        for row in ((best > ALIKE).sum(1) > MOST).nonzero()[:, 0]:
            best[row] *= best[row] >= best[row].topk(MOST).values[-1]
        candidates.append((best > ALIKE).nonzero().T.numpy() + np.array([[start], [left]]))
    i, j = np.concatenate(candidates, 1)  # (m,) each
    different = first.digests[i] != other.digests[j]
    i, j = i[different], j[different]
    chunks = range(0, len(i), AT_ONCE)
    for k in progress(chunks, len(chunks), "verifying"):
        pairs += _verified(first, other, i[k : k + AT_ONCE], j[k : k + AT_ONCE], threshold)
    return sorted(pairs)


def _verified(
    first: Scan, other: Scan, i: NDArray[np.int64], j: NDArray[np.int64], threshold: float
) -> list[Pair]:
    """Return the candidates that are the same picture, each by its best view."""
    own, vectors = _vectors(first, i), _vectors(other, j)
    best, mirrored = torch.full((len(i),), -1.0), torch.zeros(len(i), dtype=torch.bool)
    for view, other_view in VIEWS:
        even, odd = (own[view] * vectors[other_view]).unflatten(1, (2, HALF)).sum(2).unbind(1)  # (m,) each
        here = (even + odd.abs() > ALIKE).nonzero()[:, 0]
        a, b, mirror = i[here.numpy()], j[here.numpy()], odd[here] < 0
        f, g = torch.from_numpy(first.thumbnails[a]), torch.from_numpy(other.thumbnails[b])  # (n, S, S)
        g = torch.where(mirror[:, None, None], g.flip(-1), g)
        scale = _visible_part(first.sizes[a], view) / _visible_part(other.sizes[b], other_view)  # (n, 2)
        score = same_picture(f, g, scale)
        # The mean of both directions: it does not matter which set comes first, and chance matches of one are
        # dropped. Only of these can the mean reach the threshold.
        able = score >= 2 * threshold - 1
        score[able] = (score[able] + same_picture(g[able], f[able], 1 / scale[able])) / 2
        better = score > best[here]
        best[here[better]], mirrored[here[better]] = score[better], mirror[better]
    rows = zip(i.tolist(), j.tolist(), best.tolist(), mirrored.tolist(), strict=True)
    return [Pair(*row[:3], "mirrored" if row[3] else "near") for row in rows if row[2] >= threshold]


def _vectors(scan: Scan, rows: slice | NDArray[np.int64]) -> dict[str, Tensor]:
    """Compute the unit vectors d (n, 64) of each view, even horizontal frequencies first; 0: not compared."""
    frequency = torch.arange(FREQUENCIES, dtype=torch.float32)
    weight = torch.hypot(frequency[:, None], frequency)  # (k, l); 0 for the mean
    picture = torch.from_numpy(scan.thumbnails[rows]).float()  # (n, S, S)
    picture = picture - picture.mean((1, 2), keepdim=True)
    uneven = picture.square().mean((1, 2)).sqrt() >= FLAT
    sizes = scan.sizes[rows]
    oblong = torch.from_numpy(sizes.min(1) < OBLONG * sizes.max(1))
    vectors = {}
    for view in ("whole", *PARTS):
        part = _visible_part(sizes, view)  # (n, 2)
        d = _cosines(part[:, 1]) @ picture @ _cosines(part[:, 0]).mT * weight  # (n, k, l)
        d = torch.cat((d[:, :, 0::2].flatten(1), d[:, :, 1::2].flatten(1)), 1)  # (n, 64)
        compared = uneven & (view in ("whole", "inner") or oblong == ("square" in view))
        vectors[view] = functional.normalize(d) * compared[:, None]
    return vectors


def _cosines(part: Tensor) -> Tensor:
    """Sample the cosines over the middle part of an axis, `part` of it wide, at its S pixels: (n, 8, S)."""
    x = (torch.arange(THUMBNAIL) + 0.5) * (2 / THUMBNAIL) - 1
    covered = ((part[:, None] - x.abs()) * (THUMBNAIL / 2) + 0.5).clamp(0, 1)[:, None]  # (n, 1, S)
    angle = (x / part[:, None] + 1) * (math.pi / 2)  # (n, S)
    return torch.cos(torch.arange(FREQUENCIES)[:, None] * angle[:, None]) * covered  # (n, 8, S)


def _visible_part(sizes: NDArray[np.int32], view: str) -> Tensor:
    """Return how much of the width and of the height a view shows: (n, 2)."""
    part = np.broadcast_to(
        [SQUEEZED if view == "narrow" else 1.0, SQUEEZED if view == "low" else 1.0], sizes.shape
    )
    if "square" in view:
        part = (sizes.min(1, keepdims=True) / sizes[:, ::-1].clip(min=1)).clip(min=0.1)  # (n, 2)
    return torch.from_numpy(part * (INNER if "inner" in view else 1)).float()
