"""Label errors: images whose label an out-of-fold prediction contradicts; and the classes that are confused.

The suspicion of an image with label y, from p = p(k | x) out of fold, is

    s = log (sum over k != y of p_k r_ky / p_y),   r_ky = 1/2 + 1/2 o_ky^3 / (mean over l != k of o_kl^3)

r_ky is how often images of class k get the label y by mistake, 1 on average: one half of the mistakes is spread
evenly over all classes, the other over those that k is hard to tell from, by the overlap of the predictions

    o_ky = sum over images of sqrt(p_k p_y)

The first half alone ranks by 1 / p_y and is better where labels are wrong at random, the second where similar classes
are confused (docs/results/label_errors.md). The sigmoid of s is the score: 1/2 where p_y equals the sum. It is no
probability, since a label may also be right against all appearance.

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
SIMILAR = 0.5  # of the mistakes are between similar classes
SHARPNESS = 3  # power of the overlap
TINY = 1e-300
BLOCK = 8192  # images at a time


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
    suggested, s = np.empty(len(labels), np.int64), np.empty(len(labels))
    r = mistakes(log_p)  # (C, C)
    for i in range(0, len(labels), BLOCK):
        y, others = labels[i : i + BLOCK], log_p[i : i + BLOCK].copy()  # (b,), (b, C)
        others[np.arange(len(y)), y] = -np.inf
        most = others.max(axis=1)  # (b,)
        suggested[i : i + BLOCK] = others.argmax(axis=1)
        others = np.exp(others - most[:, None]) * r[:, y].T
        s[i : i + BLOCK] = most + np.log(others.sum(axis=1)) - own[i : i + BLOCK]
    score = np.exp(-np.logaddexp(0, -s))
    counts = np.zeros((folds.max() + 1, log_p.shape[1]), np.int64)  # (F, C)
    np.add.at(counts, (folds, labels), 1)
    unknown = (counts.sum(axis=0) - counts)[folds, labels] == 0  # (n,)
    score[unknown] = 0
    order = np.argsort(-s, kind="stable")
    listed = order[((log_p[rows, suggested] > own) & ~unknown)[order]]
    return Suspicions(score, suggested, listed[: math.ceil(REVIEWED * len(labels))])


def mistakes(log_p: np.ndarray) -> np.ndarray:
    """Return how often each class (row) gets the label of another by mistake, 1 on average: (C, C)."""
    classes = log_p.shape[1]
    overlap = np.zeros((classes, classes))
    for i in range(0, len(log_p), BLOCK):
        roots = np.exp(log_p[i : i + BLOCK] / 2)  # (b, C)
        overlap += roots.T @ roots
    np.fill_diagonal(overlap, 0)
    overlap /= np.maximum(overlap.max(axis=1, keepdims=True), TINY)
    similar = overlap**SHARPNESS
    similar *= (classes - 1) / np.maximum(similar.sum(axis=1, keepdims=True), TINY)
    return (1 - SIMILAR) + SIMILAR * similar


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
