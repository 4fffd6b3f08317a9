"""Folds for predictions of images by a classifier that has not seen them, nor a copy of them.

    pairs of copies, groups that are given ──► connect ──► groups (n,) ──► assign_folds ──► folds (n,)

Each class is spread over the folds as evenly as its groups allow; a group is in one fold, so that copies, or the
pictures of one series, do not vouch for each other's labels.
"""

from __future__ import annotations

import numpy as np


def assign_folds(labels: np.ndarray, groups: np.ndarray, folds: int, seed: int = 0) -> np.ndarray:
    """Return the fold of each image, int64 (n,); large groups first, each where its classes are fewest."""
    n, classes = len(labels), int(labels.max()) + 1
    order = np.argsort(groups, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    shuffled = np.argsort(np.random.PCG64([seed]).random_raw(len(members)), kind="stable")
    by_size = sorted(shuffled.tolist(), key=lambda g: -len(members[g]))
    fold = np.zeros(n, np.int64)
    counts = np.zeros((folds, classes), np.int64)
    sizes = np.zeros(folds, np.int64)
    for g in by_size:
        those = labels[members[g]]
        best = int(np.lexsort((sizes, counts[:, those].sum(axis=1)))[0])
        fold[members[g]] = best
        np.add.at(counts[best], those, 1)
        sizes[best] += len(those)
    return fold
