"""Choosing examples class by class: a part of each class, or one set split in three.

Both are functions of a seed alone: they depend neither on the order of a directory listing nor on the release
of numpy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


def class_members(labels: np.ndarray, classes: int) -> list[np.ndarray]:
    """Return the examples of each class, in the order of the data."""
    counts = np.bincount(labels, minlength=classes)
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])


def shuffled_classes(labels: np.ndarray, classes: int, seed: int) -> list[np.ndarray]:
    """Return the examples of each class, in an order by (seed, class)."""
    # Raw words of a bit generator stay the same from one numpy to the next; its permutations need not.
    return [
        members[np.argsort(np.random.PCG64([seed, c]).random_raw(len(members)), kind="stable")]
        for c, members in enumerate(class_members(labels, classes))
    ]


def stratified(
    keys: Sequence[bytes], labels: np.ndarray, *, seed: int, validation: float, test: float
) -> dict[str, np.ndarray]:
    """Split one set in three, class by class: {train, validation, test} -> indices in order.

    Within a class the examples are ranked by a hash of (seed, key): the first round(test n) are the test set,
    the next round(validation n) the validation set, the rest, at least one, train. Neither the order of the
    files nor other classes matter, and a new file moves few others.
    """
    salt = str(seed).encode()
    rank = np.array([_hash(salt, key) for key in keys], dtype=np.uint64)
    order = np.lexsort((rank, labels))
    counts = np.bincount(labels)
    place = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)  # rank within the class
    n_test = np.minimum(np.rint(counts * test), counts - 1).astype(np.int64)
    n_held = np.minimum(n_test + np.rint(counts * validation), counts - 1).astype(np.int64)
    ends_test, ends_held = n_test[labels[order]], n_held[labels[order]]
    return {
        "train": np.sort(order[place >= ends_held]),
        "validation": np.sort(order[(place >= ends_test) & (place < ends_held)]),
        "test": np.sort(order[place < ends_test]),
    }


def _hash(salt: bytes, key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8, key=salt).digest(), "little")
