"""Probes of frozen features in one call each: how good a representation is on a data set, without fine-tuning.

    vitrail.knn("ti8-64", "photos")         [Score(name="knn", value=0.78, n=400), ...]

`model`: a model, a path or a name. Settings are chosen on a held-out part of the training split, never on the test
split. `which`: the features (features.representation). `cache`: a folder that keeps them for the next probe.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitrail.data.sources import Source, find_test_split, open_source
from vitrail.data.splits import check_apart
from vitrail.evaluators.fewshot import L2, Draws, FewShot, fitting_shots
from vitrail.evaluators.knn import KNN, TEMPERATURE
from vitrail.evaluators.linear import SWEEP, LinearProbe
from vitrail.evaluators.score import Score
from vitrail.inference.engine import RunnableLike
from vitrail.inference.exported import as_runnable
from vitrail.inference.features import Extraction


def fewshot(
    model: RunnableLike,
    data: str | Path,
    *,
    shots: Sequence[int] = (),
    seeds: int = 3,
    l2: Sequence[float] = (L2,),
    draws: Draws = "vitrail",
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
    probe = FewShot(train, test, shots or fitting_shots(train), seeds, l2, extraction, draws=draws)
    return list(probe(as_runnable(model)))


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
    l2: Sequence[float] = SWEEP,
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
    (score,) = LinearProbe(train, test, l2, extraction)(as_runnable(model))
    return score


def open_probe_splits(data: str | Path, train_split: str, test_split: str | None) -> tuple[Source, Source]:
    """Open the training split and the test split; the latter is by default test, else validation."""
    train = open_source(data, train_split)
    test = open_source(data, test_split or find_test_split(data, train_split))
    check_apart(train, test)
    return train, test
