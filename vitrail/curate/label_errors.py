"""Label errors: images whose label an out-of-fold prediction contradicts; and the classes that are confused.

The suspicion of an image with label y, from p = p(k | x) out of fold and m, the most probable other class, is

    s = log (sqrt(p_m) / p_y)

Ranking by 1 / p_y is best where labels are wrong at random, by p_m / p_y where similar classes are confused;
their geometric mean is close to the better one in both cases (docs/results/label_errors.md). Its sigmoid is the
score: 1/2 where p_y equals sqrt(p_m). It is no probability, since a label may also be right against all appearance.

n images, C classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vitrail.checkpoints.json_files import Count
from vitrail.curate.findings import ConfusedPair

REVIEWED = 0.2  # of the images are listed, at most
PAIRS = 20
LEAST = 3  # confused images from which classes are an ambiguous pair


@dataclass(frozen=True)
class Suspicions:
    """Suspicions of all images."""

    score: np.ndarray  # float64 (n,), 0 to 1
    suggested: np.ndarray  # int64 (n,): the most probable other class
    listed: np.ndarray  # int64 (m,): images to review, the most suspicious first


def suspect(log_p: np.ndarray, labels: np.ndarray, folds: np.ndarray) -> Suspicions:
    """Rank images by how wrong their labels look.

    Those are listed to which another class fits better than their own, at most a fifth of the images. An image is
    not suspected if its class is not in the other folds: nothing is known of that class.
    """
    rows = np.arange(len(labels))
    own = log_p[rows, labels]  # (n,)
    others = log_p.copy()
    others[rows, labels] = -np.inf
    suggested = others.argmax(axis=1)  # (n,)
    other = others[rows, suggested]  # (n,)
    s = other / 2 - own
    score = 1 / (1 + np.exp(-s))
    counts = np.zeros((folds.max() + 1, log_p.shape[1]), np.int64)  # (F, C)
    np.add.at(counts, (folds, labels), 1)
    unknown = (counts.sum(axis=0) - counts)[folds, labels] == 0  # (n,)
    score[unknown] = 0
    order = np.argsort(-s, kind="stable")
    listed = order[((other > own) & ~unknown)[order]]
    return Suspicions(score, suggested, listed[: math.ceil(REVIEWED * len(labels))])


def ambiguous_pairs(predicted: np.ndarray, labels: np.ndarray, class_names: list[str]) -> list[ConfusedPair]:
    """Return the pairs of classes that are mistaken for each other, the largest share first."""
    counts = np.bincount(labels, minlength=len(class_names))
    wrong = predicted != labels
    ends = np.sort(np.stack([labels[wrong], predicted[wrong]], axis=1), axis=1)  # (m, 2)
    pairs, confused = np.unique(ends, axis=0, return_counts=True)
    of = counts[pairs].sum(axis=1)
    order = np.lexsort((-confused, -confused / np.maximum(of, 1)))
    found: list[ConfusedPair] = []
    for i in order:
        if confused[i] >= LEAST:
            names = [class_names[k] for k in pairs[i]]
            found.append({"classes": names, "confused": Count(int(confused[i])), "of": Count(int(of[i]))})
    return found[:PAIRS]
