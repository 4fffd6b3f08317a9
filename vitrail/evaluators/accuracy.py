"""A model and a labelled split -> how often it is right, how sure it is, and where it fails.

    evaluate(model, data)       everything at once, as an Evaluation; `vitrail evaluate` calls it
    Accuracy(source, ...)       an evaluator for the training loop: top1, top5, loss, ece, on any number of processes

Every example counts once, the last batch included; broken ones are counted and named. Which answers are right is
decided in class_mapping.py, what is measured of each in outcomes.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from vitrail.checkpoints.formats import as_model
from vitrail.data import preprocess as pp
from vitrail.data.bad_files import BadExample
from vitrail.data.sources import Source, find_test_split, open_source
from vitrail.data.splits import Subset
from vitrail.errors import ConfigError, DataError
from vitrail.evaluators.class_mapping import by_order, map_classes
from vitrail.evaluators.outcomes import Predictions, expected_calibration_error, judge
from vitrail.evaluators.real_labels import real_accuracy, real_sets
from vitrail.evaluators.score import Score, wilson_interval
from vitrail.inference.engine import ModelLike, Precision, evaluation_loader, evaluation_pipeline
from vitrail.models.names import Model

TOP = 5
SCORES = ("top1", "top5", "loss", "ece")
ACCURACIES = ("top1", "top5", "real")
MOST_MISTAKES = 1000  # listed by name


@dataclass(frozen=True)
class ClassScore:
    """The accuracy of one class."""

    name: str
    n: int
    correct: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.n


@dataclass(frozen=True)
class Evaluation:
    """The results of one pass over a split."""

    data: str  # the name of the split
    n: int  # examples that were used
    broken: int  # that could not be read
    left_out: int  # of a class that the mapping does not have
    loss: float  # mean cross-entropy
    top1: float  # share of the n examples
    top5: float  # right among the first min(5, K)
    ece: float  # expected calibration error (outcomes.py)
    per_class: list[ClassScore]  # the classes that have examples
    predictions: Predictions
    bad: list[BadExample]  # the broken ones
    class_names: list[str]  # names of `label` in the predictions
    model_class_names: list[str]  # names of `predicted`
    real: float | None = None  # accuracy on real_n examples by ReaL labels (real_labels.py)
    real_n: int = 0

    @cached_property
    def confusion(self) -> np.ndarray:
        """int64 (classes, classes of the model): how often the first was taken for the second."""
        shape = len(self.class_names), len(self.model_class_names)
        cells = self.predictions.label * shape[1] + self.predictions.predicted
        return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)  # (C, K)

    def scores(self) -> Iterator[Score]:
        for name in SCORES:
            yield Score(name, getattr(self, name), self.n)
        if self.real is not None:
            yield Score("real", self.real, self.real_n)

    def mistakes(self, source: Source) -> list[dict[str, Any]]:
        """Return the MOST_MISTAKES most confident mistakes; `source`, which was evaluated on, has their names."""
        p = self.predictions
        return [
            {
                "key": source.key(int(p.index[k])),
                "true": self.class_names[p.label[k]],
                "predicted": self.model_class_names[p.predicted[k]],
                "probability": float(p.confidence[k]),
            }
            for k in p.mistakes()[:MOST_MISTAKES]
        ]

    def worst_classes(self, most: int) -> list[ClassScore]:
        """Return the classes with mistakes, the lowest accuracy first."""
        return sorted((one for one in self.per_class if one.correct < one.n), key=lambda one: one.accuracy)[
            :most
        ]

    def confused_pairs(self, most: int) -> list[tuple[str, str, int, int]]:
        """Return (true class, predicted class, how often, of how many), the most frequent first, no single ones."""
        p = self.predictions
        totals = np.bincount(p.label, minlength=len(self.class_names))  # (C,)
        pairs = np.stack([p.label, p.predicted], axis=1)[~p.right]  # (wrong, 2)
        cells, counts = np.unique(pairs, axis=0, return_counts=True)
        order = [k for k in np.argsort(-counts, kind="stable")[:most] if counts[k] > 1]
        return [
            (self.class_names[i], self.model_class_names[j], int(counts[k]), int(totals[i]))
            for k, (i, j) in ((k, cells[k]) for k in order)
        ]

    def as_json(self) -> dict[str, Any]:
        """Return all but the predictions, as fractions; of the confusion matrix the cells that are not 0."""
        names = ("data", "n", "broken", "left_out", *SCORES, "real", "real_n")
        pairs = np.stack([self.predictions.label, self.predictions.predicted], axis=1)  # (n, 2)
        cells, counts = np.unique(pairs, axis=0, return_counts=True)
        return {
            **{name: getattr(self, name) for name in names},
            "interval": {  # 95%, Wilson
                score.name: wilson_interval(score.value, score.n)
                for score in self.scores()
                if score.name in ACCURACIES
            },
            "per_class": [{**asdict(one), "accuracy": one.accuracy} for one in self.per_class],
            "confusion": [
                {"class": self.class_names[i], "predicted": self.model_class_names[j], "n": n}
                for (i, j), n in zip(cells.tolist(), counts.tolist(), strict=True)
            ],
            "bad_files": [asdict(bad) for bad in self.bad],
            "wrong": int((~self.predictions.right).sum()),
        }


def evaluate(
    model: ModelLike,
    data: Source | str | Path,
    *,
    split: str | None = None,
    batch_size: int = 64,
    num_workers: int | None = None,
    mapping: str | Path | None = None,
    real: str | Path | None = None,
    precision: Precision = "float32",
    max_bad: float = 0.01,
    progress: bool = True,
) -> Evaluation:
    """Evaluate a model, given as it is, by its path or by its name, on a labelled data set.

    `split`: the test split, else the validation split, where it is None. `batch_size`: images at a time, on each
    process. `num_workers`: processes that decode; None: as many as help. `mapping`: "order", or a file, where the
    classes of the data are not the model's by name (class_mapping.py). `real`: the file of ReaL labels, for
    ImageNet's validation images (real_labels.py). `max_bad`: share of the images that may be broken. A model
    stays on its device and in its mode; one from a path goes to the GPU where there is one.
    """
    source = open_split(data, split)
    model = as_model(model)
    pipeline, classes = evaluation_pipeline(model), map_classes(model, source, mapping)
    sets = None if real is None else real_sets(real, source, classes)
    kept = np.flatnonzero(classes.row[source.labels] >= 0)
    if not len(kept):
        raise DataError(f"{source.name}: none of its {len(source):,} examples is of a class in {mapping}")
    loader = evaluation_loader(Subset(source, kept), pipeline, batch_size, num_workers, max_bad)
    task = f"evaluate {source.name}" if progress else ""
    predictions, bad = judge(model, loader, classes, precision, task)
    predictions = replace(predictions, index=kept[predictions.index])
    real_score, real_n = (None, 0) if sets is None else real_accuracy(predictions, sets)
    return Evaluation(
        data=source.name,
        broken=len(kept) - len(predictions),
        left_out=len(source) - len(kept),
        **measures(predictions),
        per_class=by_class(predictions, classes.class_names),
        predictions=predictions,
        bad=[replace(one, index=int(kept[one.index])) for one in bad],
        class_names=classes.class_names,
        model_class_names=classes.model_class_names,
        real=real_score,
        real_n=real_n,
    )


class Accuracy:
    """The evaluator of a training run, for a model whose classes are those of the source.

    `line` is the preprocessing, the model's own where it is None; `batch_size` images at a time on each process.
    All processes call it; each judges its share, and each gets the scores of the whole.
    """

    def __init__(
        self,
        source: Source,
        line: str | None,
        batch_size: int = 64,
        num_workers: int | None = None,
        name: str = "val",
        *,
        precision: Precision = "float32",
        max_bad: float = 0.01,
    ) -> None:
        self.source, self.max_bad = source, max_bad
        self.batch_size, self.num_workers = batch_size, num_workers
        self.name, self.precision = name, precision
        self.pipeline = None if line is None else pp.parse(line)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its scores."""
        return tuple(f"{self.name}_{score}" for score in SCORES)

    def __call__(self, model: nn.Module) -> Iterator[Score]:
        pipeline = self.pipeline
        if pipeline is None:
            if not isinstance(model, Model):
                raise ConfigError(f"a {type(model).__name__} has no preprocessing line of its own: pass one")
            pipeline = evaluation_pipeline(model)
        loader = evaluation_loader(self.source, pipeline, self.batch_size, self.num_workers, self.max_bad)
        predictions, _ = judge(model, loader, by_order(self.source.class_names), self.precision)
        measured = measures(predictions)
        for name in SCORES:
            yield Score(f"{self.name}_{name}", measured[name], len(predictions))


