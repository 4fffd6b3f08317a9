"""A few photographs -> a classifier at once: the closed form of section 4.1 on the features of a served model.

Its accuracy is measured by cross-validation: each photograph is classified by what was solved without it. The same
outputs choose the scale that makes probabilities of them, since least squares gives -1 to 1 for the classes.
n photographs, D width, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitrail.errors import ConfigError
from vitrail.evaluators.classifier import UNMEASURED, best_scale, with_classifier
from vitrail.evaluators.fewshot import L2, solve
from vitrail.models.names import Model
from vitrail.serve.served import LinearHead

FOLDS = 10


@dataclass(frozen=True)
class Few:
    """A classifier of few photographs."""

    head: LinearHead
    class_names: list[str]
    photos: int
    accuracy: float | None  # of cross-validation; None: a class has a single photograph
    folds: int | None


def solve_few(x: np.ndarray, labels: np.ndarray, class_names: list[str]) -> Few:
    """Return the classifier of features (n, D)."""
    counts = np.bincount(labels, minlength=len(class_names))
    if len(class_names) < 2:
        raise ConfigError(f"a classifier needs at least 2 classes with photographs, not {len(class_names)}")
    weight, bias = solve(x, labels, len(class_names)).affine(L2)
    accuracy, folds, scale = None, None, UNMEASURED
    if counts.min() > 1:
        folds = min(FOLDS, int(counts.max()))
        outputs = held_out_outputs(x, labels, len(class_names), folds)  # (n, K)
        accuracy = float((outputs.argmax(axis=1) == labels).mean())
        scale = best_scale(outputs, labels)
    head = LinearHead((scale * weight).astype(np.float32), (scale * bias).astype(np.float32))
    return Few(head, class_names, len(labels), accuracy, folds)


def held_out_outputs(x: np.ndarray, labels: np.ndarray, classes: int, folds: int) -> np.ndarray:
    """Return the outputs (n, K) for each photograph by what was solved without its fold."""
    place = np.zeros(len(labels), np.int64)  # within the class
    for c in range(classes):
        members = np.flatnonzero(labels == c)
        place[members] = np.arange(len(members))
    outputs = np.zeros((len(labels), classes))
    for fold in range(folds):
        inside = place % folds == fold  # (n,)
        if inside.any():
            weight, bias = solve(x[~inside], labels[~inside], classes).affine(L2)
            outputs[inside] = x[inside] @ weight + bias
    return outputs


def with_head(model: Model, few: Few, base: str) -> Model:
    """Return a model that shares the body of another and has the classifier."""
    about = {"format": "few-shot", "base": base, "photos": few.photos}
    learned = with_classifier(model, few.head.weight, few.head.bias, few.class_names, about)
    if few.accuracy is not None:
        learned.metrics = {"cross-validation": {"top1": few.accuracy, "n": few.photos}}
    return learned
