"""Held-out images -> how sure a model may be: its temperature, and the thresholds of its classes.

    calibrate_model(model, held_out)      measures logits, fits, sets model.calibration

The temperature T minimises, over n held-out images with logits y and labels (Guo et al., arXiv:1706.04599),

    sum of -log softmax(y / T)[label]  +  (log T)^2 / (2 SPREAD^2)

The second term is a guess that T is near 1: on 20 images that are all right, T would become 0 without it; from some
hundred on it changes nothing. Held-out images are neither trained nor tested on: on training images a model is too
sure.

A threshold t for a wanted precision is, for each class, the smallest probability from which on enough is right:

    (right_c(t) + STRENGTH q(t)) / (n_c(t) + STRENGTH) >= wanted        q(t) = (right(t) + 1) / (n(t) + 2)

n_c(t), right_c(t): answers c with probability t or more, and those of them that are right; n(t), right(t): of all
classes. So a class with few answers has about the threshold of all together. Where none is enough, it is 1. Of
several labels, a threshold is chosen alike for a wanted precision, else so that the F1 of the class is highest.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.several_labels import targets_of
from vitrail.data.sources import Source
from vitrail.data.splits import Subset
from vitrail.errors import ConfigError, DataError
from vitrail.evaluators.accuracy import expected_calibration_error
from vitrail.evaluators.label_scores import match_classes
from vitrail.evaluators.right_answers import map_classes
from vitrail.inference.engine import evaluation_loader, evaluation_pipeline, outputs
from vitrail.models.calibration import Calibration
from vitrail.models.names import Model
from vitrail.runtime.distributed import gather

SPREAD = 0.5  # of the guess of log T
STRENGTH = 5  # answers that the guess of a class's precision counts as
RARE = 5  # images of a class
LEAST = 20  # held-out images below which nothing is fitted
MOST = 20_000  # images that are used
MOST_NUMBERS = 1 << 26  # logits that are held
BOUND, HALVINGS = 3.0, 40  # |log T| is at most BOUND


def calibrate_model(
    model: Model,
    held_out: Source,
    *,
    wanted_precision: float = 0.0,
    mapping: str | Path | None = None,
    batch_size: int = 64,
    num_workers: int | None = None,
    max_bad: float = 0.01,
    task: str = "",
) -> Calibration:
    """Fit a temperature, and thresholds if a precision is wanted, on held-out images; set and return the calibration.

    `wanted_precision`: share of the answers of a class that are to be right, as 0.95; 0: no thresholds. All processes
    call it. DataError if there are too few images.
    """
    if not 0 <= wanted_precision < 1:
        raise ConfigError(f"wanted_precision {wanted_precision}: must be 0, or a share below 1 such as 0.95")
    if targets_of(held_out) is not None:
        return calibrate_several(model, held_out, wanted_precision, batch_size, num_workers, max_bad, task)
    classes = map_classes(model, held_out, mapping)
    if classes.right.shape[1] > 1:
        raise ConfigError(f"{mapping}: a class of the data may have only one right class here")
    kept = np.flatnonzero(classes.row[held_out.labels] >= 0)
    most = max(1, min(MOST, MOST_NUMBERS // model.config.classes))
    if len(kept) > most:
        kept = np.sort(np.random.default_rng(0).permutation(kept)[:most])
    if len(kept) < LEAST:
        raise DataError(f"{held_out.name}: {len(kept)} held-out images are too few: {LEAST} are needed")
    source = Subset(held_out, kept)
    y, index = held_out_logits(model, source, batch_size, num_workers, max_bad, task)
    if len(y) < LEAST:
        raise DataError(f"{held_out.name}: {len(y)} images could be read, too few: {LEAST} are needed")
    labels = torch.from_numpy(classes.right[classes.row[source.labels[index]], 0])  # (n,)
    fitted = fit_calibration(y, labels, wanted_precision)
    return store(model, held_out, fitted)


def calibrate_several(
    model: Model,
    held_out: Source,
    wanted_precision: float,
    batch_size: int,
    num_workers: int | None,
    max_bad: float,
    task: str,
) -> Calibration:
    """Do the same for a model for several labels; it always gets thresholds."""
    targets, order = targets_of(held_out), match_classes(model, held_out)
    assert targets is not None
    y, index = held_out_logits(model, held_out, batch_size, num_workers, max_bad, task)
    if len(y) < LEAST:
        raise DataError(f"{held_out.name}: {len(y)} held-out images are too few: {LEAST} are needed")
    truth = torch.from_numpy(targets[index][:, order])  # (n, K)
    T = fit_temperature(y, truth)
    p = Calibration(T, multi_label=True).probabilities(y).numpy()  # (n, K)
    thresholds = choose_label_thresholds(p, truth.numpy() > 0, wanted_precision)
    scores = {}
    for name, one in (
        ("before", Calibration(multi_label=True)),
        ("after", Calibration(T, thresholds, multi_label=True)),
    ):
        loss = F.binary_cross_entropy_with_logits(one.scaled(y).double(), truth.double())
        scores[name] = {"loss": float(loss)}
    fitted: dict[str, Any] = {"n": len(y), **scores}
    fitted |= {"wanted_precision": wanted_precision} if wanted_precision else {}
    return store(model, held_out, Calibration(T, thresholds, True, fitted))


def choose_label_thresholds(p: np.ndarray, truth: np.ndarray, wanted: float) -> tuple[float, ...]:
    """Return the threshold of each class, for probabilities (n, K) and truth, bool (n, K): that of the wanted
    precision, else that with the highest F1; of a class with fewer than RARE images, that of all classes together."""
    K = p.shape[1]
    if wanted:
        taken = np.tile(np.arange(K), len(p))  # (n K,): each probability is that of an answer
        return choose_thresholds(p.ravel(), taken, truth.ravel(), K, wanted)
    common = best_f1(p.ravel(), truth.ravel())
    return tuple(best_f1(p[:, k], truth[:, k]) if truth[:, k].sum() >= RARE else common for k in range(K))


def best_f1(p: np.ndarray, truth: np.ndarray) -> float:
    """Return the threshold of p (n,) with the highest F1; 0.5 if nothing is true."""
    if not truth.any():
        return 0.5
    order = np.argsort(-p, kind="stable")
    t, right = p[order], np.cumsum(truth[order])
    f1 = 2 * right / (np.arange(1, len(t) + 1) + truth.sum())
    last = np.append(t[1:] != t[:-1], True)  # equal ones come together
    best = int(np.argmax(np.where(last, f1, -1.0)))
    below = t[best + 1] if best + 1 < len(t) else t[best]
    return float((t[best] + below) / 2)


def store(model: Model, held_out: Source, fitted: Calibration) -> Calibration:
    """Set the calibration of a model; leave out its scores that were measured with other probabilities."""
    model.calibration = Calibration(
        fitted.temperature, fitted.thresholds, fitted.multi_label, {"data": held_out.name, **fitted.fitted}
    )
    model.metrics = {
        split: {k: v for k, v in scores.items() if not k.endswith(("loss", "ece"))}  # of other probabilities
        for split, scores in model.metrics.items()
        if isinstance(scores, dict)
    }
    return model.calibration


def held_out_logits(
    model: Model, source: Source, batch_size: int, num_workers: int | None, max_bad: float, task: str = ""
) -> tuple[Tensor, np.ndarray]:
    """Return the logits (n, K) of all readable images, over all processes, and their indices."""
    pipeline = evaluation_pipeline(model, any_shape=True)
    loader = evaluation_loader(source, pipeline, batch_size, num_workers, max_bad)
    pieces = [(batch["index"].cpu(), y.cpu()) for y, batch in outputs(model, loader, task=task)]
    own = [torch.cat(part).numpy() for part in zip(*pieces, strict=True)] if pieces else None
    all_pieces = [piece for piece in gather(own) if piece is not None]
    if not all_pieces:
        return torch.zeros(0, model.config.classes), np.zeros(0, np.int64)
    index, y = (np.concatenate(part) for part in zip(*all_pieces, strict=True))
    order = np.argsort(index)
    return torch.from_numpy(y[order]), index[order]


def fit_calibration(y: Tensor, labels: Tensor, wanted_precision: float = 0.0) -> Calibration:
    """Return the calibration of held-out logits (n, K) with labels (n,), and what it does there.

    Out-of-fold logits, each by a classifier that has not seen the image, are held out too.
    """
    T = fit_temperature(y, labels)
    before, after = Calibration(), Calibration(T)
    fitted: dict[str, Any] = {"n": len(y)}
    for name, one in (("before", before), ("after", after)):
        p = one.probabilities(y.double())  # (n, K)
        confidence, predicted = p.max(dim=1)  # (n,) each
        right = (predicted == labels).numpy()
        loss = float(F.cross_entropy(one.scaled(y.double()), labels))
        fitted[name] = {"loss": loss, "ece": expected_calibration_error(confidence.numpy(), right)}
    if not wanted_precision:
        return Calibration(T, fitted=fitted)
    p = after.probabilities(y)  # (n, K), in the precision that it is used in
    confidence, predicted = p.max(dim=1)
    taken, right = predicted.numpy(), (predicted == labels).numpy()
    thresholds = choose_thresholds(confidence.numpy(), taken, right, y.shape[1], wanted_precision)
    sure = confidence.numpy() >= np.array(thresholds, np.float32)[taken]  # (n,)
    precision = float(right[sure].mean()) if sure.any() else None
    fitted |= {"wanted_precision": wanted_precision, "answered": float(sure.mean()), "precision": precision}
    return Calibration(T, thresholds, fitted=fitted)


def fit_temperature(y: Tensor, labels: Tensor) -> float:
    """Return T for logits (n, K) and labels (n,), or several labels, (n, K)."""
    y = y.double()
    several = labels.ndim == 2
    of_labels = (y * labels).sum() if several else y.gather(1, labels[:, None]).sum()
    low, high = -BOUND, BOUND
    for _ in range(HALVINGS):
        t = (low + high) / 2  # log T
        p = (y / math.exp(t)).sigmoid() if several else (y / math.exp(t)).softmax(dim=1)  # (n, K)
        slope = float(of_labels - (p * y).sum()) / math.exp(t) + t / SPREAD**2
        low, high = (t, high) if slope < 0 else (low, t)
    return math.exp((low + high) / 2)


def choose_thresholds(
    confidence: np.ndarray, taken: np.ndarray, right: np.ndarray, classes: int, wanted: float
) -> tuple[float, ...]:
    """Return the threshold of each class for n answers: confidence, class and whether it is right, (n,) each."""
    order = np.argsort(-confidence, kind="stable")
    t, taken, right = confidence[order], taken[order], right[order].astype(np.int64)
    q = (np.cumsum(right) + 1) / (np.arange(len(t)) + 3)  # (n,), of the answers with t or more
    last = np.append(t[1:] != t[:-1], True)  # equal ones come together
    thresholds = []
    for c in range(classes):
        own = taken == c
        precision = (np.cumsum(right * own) + STRENGTH * q) / (np.cumsum(own) + STRENGTH)  # (n,)
        enough = np.flatnonzero((precision >= wanted) & last)
        thresholds.append(float(t[enough[-1]]) if len(enough) else 1.0)
    return tuple(thresholds)
