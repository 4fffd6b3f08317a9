"""The learning curve: accuracy by the number of images of a class, and what more images would bring.

    shares of the images of each class ──discriminant, out of fold──► right or wrong (n,) at each share ──► Curve

Intervals are of 95%, from 500 draws of the images with replacement, of whole groups of copies at a time. Beyond the
data, the error is continued as a power of the number of images, a straight line in logarithms through the last three
points; how it really goes on nobody knows, and the interval does not contain that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from vitrail.checkpoints.json_files import Number
from vitrail.curate.findings import Curve
from vitrail.curate.folds import assign_folds
from vitrail.curate.out_of_fold import Discriminant
from vitrail.data.readers.class_names import readable
from vitrail.data.splits import shuffled_classes
from vitrail.runtime.progress import progress

FOLDS = 5
SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)
DRAWS = 3  # of each share
LEAST = 4  # groups of a class, on average, and LEAST_ALL in all: fewer have no curve
LEAST_ALL = 50
RESAMPLED = 500
NAMED = 3  # classes
BLOCK = 8192


def learning_curve(
    x: np.ndarray, labels: np.ndarray, groups: np.ndarray, class_names: list[str], shrinkage: float
) -> Curve | None:
    """Return the curve; None where there are too few images for one."""
    classes = len(class_names)
    present = len(np.unique(labels))
    if present < 2 or len(np.unique(groups)) < max(LEAST_ALL, LEAST * present):
        return None
    folds = assign_folds(labels, groups, FOLDS)
    right = np.zeros((len(SHARES), len(labels)))  # (P, n): share of the draws
    runs = [
        (p, draw, fold) for p in range(len(SHARES)) for draw in range(draws_of(p)) for fold in range(FOLDS)
    ]
    sizes = np.zeros(len(SHARES))  # images that were learned from, on average
    for p, draw, fold in progress(runs, len(runs), "learning curve"):
        taken = part(labels, folds != fold, SHARES[p], classes, draw)
        sizes[p] += len(taken) / draws_of(p) / FOLDS
        classifier = Discriminant(x[taken], labels[taken], classes)
        for here in np.array_split(np.flatnonzero(folds == fold), -(-len(labels) // BLOCK)):
            if len(here):
                predicted = classifier(x[here], shrinkage).argmax(dim=1).numpy()
                right[p, here] += (predicted == labels[here]) / draws_of(p)
    accuracy, drawn = right.mean(axis=1), resampled(right, groups)  # (P,), (RESAMPLED, P)
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)  # (P,) each
    return {
        "images_per_class": numbers(sizes / present),
        "accuracy": numbers(accuracy),
        "low": numbers(low),
        "high": numbers(high),
        "more": more(accuracy, drawn, right, labels, class_names),
    }


def numbers(values: Iterable[float]) -> list[Number]:
    return [Number(round(float(value), 4)) for value in values]


def draws_of(p: int) -> int:
    return DRAWS if SHARES[p] < 1 else 1


def part(labels: np.ndarray, usable: np.ndarray, share: float, classes: int, seed: int) -> np.ndarray:
    """Return a share of the usable images of each class, at least one."""
    taken = []
    for members in shuffled_classes(labels, classes, seed):
        those = members[usable[members]]
        taken.append(those[: max(1, round(share * len(those)))])
    return np.sort(np.concatenate(taken))


def resampled(right: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the accuracies (RESAMPLED, P) of draws of the groups with replacement."""
    _, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    sums = np.stack([np.bincount(place, weights=row) for row in right], axis=1)  # (G, P)
    rng = np.random.default_rng(0)
    drawn = np.empty((RESAMPLED, len(right)))
    for i in range(RESAMPLED):
        times = np.bincount(rng.integers(0, len(sizes), len(sizes)), minlength=len(sizes))  # (G,)
        drawn[i] = times @ sums / (times @ sizes)
    return drawn


def gain(accuracy: np.ndarray) -> np.ndarray:
    """Return what twice the images would add to the last of accuracies (..., P), by a power of their number."""
    error = np.log(np.clip(1 - accuracy[..., -3:], 1e-6, 1))  # (..., 3)
    steps = np.log2(SHARES[-3:]) - np.mean(np.log2(SHARES[-3:]))  # (3,)
    slope = np.minimum(error @ steps / (steps @ steps), 0)  # (...), for each doubling
    return (1 - accuracy[..., -1]) * (1 - np.exp(slope))


def more(
    accuracy: np.ndarray, drawn: np.ndarray, right: np.ndarray, labels: np.ndarray, class_names: list[str]
) -> str:
    """Say what twice the images would bring, and for which classes."""
    low, high = np.quantile(gain(drawn), (0.025, 0.975))
    text = (
        f"Twice the images would bring about {100 * gain(accuracy):.1f} points of accuracy more "
        f"(95%: {100 * low:.1f} to {100 * high:.1f}), if the curve goes on as it does."
    )
    rises = []
    for k in np.unique(labels):
        rise = (right[-1] - right[-2])[labels == k]
        if len(rise) > 1 and rise.mean() > 1.96 * rise.std(ddof=1) / math.sqrt(len(rise)):
            rises.append((float(rise.mean()), readable(class_names[k])))
    if rises:
        named = ", ".join(name for _, name in sorted(rises, reverse=True)[:NAMED])
        text += f" The last half of them helped most with: {named}."
    return text
