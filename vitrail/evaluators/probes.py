"""Probes of frozen features in one call each: how good a representation is on a data set, without fine-tuning.

    vitrail.knn("ti8-64", "photos")         [Score(name="knn", value=0.78, n=400), ...]

`model`: a model, a path or a name. Settings are chosen on held-out parts of the training split, never on the test
split. `which`: the features (features.representation). `cache`: a folder that keeps them for the next probe. `out`: a
new bundle, the model with the probe as its classifier; of few-shot, one that has learned from all training examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitrail.checkpoints.formats import save
from vitrail.data.several_labels import refuse_several
from vitrail.data.sources import Source, find_test_split, open_source
from vitrail.data.splits import check_apart
from vitrail.evaluators.classifier import check_writable, with_classifier
from vitrail.evaluators.fewshot import L2, Draws, FewShot, accuracy, fitting_shots, solve_all
from vitrail.evaluators.knn import KNN, TEMPERATURE
from vitrail.evaluators.linear import LinearProbe
from vitrail.evaluators.score import Score
from vitrail.inference.engine import RunnableLike
from vitrail.inference.exported import Runnable, as_runnable
from vitrail.inference.features import Extraction, train_and_test
from vitrail.models.names import Model


def fewshot(
    model: RunnableLike,
    data: str | Path,
    *,
    shots: Sequence[int] = (),
    seeds: int = 3,
    l2: Sequence[float] = (L2,),
    draws: Draws = "vitrail",
    out: str | Path | None = None,
    train_split: str = "train",
    test_split: str | None = None,
    which: str = "pre_logits",
    cache: str | Path | None = None,
    batch_size: int = 64,
    num_workers: int = 0,
) -> list[Score]:
    """Return the accuracy of least squares on a few examples of each class, a score for each number of shots."""
    train, test = open_probe_splits(data, train_split, test_split)
    extraction = Extraction(which, cache, batch_size, num_workers)
    evaluator = FewShot(train, test, shots or fitting_shots(train), seeds, l2, extraction, draws=draws)
    runnable = as_runnable(model)
    learned = [] if out is None else [learn_fewshot(evaluator, runnable, out)[1]]
    return [*evaluator(runnable), *learned]


def knn(
    model: RunnableLike,
    data: str | Path,
    *,
    k: Sequence[int] = (20,),
    temperature: float = TEMPERATURE,
    train_split: str = "train",
    test_split: str | None = None,
    which: str = "pre_logits",
    cache: str | Path | None = None,
    batch_size: int = 64,
    num_workers: int = 0,
) -> list[Score]:
    """Return the accuracy of the vote of the k nearest training images, weighted by similarity and unweighted."""
    train, test = open_probe_splits(data, train_split, test_split)
    extraction = Extraction(which, cache, batch_size, num_workers)
    return list(KNN(train, test, k, temperature, extraction)(as_runnable(model)))


def linear(
    model: RunnableLike,
    data: str | Path,
    *,
    l2: Sequence[float] = (),
    out: str | Path | None = None,
    train_split: str = "train",
    test_split: str | None = None,
    which: str = "pre_logits",
    cache: str | Path | None = None,
    batch_size: int = 64,
    num_workers: int = 0,
) -> Score:
    """Return the accuracy of logistic regression on the features."""
    train, test = open_probe_splits(data, train_split, test_split)
    extraction = Extraction(which, cache, batch_size, num_workers)
    evaluator, runnable = LinearProbe(train, test, l2, extraction), as_runnable(model)
    _, score = evaluator.chosen(runnable) if out is None else learn_linear(evaluator, runnable, out)
    return score


def learn_linear(evaluator: LinearProbe, model: Runnable, out: str | Path) -> tuple[float, Score]:
    """Fit the probe, and write the model with it; return the l2 and the score."""
    body = check_writable(model, evaluator.extraction.which, out)
    l2, score, probe = evaluator.fitted(body)
    write_classifier(body, *probe.affine(), evaluator, l2, score, out)
    return l2, score


def learn_fewshot(
    evaluator: FewShot, model: Runnable, out: str | Path, l2: Sequence[float] = ()
) -> tuple[float, Score]:
    """Solve for all training examples, and write the model with that; return the l2 and the score. Of several l2 the
    best by five folds, of none that of a grid."""
    body = check_writable(model, evaluator.extraction.which, out)
    train, test, device = train_and_test(body, evaluator.train, evaluator.test, evaluator.extraction)
    solution, best, scale = solve_all(train, l2, device)
    weight, bias = solution.affine(best)
    score = Score("all", accuracy(solution, test, best), len(test))
    write_classifier(body, scale * weight, scale * bias, evaluator, best, score, out)
    return best, score


def write_classifier(
    body: Model,
    weight: np.ndarray,
    bias: np.ndarray,
    evaluator: FewShot | LinearProbe,
    l2: float,
    score: Score,
    out: str | Path,
) -> None:
    train, kind = evaluator.train, "few-shot" if isinstance(evaluator, FewShot) else "linear probe"
    about = {"format": kind, "data": train.name, "examples": len(train), "l2": l2}
    learned = with_classifier(body, weight, bias, train.class_names, about)
    learned.metrics = {"test": {"top1": score.value, "n": score.n}}
    save(learned, out)


def open_probe_splits(data: str | Path, train_split: str, test_split: str | None) -> tuple[Source, Source]:
    """Open the training split and the test split; the latter is by default test, else validation."""
    train = open_source(data, train_split)
    test = open_source(data, test_split or find_test_split(data, train_split))
    refuse_several(train, "a probe of frozen features")
    check_apart(train, test)
    return train, test