def measures(predictions: Predictions) -> dict[str, Any]:
    """Return n, and the SCORES of n examples: means in float64."""
    return {
        "n": len(predictions),
        "top1": float(predictions.right.mean()),
        "top5": float((predictions.rank < TOP).mean()),
        "loss": float(predictions.loss.mean(dtype=np.float64)),
        "ece": expected_calibration_error(predictions.confidence, predictions.right),
    }


def by_class(predictions: Predictions, names: list[str]) -> list[ClassScore]:
    n = np.bincount(predictions.label, minlength=len(names))  # (C,)
    correct = np.bincount(predictions.label[predictions.right], minlength=len(names))  # (C,)
    return [
        ClassScore(name, count, right)
        for name, count, right in zip(names, n.tolist(), correct.tolist(), strict=True)
        if count
    ]


def open_split(data: Source | str | Path, split: str | None) -> Source:
    """Open the part of the data to evaluate on: the test split, else validation, where `split` is None."""
    if isinstance(data, Source):
        if split is not None:
            raise ConfigError(f"split {split!r} of {data.name}, which is one split already: open another")
        return data
    if not isinstance(data, str | Path):
        raise ConfigError(f"data is a source, a path or a name, not of type {type(data).__name__}")
    return open_source(data, find_test_split(data) if split is None else split)
