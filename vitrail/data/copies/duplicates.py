"""The search for copies: images that are the same picture, between two sets or inside one.

    Source ──► scan.py ──► find_pairs(first, second) ──► Pairs ──► audit.py, dedup.py

A copy is the same file, or the same picture after what people do to pictures: compressed again, resized,
cropped by some 5% a side, made a little brighter or darker, mirrored, or taken as the central square of a
wider picture.

  search   the 8 x 8 lowest cosine frequencies of each thumbnail, the mean left out and the rest weighted by
           frequency (pictures have power 1/f^2: weighted, all count alike), as a unit vector d. Two images are
           candidates when d_f . d_g > ALIKE for one of the VIEWS. Mirroring changes the sign of the odd
           horizontal frequencies, so the products E of the even and O of the odd ones serve both:
               max(E + O, E - O) = E + |O|
  verify   alignment.py registers each candidate and scores it; from THRESHOLD on it is the same picture

Every view that makes a pair a candidate is verified, the score is the mean of both directions, and the best view
counts: neither other images nor which of the two comes first decides whether they are a pair. So `data inspect`,
`data dedup` and its exclusions agree. docs/results/dedup.md has the recall and the precision.

A flat image, whose thumbnail deviates by less than FLAT grey levels, has no picture to compare, only bytes. Of each
image of the first set the MOST most similar candidates are verified, which bounds the work where all images are
alike. Nothing is random. Memory is bounded: the scans, 2 KiB for each image of the second set, and one block of
similarities.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from vitrail.data.copies.alignment import same_picture
from vitrail.data.copies.scan import THUMBNAIL, Scan
from vitrail.runtime.progress import progress

ALIKE = 0.7
THRESHOLD = 0.75  # set on the first half of Tiny-ImageNet's training images: docs/results/dedup.md
FLAT = 2.0
MOST = 64
FREQUENCIES = 8
BLOCK = 2048  # rows and columns of similarities in memory at a time
INNER = 0.9  # what a crop of 5% at both ends leaves of a side
SQUEEZED = 0.75  # what the central square of a 4:3 picture shows of the longer side
OBLONG = 0.95  # short over long side below which an image is not square

# The views compared: of the first set, of the second. `square`, of an oblong image, is its central square.
# `narrow` and `low`, of a square image, are the middle of its width and of its height: what the central square
# shows of a picture that was squeezed to be square.
VIEWS = (
    ("whole", "whole"),
    ("inner", "whole"),
    ("whole", "inner"),
    ("square", "whole"),
    ("whole", "square"),
    ("inner square", "whole"),
    ("whole", "inner square"),
    ("narrow", "whole"),
    ("whole", "narrow"),
    ("low", "whole"),
    ("whole", "low"),
)
CANDIDATE = np.dtype([("i", "i8"), ("j", "i8"), ("view", "i1"), ("mirrored", "?"), ("alike", "f4")])


@dataclass(frozen=True)
class Pairs:
    """Images i of the first set and j of the second that are the same picture; by i, then j."""

    i: NDArray[np.int64]
    j: NDArray[np.int64]
    score: NDArray[np.float32]  # 1 for the same bytes
    how: NDArray[np.str_]  # "bytes", "near" or "mirrored"

    def __len__(self) -> int:
        return len(self.i)

    def __iter__(self) -> Iterator[tuple[int, int, float, str]]:
        return zip(self.i.tolist(), self.j.tolist(), self.score.tolist(), self.how.tolist(), strict=True)


def find_pairs(first: Scan, second: Scan | None = None, *, threshold: float = THRESHOLD) -> Pairs:
    """Find the pairs between two sets; without a second one, those inside the first, with i < j.

    Equal files inside one set are each listed with the earliest of them, not each with each.
    """
    other = first if second is None else second
    vectors = {view: _vectors(other, view, 0, len(other)) for view in sorted({view for _, view in VIEWS})}
    columns = [_same_bytes(first, second)]
    blocks = range(0, len(first), BLOCK)
    for start in progress(blocks, len(blocks), "comparing"):
        stop = min(start + BLOCK, len(first))
        candidates = _candidates(first, start, stop, vectors, inside=second is None)
        candidates = candidates[first.digests[candidates["i"]] != other.digests[candidates["j"]]]
        columns.append(_verified(first, other, candidates, threshold))
    i, j, score, how = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.lexsort((j, i))
    return Pairs(i[order], j[order], score[order], how[order])


PairColumns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.str_]]


def _same_bytes(first: Scan, second: Scan | None) -> PairColumns:
    """Find equal files: i, j, score, how.

    Within one set each copy goes with the earliest; between two, each image with all its equals.
    """
    places: dict[bytes, list[int]] = {}
    for index, digest in enumerate(first.digests if second is None else second.digests):
        if digest:
            places.setdefault(digest, []).append(index)
    if second is None:
        both = [(equal[0], later) for equal in places.values() for later in equal[1:]]
    else:
        both = [(i, j) for i, digest in enumerate(first.digests) for j in places.get(digest, [])[:MOST]]
    i, j = np.array(both, np.int64).reshape(-1, 2).T  # (m,), (m,)
    return i, j, np.ones(len(i), np.float32), np.full(len(i), "bytes", "U8")


def _verified(first: Scan, other: Scan, candidates: NDArray[np.void], threshold: float) -> PairColumns:
    """Return the candidates that are the same picture, each pair once, by its best view: i, j, score, how."""
    i, j, mirrored = candidates["i"], candidates["j"], candidates["mirrored"]
    f, g = torch.from_numpy(first.thumbnails[i]), torch.from_numpy(other.thumbnails[j])  # (m, S, S)
    g = torch.where(torch.from_numpy(mirrored)[:, None, None], g.flip(-1), g)
    scale = np.empty((len(candidates), 2), np.float32)
    for number, (view, other_view) in enumerate(VIEWS):
        here = candidates["view"] == number
        scale[here] = _visible_part(first.sizes[i[here]], view) / _visible_part(
            other.sizes[j[here]], other_view
        )
    score = same_picture(f, g, torch.from_numpy(scale)).numpy()
    # The mean of both directions: it does not matter which set comes first, and chance matches of one are dropped.
    # Only of these can the mean reach the threshold.
    able = np.flatnonzero(score >= 2 * threshold - 1)
    back = same_picture(g[able], f[able], torch.from_numpy(1 / scale[able])).numpy()
    score[able] = (score[able] + back) / 2
    best = np.lexsort((-score, j, i))
    best = best[_begins_pair(i[best], j[best])]
    same = best[score[best] >= threshold]
    return i[same], j[same], score[same], np.where(mirrored[same], "mirrored", "near").astype("U8")


def _candidates(
    first: Scan, start: int, stop: int, vectors: dict[str, Tensor], *, inside: bool
) -> NDArray[np.void]:
    """Return what is worth verifying in the rows start to stop of the first set, as CANDIDATE."""
    candidates = np.empty(0, CANDIDATE)
    for number, (view, other_view) in enumerate(VIEWS):
        a, b = _vectors(first, view, start, stop), vectors[other_view]
        if not (a.any() and b.any()):
            continue  # no image has this view
        for left in range(start if inside else 0, len(b), BLOCK):
            block = _alike(a, b[left : left + BLOCK])
            block["i"] += start
            block["j"] += left
            block["view"] = number
            if inside:
                block = block[block["i"] < block["j"]]
            if len(block):
                candidates = _most_alike(np.concatenate((candidates, block)))
    return candidates


def _alike(a: Tensor, b: Tensor) -> NDArray[np.void]:
    """Return the pairs of rows of a and b whose similarity, mirrored or not, is above ALIKE."""
    half = FREQUENCIES * FREQUENCIES // 2
    even = (a[:, :half] @ b[:, :half].T).numpy()  # (rows, columns)
    odd = (a[:, half:] @ b[:, half:].T).numpy()  # (rows, columns)
    similarity = np.abs(odd)
    similarity += even
    i, j = np.nonzero(similarity > ALIKE)
    block = np.zeros(len(i), CANDIDATE)
    block["i"], block["j"], block["mirrored"], block["alike"] = i, j, odd[i, j] < 0, similarity[i, j]
    return block


def _most_alike(candidates: NDArray[np.void]) -> NDArray[np.void]:
    """Keep the MOST most similar j of each i, each in all of its views."""
    candidates = candidates[np.lexsort((-candidates["alike"], candidates["j"], candidates["i"]))]
    begins = _begins_pair(candidates["i"], candidates["j"])
    i, alike = candidates["i"][begins], candidates["alike"][begins]  # of each pair, in its most similar view
    order = np.lexsort((-alike, i))
    rank = np.empty(len(i), np.int64)
    rank[order] = np.arange(len(i)) - np.searchsorted(i, i[order])
    return candidates[(rank < MOST)[np.cumsum(begins) - 1]]


def _begins_pair(i: NDArray[np.int64], j: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark where another pair begins in rows that are sorted by (i, j)."""
    begins = np.ones(len(i), bool)
    begins[1:] = (i[1:] != i[:-1]) | (j[1:] != j[:-1])
    return begins


