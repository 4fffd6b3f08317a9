"""A model and a labelled split -> how often it is right, how confident it is, and where it fails.

    evaluate(model, data)       everything at once, as an Evaluation; `vitrail evaluate` calls it
    Accuracy(source, ...)       an evaluator for the training loop: top1, top5, loss, ece, on any number of processes

    engine.outputs ──► score_logits, batch by batch ──► Predictions, a few numbers an example ──► Evaluation

Every example counts once, the last batch included; broken ones are counted and named. For the logits y (K,) of an
example, with p = softmax(y / T) and R its right answers (right_answers.py; mostly one):
    predicted    argmax y; of equals the first
    confidence   max p
    rank         how many classes come before the best of R: 0 is right, below 5 is right among the top 5
    loss         -log sum_{k in R} p_k, which for one right answer is the cross-entropy

Calibration: does a model that is 80% sure answer right in 80% of the cases? Answers are put into BINS bins of equal
width by their confidence, bin b holding b / BINS < confidence <= (b + 1) / BINS:

    ECE = sum_b  n_b / n  |right_b / n_b - mean confidence_b|        (Guo et al., arXiv:1706.04599)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.bad_files import BadExample, BadFiles
from vitrail.data.loader import Loader
from vitrail.data.several_labels import refuse_several
from vitrail.data.sources import Source, find_test_split, open_source
from vitrail.data.splits import Subset
from vitrail.errors import ConfigError, DataError
from vitrail.evaluators.right_answers import ClassMapping, by_order, map_classes, real_sets
from vitrail.evaluators.score import Score, accuracy_interval
from vitrail.inference.engine import RunnableLike, evaluation_loader, evaluation_pipeline, outputs
from vitrail.inference.exported import as_runnable
from vitrail.inference.precision import Precision
from vitrail.inference.zero_shot import with_texts
from vitrail.models.calibration import Calibration
from vitrail.models.names import Model
from vitrail.runtime.distributed import gather

TOP = 5
BINS = 15
SCORES = ("top1", "top5", "loss", "ece")
ACCURACIES = ("top1", "top5", "answered", "answered_top1", "real")
MOST_MISTAKES = 1000  # listed by name


@dataclass(frozen=True)
class Predictions:
    """A few numbers for each example, (n,) each, in the order of the source."""

    index: np.ndarray  # int64: in the source
    label: np.ndarray  # int64: of the mapping's class_names
    predicted: np.ndarray  # int64: of its model_class_names
    confidence: np.ndarray  # float32
    rank: np.ndarray  # int64
    loss: np.ndarray  # float32

    def __len__(self) -> int:
        return len(self.index)

    @property
    def right(self) -> np.ndarray:
        """bool (n,)"""
        return self.rank == 0

    def mistakes(self) -> np.ndarray:
        """Return the positions in these arrays of the wrong answers, the most confident first."""
        wrong = np.flatnonzero(~self.right)
        return wrong[np.argsort(-self.confidence[wrong], kind="stable")]

    def pairs(self, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the pairs of label and predicted class that occur, (m, 2), sorted, and how often, (m,)."""
        pairs = np.stack([self.label, self.predicted], axis=1)[which]  # (n, 2)
        return np.unique(pairs, axis=0, return_counts=True)


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
    ece: float  # expected calibration error
    per_class: list[ClassScore]  # the classes that have examples
    predictions: Predictions
    bad: list[BadExample]  # the broken ones
    class_names: list[str]  # names of `label` in the predictions
    model_class_names: list[str]  # names of `predicted`
    answered: float | None = None  # share of the examples above the thresholds of a model that has them
    answered_top1: float | None = None  # accuracy on these
    real: float | None = None  # accuracy on real_n examples by ReaL labels (right_answers.py)
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
        if self.answered is not None:
            yield Score("answered", self.answered, self.n)
        if self.answered and self.answered_top1 is not None:
            yield Score("answered_top1", self.answered_top1, round(self.answered * self.n))
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
        wrong = [one for one in self.per_class if one.correct < one.n]
        return sorted(wrong, key=lambda one: one.accuracy)[:most]

    def confused_pairs(self, most: int) -> list[tuple[str, str, int, int]]:
        """Return (true class, predicted class, how often, of how many), the most frequent first, no single ones."""
        totals = np.bincount(self.predictions.label, minlength=len(self.class_names))  # (C,)
        cells, counts = self.predictions.pairs(~self.predictions.right)
        order = [k for k in np.argsort(-counts, kind="stable")[:most] if counts[k] > 1]
        return [
            (self.class_names[i], self.model_class_names[j], int(n), int(totals[i]))
            for (i, j), n in zip(cells[order], counts[order], strict=True)
        ]

    def as_json(self) -> dict[str, Any]:
        """Return everything except the predictions, as fractions; of the confusion matrix the nonzero cells."""
        names = ("data", "n", "broken", "left_out", *SCORES, "answered", "answered_top1", "real", "real_n")
        cells, counts = self.predictions.pairs(np.ones(self.n, bool))
        return {
            **{name: getattr(self, name) for name in names},
            "interval": {  # 95%
                s.name: accuracy_interval(s.value, s.n) for s in self.scores() if s.name in ACCURACIES
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
    model: RunnableLike,
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
    text_embeddings: str | Path | None = None,
) -> Evaluation:
    """Evaluate a model, a path or the name of one, on a labelled data set.

    `split`: None for the test split or, if there is none, the validation split. `batch_size`: images at a time, on
    each process. `num_workers`: processes that decode; None: chosen automatically. `mapping`: "order", or a file, if
    the classes of the data do not have the model's names; `real`: the file of ReaL labels, for ImageNet's validation
    images (right_answers.py). `max_bad`: share of the images that may be broken. `text_embeddings`: a file of
    embedded texts, which are the classes instead of the model's own (inference/zero_shot.py). A model stays on its
    device and in its mode; one from a path goes to the GPU if there is one.
    """
    source = open_split(data, split)
    refuse_several(source, "this evaluation: evaluate_labels does")
    model = as_runnable(model)
    model = model if text_embeddings is None else with_texts(model, text_embeddings)
    pipeline, classes = evaluation_pipeline(model, any_shape=True), map_classes(model, source, mapping)
    sets = None if real is None else real_sets(real, source, classes)
    kept = np.flatnonzero(classes.row[source.labels] >= 0)
    if not len(kept):
        raise DataError(
            f"{source.name}: none of its {len(source):,} examples has a class that is in {mapping}"
        )
    loader = evaluation_loader(Subset(source, kept), pipeline, batch_size, num_workers, max_bad)
    task = f"evaluate {source.name}" if progress else ""
    p, bad = judge(model, loader, classes, precision, task)
    p = replace(p, index=kept[p.index])
    n = np.bincount(p.label, minlength=len(classes.class_names))  # (C,)
    correct = np.bincount(p.label[p.right], minlength=len(classes.class_names))  # (C,)
    by_class = zip(classes.class_names, n.tolist(), correct.tolist(), strict=True)
    sure, sure_top1 = answered(p, model.calibration)
    scored = [] if sets is None else judge_by_sets(p, sets)
    return Evaluation(
        data=source.name,
        broken=len(kept) - len(p),
        left_out=len(source) - len(kept),
        **measures(p),
        per_class=[ClassScore(name, count, right) for name, count, right in by_class if count],
        predictions=p,
        bad=[replace(one, index=int(kept[one.index])) for one in bad],
        class_names=classes.class_names,
        model_class_names=classes.model_class_names,
        answered=sure,
        answered_top1=sure_top1,
        real=sum(scored) / len(scored) if scored else None,
        real_n=len(scored),
    )


def judge_by_sets(predictions: Predictions, sets: list[set[int]]) -> list[bool]:
    """Return which predictions are in the set of their image, where that is not empty."""
    p = predictions
    scored = [k in sets[i] for k, i in zip(p.predicted, p.index, strict=True) if sets[i]]
    if not scored:
        raise DataError("no example has a reassessed label: every set is empty")
    return scored


def answered(predictions: Predictions, calibration: Calibration) -> tuple[float | None, float | None]:
    """Return the share of the examples above the thresholds of the predicted classes, and the accuracy on these."""
    if not calibration.thresholds:
        return None, None
    floors = np.array(calibration.thresholds, np.float32)  # (K,)
    sure = predictions.confidence >= floors[predictions.predicted]  # (n,)
    right = float(predictions.right[sure].mean()) if sure.any() else None
    return float(sure.mean()), right


@dataclass(frozen=True)
class Accuracy:
    """The evaluator of a training run, for a model whose classes are those of the source.

    All processes call it; each judges its share, and each gets the scores of the whole.
    """

    source: Source
    batch_size: int = 64  # images at a time on each process
    num_workers: int | None = None
    max_bad: float = 0.01
    names: ClassVar = tuple(f"val_{score}" for score in SCORES)

    def __call__(self, model: nn.Module) -> Iterator[Score]:
        assert isinstance(model, Model)
        pipeline = evaluation_pipeline(model, any_shape=True)
        loader = evaluation_loader(self.source, pipeline, self.batch_size, self.num_workers, self.max_bad)
        predictions, _ = judge(model, loader, by_order(self.source.class_names))
        measured = measures(predictions)
        for name in SCORES:
            yield Score(f"val_{name}", measured[name], len(predictions))


def measures(predictions: Predictions) -> dict[str, Any]:
    """Return n, and the SCORES of n examples: means in float64."""
    return {
        "n": len(predictions),
        "top1": float(predictions.right.mean()),
        "top5": float((predictions.rank < TOP).mean()),
        "loss": float(predictions.loss.mean(dtype=np.float64)),
        "ece": expected_calibration_error(predictions.confidence, predictions.right),
    }


def judge(
    model: nn.Module, loader: Loader, mapping: ClassMapping, precision: Precision = "float32", task: str = ""
) -> tuple[Predictions, list[BadExample]]:
    """Return the predictions for every example of the loader's source, over all processes, and the broken ones.

    `task` names a progress bar.
    """
    device = next(model.parameters()).device
    row, right = (torch.from_numpy(a).to(device) for a in (mapping.row, mapping.right))  # (L,), (C, m)
    most = int(mapping.right.max())
    batches = []
    calibration = model.calibration
    assert isinstance(calibration, Calibration)
    for y, batch in outputs(model, loader, precision=precision, task=task):
        if most >= y.shape[1]:
            raise DataError(
                f"the data has a class {most}, but the model has only {y.shape[1]}: 0 to {y.shape[1] - 1}"
            )
        label = row[batch["label"]]  # (b,)
        numbers = score_logits(y, right[label], calibration)
        columns = {"index": batch["index"], "label": label, **numbers}
        batches.append(Predictions(**{name: t.cpu().numpy() for name, t in columns.items()}))
    predictions = join_predictions(gather(join_predictions(batches)))
    own = loader.bad_files
    broken = BadFiles(own.n, own.max_bad)  # of all processes: together too many, where those of each are not
    broken.add(bad for examples in gather(list(own.examples.values())) for bad in examples)
    if not len(predictions):
        raise DataError(f"no example could be used: {broken.summary()}")
    return predictions, sorted(broken.examples.values(), key=lambda bad: bad.index)


def score_logits(y: Tensor, right: Tensor, calibration: Calibration) -> dict[str, Tensor]:
    """Return the numbers above, (B,) each, for logits (B, K) and right answers (B, m), padded with -1."""
    log_p = calibration.scaled(y).log_softmax(dim=1)  # (B, K)
    padding, right = right < 0, right.clamp(min=0)
    log_p_right = log_p.gather(1, right).masked_fill(padding, -torch.inf)  # (B, m)
    best = right.gather(1, log_p_right.argmax(dim=1, keepdim=True))  # (B, 1)
    y_best = y.gather(1, best)  # (B, 1)
    before = torch.arange(y.shape[1], device=y.device) < best  # (B, K); of equals the first comes first
    return {
        "predicted": y.argmax(dim=1),
        "confidence": log_p.amax(dim=1).exp(),
        "rank": ((y > y_best) | ((y == y_best) & before)).sum(dim=1),
        "loss": -log_p_right.logsumexp(dim=1),
    }


def join_predictions(pieces: Sequence[Predictions]) -> Predictions:
    """Put the predictions of batches, or of processes, together in the order of the source, each example once."""
    names = [field.name for field in fields(Predictions)]
    arrays = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in names}
    order = np.argsort(arrays["index"])
    assert (np.diff(arrays["index"][order]) > 0).all(), "an example was judged twice"
    return Predictions(**{name: array[order] for name, array in arrays.items()})


def expected_calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Return the ECE of n answers: confidence in (0, 1], float (n,); whether it was right, bool (n,)."""
    confidence = confidence.astype(np.float64)
    b = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)  # (n,)
    gap = np.bincount(b, right, BINS) - np.bincount(b, confidence, BINS)  # (BINS,)
    return float(np.abs(gap).sum() / len(confidence))


def open_split(data: Source | str | Path, split: str | None) -> Source:
    """Open the part of the data to evaluate on: the test split, else validation, where `split` is None."""
    if isinstance(data, Source):
        if split is not None:
            raise ConfigError(
                f"split {split!r}: {data.name} is one split already; pass a path or a name instead"
            )
        return data
    if not isinstance(data, str | Path):
        raise ConfigError(f"data is a source, a path or a name, not of type {type(data).__name__}")
    return open_source(data, find_test_split(data) if split is None else split)
