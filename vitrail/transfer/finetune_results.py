"""What run.json says of a finished fine-tuning: the rate that a sweep chose, and each score over the seeds."""

from __future__ import annotations

import math
import statistics
from typing import Any, TypedDict

from vitrail.checkpoints.json_files import Count
from vitrail.train.results import ClassScore, Scores
from vitrail.train.run import Trained
from vitrail.transfer.finetune_settings import Finetuning


class Swept(TypedDict):
    """What a rate is chosen by."""

    val_top1: float
    val_loss: float | None


class Scored(TypedDict):
    mean: float | None
    std: float | None
    values: list[float | None]


class Always(TypedDict):
    rate: float
    sweep: dict[str, Swept]
    dev: float | None
    seeds: Count
    steps: Count
    scores: dict[str, Scored]
    test_split: str | None
    test_examples: Count | None
    train_examples: Count
    broken: Count
    per_class: list[ClassScore]
    wrong: Count | None
    untested: list[str]
    license: dict[str, str]


class Results(Always, total=False):
    """In run.json, of a finished fine-tuning."""

    model: dict[str, str]  # the files of its bundle, and their SHA-256


def best_of(swept: dict[str, Scores]) -> str:
    """The name of a rate; a loss that is not finite is the worst."""

    def worth(name: str) -> tuple[float, float]:
        top1, loss = swept[name]["val_top1"], swept[name]["val_loss"]
        assert top1 is not None
        return top1, -math.inf if loss is None else -loss

    return max(swept, key=worth)


def summary(f: Finetuning, rate: float, swept: dict[str, Scores], runs: list[Trained]) -> dict[str, Any]:
    tests = [trained.results["test"] or {} for trained in runs]
    scores = {}
    for name in tests[0]:
        values = [test.get(name) for test in tests]
        finite = [value for value in values if value is not None]
        whole = len(finite) == len(values)
        spread = statistics.stdev(finite) if whole and len(values) > 1 else None
        mean = statistics.mean(finite) if whole else None
        scores[name] = {"mean": mean, "std": spread, "values": values}
    first = runs[0].results
    return {
        "rate": rate,
        "sweep": swept,
        "dev": f.dev if swept else None,
        "seeds": f.seeds,
        "steps": first["steps"],
        "scores": scores,
        "test_split": first.get("test_split"),
        "test_examples": first.get("test_examples"),
        "train_examples": first["train_examples"],
        "broken": first["broken"],
        "per_class": class_means(runs),
        "wrong": first.get("wrong"),
        "license": first["license"],
    }


def class_means(runs: list[Trained]) -> list[dict[str, Any]]:
    """Of each class that was tested, how many images, and the mean accuracy over the seeds."""
    by_seed = zip(*(trained.results.get("per_class", []) for trained in runs), strict=False)
    return [
        {"name": same[0]["name"], "n": same[0]["n"], "accuracy": statistics.mean(c["accuracy"] for c in same)}
        for same in by_seed
    ]
