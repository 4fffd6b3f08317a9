"""A few photographs -> a classifier at once: the closed form of section 4.1 on the features of a served model.

Its accuracy is measured by cross-validation: each photograph is classified by what was solved without it. The same
outputs choose the scale that makes probabilities of them, since least squares gives -1 to 1 for the classes.
n photographs, D width, K classes.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from vitrail.checkpoints.license import inherit_license
from vitrail.errors import ConfigError
from vitrail.evaluators.fewshot import CONSTANT, L2, Solution, solve
from vitrail.models.names import Model
from vitrail.serve.served import LinearHead

FOLDS = 10
SCALES = np.geomspace(0.5, 64, 22)
UNMEASURED = 4.0  # scale, where nothing can be measured


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
    weight, bias = affine(solve(x, labels, len(class_names)))
    accuracy, folds, scale = None, None, UNMEASURED
    if counts.min() > 1:
        folds = min(FOLDS, int(counts.max()))
        outputs = held_out_outputs(x, labels, len(class_names), folds)  # (n, K)
        accuracy = float((outputs.argmax(axis=1) == labels).mean())
        scale = min(SCALES, key=lambda scale: loss(scale * outputs, labels))
    head = LinearHead((scale * weight).astype(np.float32), (scale * bias).astype(np.float32))
    return Few(head, class_names, len(labels), accuracy, folds)


def affine(solution: Solution) -> tuple[np.ndarray, np.ndarray]:
    """Return weight (D, K) and bias (K,) on features as they are, not standardised."""
    W = solution.weights(L2)  # (D + 1, K)
    weight = W[:-1] / solution.std[:, None]  # (D, K)
    bias = CONSTANT * W[-1] - solution.mean @ weight  # (K,)
    return weight.numpy(), bias.numpy()


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
            weight, bias = affine(solve(x[~inside], labels[~inside], classes))
            outputs[inside] = x[inside] @ weight + bias
    return outputs


def loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean cross-entropy of logits (n, K)."""
    logits = logits - logits.max(axis=1, keepdims=True)
    return float((np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]).mean())


def with_head(model: Model, few: Few, base: str) -> Model:
    """Return a model that shares the body of another and has the classifier."""
    learned, head = copy.copy(model), copy.copy(model.head)
    learned._modules, head._modules = dict(model._modules), dict(model.head._modules)
    weight = torch.from_numpy(few.head.weight.T.copy())  # (K, D)
    K, D = weight.shape
    parameter = next(model.parameters())
    classifier = nn.Linear(D, K, device=parameter.device, dtype=parameter.dtype)
    with torch.no_grad():
        classifier.weight.copy_(weight)
        classifier.bias.copy_(torch.from_numpy(few.head.bias))
    head.classifier = classifier
    learned.head, learned.config = head, replace(model.config, classes=K)
    learned.class_names, learned.fp8 = few.class_names, {}
    learned.metrics = (
        {} if few.accuracy is None else {"cross-validation": {"top1": few.accuracy, "n": few.photos}}
    )
    learned.license = inherit_license(model.license)
    learned.provenance = {"format": "few-shot", "base": base, "photos": few.photos, "start": model.provenance}
    return learned.eval()
