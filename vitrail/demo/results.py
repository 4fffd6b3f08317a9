"""Types of the results of the demo: of each stage in OUT/NAME.json, of all stages in OUT/run.json."""

from __future__ import annotations

from typing import Any, TypedDict

from vitrail.checkpoints.json_files import Count
from vitrail.errors import CheckpointError


class Timed(TypedDict):
    seconds: float


class Answer(TypedDict):
    name: str
    probability: float


class Picture(TypedDict):
    name: str
    path: str
    label: str | None
    top: list[Answer]


class Pictures(Timed):
    description: str
    drawn: bool
    classes: Count
    pictures: list[Picture]


class Scored(TypedDict):
    name: str
    value: float
    std: float | None


class Fewshot(Timed):
    test: str
    seeds: Count
    scores: dict[str, list[Scored]]  # by the name of a model


class Finetuned(Timed):
    split: str
    top1: float
    train_examples: Count
    test_examples: Count


class Files(TypedDict):
    report: str
    summary: str


class Report(Timed):
    files: Files


class Results(TypedDict):
    pictures: Pictures
    fewshot: Fewshot
    finetune: Finetuned
    report: Report


KINDS: dict[str, Any] = {"pictures": Pictures, "fewshot": Fewshot, "finetune": Finetuned, "report": Report}


def check_complete(results: dict[str, Any], model: str, where: str) -> None:
    """Raise CheckpointError unless there are pictures, and scores of the model, to show."""
    if not results["pictures"]["pictures"] or model not in results["fewshot"]["scores"]:
        raise CheckpointError(
            f"{where}: no pictures, or no scores of {model}; remove this folder to run the demo again"
        )