def _vectors(scan: Scan, view: str, start: int, stop: int) -> Tensor:
    """Compute the unit vectors d (n, 64) of a view, even horizontal frequencies first; 0: not compared."""
    vectors = torch.zeros(stop - start, FREQUENCIES * FREQUENCIES)
    frequency = torch.arange(FREQUENCIES, dtype=torch.float32)
    weight = torch.hypot(frequency[:, None], frequency)  # (k, l); 0 for the mean
    for low in range(start, stop, BLOCK):
        part = slice(low, min(low + BLOCK, stop))
        picture = torch.from_numpy(scan.thumbnails[part]).float()  # (n, S, S)
        picture = picture - picture.mean((1, 2), keepdim=True)
        scale = torch.from_numpy(_visible_part(scan.sizes[part], view))  # (n, 2) or (1, 2)
        d = _cosines(scale[:, 1]) @ picture @ _cosines(scale[:, 0]).mT * weight  # (n, k, l)
        d = torch.cat((d[:, :, 0::2].flatten(1), d[:, :, 1::2].flatten(1)), 1)  # (n, 64)
        compared = picture.square().mean((1, 2)).sqrt() >= FLAT
        if view not in ("whole", "inner"):
            sizes = torch.from_numpy(scan.sizes[part])
            compared &= (sizes.amin(1) < OBLONG * sizes.amax(1)) == ("square" in view)
        vectors[low - start : part.stop - start] = functional.normalize(d) * compared[:, None]
    return vectors


def _cosines(scale: Tensor) -> Tensor:
    """Sample the cosines over the middle part of an axis, `scale` of it wide, at its S pixels: (n, 8, S)."""
    x = (torch.arange(THUMBNAIL) + 0.5) * (2 / THUMBNAIL) - 1
    covered = ((scale[:, None] - x.abs()) * (THUMBNAIL / 2) + 0.5).clamp(0, 1)[:, None]  # (n, 1, S)
    angle = (x / scale[:, None] + 1) * (math.pi / 2)  # (n, S)
    return torch.cos(torch.arange(FREQUENCIES)[:, None] * angle[:, None]) * covered  # (n, 8, S)


def _visible_part(sizes: NDArray[np.int32], view: str) -> NDArray[np.float32]:
    """Return how much of the width and of the height a view shows: (n, 2), or (1, 2) when it is the same for all."""
    if "square" in view:
        part = (sizes.min(1, keepdims=True) / sizes[:, ::-1].clip(min=1)).clip(min=0.1)  # (n, 2)
    else:
        part = np.array([[SQUEEZED if view == "narrow" else 1, SQUEEZED if view == "low" else 1]])
    return (part * (INNER if "inner" in view else 1)).astype(np.float32)
