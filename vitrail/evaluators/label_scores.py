"""A model and a split with several labels for an image -> how well it ranks each class, and how often it is right.

    AP of a class   the mean, over the images that have it, of the precision among those with a higher or equal
                    probability of it; mAP: the mean over the classes that any image has
    F1              2 right / (answers + labels), of the answers above the thresholds of the model
                    (models/calibration.py): over all classes together, and as a mean over classes
    loss            binary cross-entropy, mean over images and classes

n images, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.bad_files import BadExample
from vitrail.data.several_labels import targets_of
from vitrail.data.sources import Source
from vitrail.errors import ConfigError, DataError
from vitrail.evaluators.score import Score
from vitrail.inference.engine import evaluation_loader, evaluation_pipeline, outputs
from vitrail.inference.exported import Runnable
from vitrail.inference.precision import Precision
from vitrail.models.calibration import Calibration
from vitrail.models.names import Model
from vitrail.runtime.distributed import gather

NAMES = ("map", "f1", "f1_macro", "loss")


@dataclass(frozen=True)
class LabelScore:
    """How well one class is found."""

    name: str
    n: int  # images that have it
    ap: float | None  # None: no image has it
    precision: float | None  # of the answers; None: there are none
    recall: float | None
    threshold: float


@dataclass(frozen=True)
class LabelEvaluation:
    """The results of one pass over a split with several labels for an image."""

    data: str
    n: int
    broken: int
    map: float
    f1: float
    f1_macro: float
    loss: float
    per_class: list[LabelScore]
    bad: list[BadExample]

    def scores(self) -> Iterator[Score]:
        for name in NAMES:
            yield Score(name, getattr(self, name), self.n)

    def as_json(self) -> dict[str, Any]:
        lists = {name: [vars(one) for one in getattr(self, name)] for name in ("per_class", "bad")}
        numbers = {name: getattr(self, name) for name in ("data", "n", "broken", *NAMES)}
        return numbers | {"per_class": lists["per_class"], "bad_files": lists["bad"]}


@dataclass(frozen=True)
class Labels:
    """The evaluator of a training run. All processes call it."""

    source: Source
    batch_size: int = 64
    num_workers: int | None = None
    max_bad: float = 0.01

    names: ClassVar = tuple(f"val_{score}" for score in NAMES)

    def __call__(self, model: nn.Module) -> Iterator[Score]:
        assert isinstance(model, Model)
        evaluation = evaluate_labels(
            model, self.source, batch_size=self.batch_size, num_workers=self.num_workers, max_bad=self.max_bad
        )
        for score in evaluation.scores():
            yield Score(f"val_{score.name}", score.value, score.n)


def evaluate_labels(
    model: Runnable,
    source: Source,
    *,
    batch_size: int = 64,
    num_workers: int | None = None,
    max_bad: float = 0.01,
    precision: Precision = "float32",
    task: str = "",
) -> LabelEvaluation:
    """Evaluate a model for several labels; its classes must be those of the data, by name or order."""
    targets = targets_of(source)
    assert targets is not None
    calibration = model.calibration
    if not calibration.multi_label:
        raise ConfigError(
            f"{source.name} has several labels for an image, and the model gives each image one class"
        )
    order = match_classes(model, source)
    pipeline = evaluation_pipeline(model, any_shape=True)
    loader = evaluation_loader(source, pipeline, batch_size, num_workers, max_bad)
    each = outputs(model, loader, precision=precision, task=task)
    pieces = [(batch["index"].cpu().numpy(), y.cpu().numpy()) for y, batch in each]
    everything = [piece for own in gather(pieces) for piece in own]
    bad = [one for own in gather(list(loader.bad_files.examples.values())) for one in own]
    if not everything:
        raise DataError(f"{source.name}: no image could be read")
    index, logits = (np.concatenate(part) for part in zip(*everything, strict=True))
    places = np.argsort(index)
    y, truth = torch.from_numpy(logits[places]), torch.from_numpy(targets[index[places]][:, order])  # (n, K)
    names = model.class_names or [source.class_names[k] for k in order]
    scores, per_class = score_labels(y, truth, calibration, names)
    bad = sorted(bad, key=lambda one: one.index)
    return LabelEvaluation(source.name, len(y), len(bad), **scores, per_class=per_class, bad=bad)


def match_classes(model: Runnable, source: Source) -> np.ndarray:
    """Return the class of the data of each class of the model, int64 (K,)."""
    names = model.class_names or source.class_names
    if sorted(names) != sorted(source.class_names):
        raise DataError(
            f"{source.name} has {len(source.class_names):,} classes, and the model {len(names):,}, which must be the "
            "same"
        )
    number = {name: k for k, name in enumerate(source.class_names)}
    return np.array([number[name] for name in names])


def score_labels(
    y: Tensor, truth: Tensor, calibration: Calibration, names: list[str]
) -> tuple[dict[str, float], list[LabelScore]]:
    """Return the scores and those of each class, for logits (n, K) and targets (n, K)."""
    _, answers = calibration.decide(y)  # (n, K)
    loss = float(F.binary_cross_entropy_with_logits(calibration.scaled(y).double(), truth.double()))
    labels, given = truth.sum(dim=0, dtype=torch.long), answers.sum(dim=0)  # (K,) each
    right = (answers & (truth > 0)).sum(dim=0)  # (K,)
    ap = [average_precision(y[:, k].numpy(), truth[:, k].numpy()) for k in range(len(names))]
    known = [value for value in ap if value is not None]
    each = [2 * float(r) / float(g + t) for r, g, t in zip(right, given, labels, strict=True) if t]
    both = int(given.sum() + labels.sum())
    floors = calibration.floors(y).tolist()
    per_class = [
        LabelScore(name, int(t), a, int(r) / int(g) if g else None, int(r) / int(t) if t else None, floor)
        for name, t, a, r, g, floor in zip(names, labels, ap, right, given, floors, strict=True)
    ]
    scores = {
        "map": float(np.mean(known)) if known else 0.0,
        "f1": 2 * int(right.sum()) / both if both else 0.0,
        "f1_macro": float(np.mean(each)) if each else 0.0,
        "loss": loss,
    }
    return scores, per_class


def average_precision(scores: np.ndarray, truth: np.ndarray) -> float | None:
    """Return the AP of scores (n,) for truth (n,); None if nothing is true. Equal scores come together."""
    if not truth.any():
        return None
    order = np.argsort(-scores, kind="stable")
    ranked, found = scores[order], np.cumsum(truth[order] > 0)
    last = np.searchsorted(-ranked, -ranked, side="right") - 1  # (n,): the last that is equal
    precision = found[last] / (last + 1)
    return float(precision[truth[order] > 0].mean())
