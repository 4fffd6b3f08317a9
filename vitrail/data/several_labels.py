"""Data sets whose images have any number of labels: `source.targets`, uint8 (n, K), says which.

Their `source.labels` holds one class of each image, its rarest, so that splits are cut class by class as usual. What
takes one label for each image refuses them by name. n images, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitrail.data.sources import Source
from vitrail.errors import ConfigError, DataError

MOST = 1 << 31  # numbers in the targets


def targets_of(source: Source) -> np.ndarray | None:
    """Return the targets, uint8 (n, K); None: each image has one label."""
    targets: np.ndarray | None = getattr(source, "targets", None)
    return targets


def class_counts(source: Source) -> np.ndarray:
    """Return how many images have each class, int64 (K,)."""
    targets = targets_of(source)
    if targets is not None:
        return targets.sum(axis=0, dtype=np.int64)
    return np.bincount(source.labels, minlength=len(source.class_names))


def make_targets(
    label_sets: Sequence[Sequence[int]], classes: int, where: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return targets (n, K), and the rarest class of each image, int64 (n,); the most frequent where it has none."""
    if len(label_sets) * classes > MOST:
        raise DataError(
            f"{where}: {len(label_sets):,} images times {classes:,} classes are more than {MOST:,}"
        )
    targets = np.zeros((len(label_sets), classes), np.uint8)
    for row, labels in zip(targets, label_sets, strict=True):
        row[list(labels)] = 1
    counts = targets.sum(axis=0, dtype=np.int64)  # (K,)
    rarity = np.where(targets > 0, counts, len(label_sets) + 1)  # (n, K)
    rarest = np.where(targets.any(axis=1), rarity.argmin(axis=1), counts.argmax())
    return targets, rarest.astype(np.int64)


def refuse_several(source: Source, what: str) -> None:
    """Raise ConfigError for a source with several labels an image."""
    if targets_of(source) is not None:
        raise ConfigError(f"{source.name} has several labels for an image, which {what} does not take")
