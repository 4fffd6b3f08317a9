"""Shortcuts: labels that can be told from what has nothing to do with what is in the picture.

If the images of one class come from one camera or one web site, its files are larger, its pictures wider or framed;
a model learns that instead, and fails elsewhere. So the labels are predicted, out of fold, from each of

    file size    bytes, bytes for each pixel
    border       mean and deviation of the colours along each side, 1/32 of the image wide
    size         height, width
    metadata     format, mode, quality and kind of compression, sizes of EXIF and comments

by the classes of the nearest images, in ranks, which do not depend on units. Chance is the share of the largest
class.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from vitrail.checkpoints.json_files import Number
from vitrail.curate.findings import Origin, Shortcut
from vitrail.curate.measures import Measures
from vitrail.evaluators.score import accuracy_interval
from vitrail.runtime.progress import progress

NEIGHBOURS = 15
MOST = 10_000  # images that are looked at, evenly spaced
MARGIN = 0.02  # above chance, from which it is a finding
MEANING: dict[Origin, str] = {
    "file size": "the size of the file",
    "border": "the colours along the edge of the picture",
    "size": "the height and width of the picture",
    "metadata": "the format and compression of the file",
}


def find_shortcuts(
    measures: Sequence[Measures], sizes: np.ndarray, labels: np.ndarray, folds: np.ndarray, groups: np.ndarray
) -> list[Shortcut]:
    """Return the shortcuts, the most telling first; `sizes` (n, 2), the others (n,)."""
    every = -(-len(labels) // MOST)
    measures, sizes = measures[::every], sizes[::every]
    labels, folds, independent = labels[::every], folds[::every], len(np.unique(groups[::every]))
    columns: dict[Origin, np.ndarray] = {
        "border": np.stack([one.border for one in measures]),
        "size": sizes.astype(np.float64),
        "metadata": np.stack([one.metadata for one in measures]),
    }
    if all(one.bytes is not None for one in measures):
        stored = np.array([one.bytes for one in measures], np.float64)
        columns["file size"] = np.stack([stored, stored / sizes.prod(axis=1)], axis=1)
    chance = float(np.bincount(labels).max() / len(labels))
    found: list[Shortcut] = []
    for name, values in progress(columns.items(), len(columns), "shortcuts"):
        values = values[:, (values != values[0]).any(axis=0)]  # those that differ
        if not values.shape[1]:
            continue
        accuracy = float((nearest_class(ranks(values), labels, folds) == labels).mean())
        low, high = accuracy_interval(accuracy, independent)
        if low > chance + MARGIN:
            reason = (
                f"From {MEANING[name]} alone the class of {accuracy:.0%} of the images can be told "
                f"(chance: {chance:.0%}): a model may learn that instead of what is in the picture"
            )
            found.append(
                {
                    "from": name,
                    "accuracy": Number(accuracy),
                    "interval": [Number(low), Number(high)],
                    "chance": Number(chance),
                    "reason": reason,
                }
            )
    return sorted(found, key=lambda one: -one["accuracy"])


def ranks(values: np.ndarray) -> np.ndarray:
    """Replace each number by the share of those of its column that are below it, ties in the middle: (n, d)."""
    columns = []
    for column in values.T:
        _, place, counts = np.unique(column, return_inverse=True, return_counts=True)
        columns.append(((np.cumsum(counts) - counts / 2) / len(column))[place])
    return np.stack(columns, axis=1)


def nearest_class(x: np.ndarray, labels: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return the class that most of the nearest images of the other folds have; of equals, the lower: (n,)."""
    predicted = np.zeros_like(labels)
    t, y = torch.from_numpy(x).float(), torch.from_numpy(labels)
    for fold in np.unique(folds):
        others = torch.from_numpy(np.flatnonzero(folds != fold))
        for queries in torch.from_numpy(np.flatnonzero(folds == fold)).split(1024):
            distance = torch.cdist(t[queries], t[others])  # (b, N)
            near = distance.topk(min(NEIGHBOURS, len(others)), largest=False).indices  # (b, k)
            votes = torch.zeros(len(queries), int(y.max()) + 1)
            votes.scatter_add_(1, y[others][near], torch.ones(near.shape))
            predicted[queries.numpy()] = votes.argmax(dim=1).numpy()
    return predicted
