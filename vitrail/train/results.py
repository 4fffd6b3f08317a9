"""The results in run.json of a finished run, and a check that the model beside it is still the one written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, TypedDict

from vitrail.checkpoints import bundle
from vitrail.checkpoints.json_files import Count
from vitrail.checkpoints.run.run_json import RUN_JSON, read_results
from vitrail.checkpoints.run.state import fingerprint
from vitrail.checkpoints.torch_files import check_own_folder

MODEL, FILES = "model", (bundle.WEIGHTS, bundle.CARD)
Scores = dict[str, float | None]  # None: not a finite number


class ClassScore(TypedDict):
    name: str
    n: Count
    accuracy: float


class Always(TypedDict):
    steps: Count
    kept_step: Count
    stopped_early: bool
    seconds: float
    val: Scores
    val_split: str | None
    val_examples: Count
    test: Scores | None
    broken: Count
    train_examples: Count
    computed: str
    license: dict[str, str]


class Results(Always, total=False):
    """The results of a finished run in run.json; entries of the test split only where there is one."""

    model: dict[str, str]  # the files of its bundle, and their SHA-256
    test_split: str
    test_examples: Count
    test_broken: Count
    per_class: list[ClassScore]
    wrong: Count


def written_model(folder: Path) -> dict[str, str]:
    """The files of a run's bundle and their SHA-256; nothing where one of them is missing."""
    try:
        return {name: fingerprint(folder / MODEL / name)["sha256"] for name in FILES}
    except OSError:
        return {}


def lacks_model(folder: Path) -> bool:
    """Return True for a finished run whose bundle is not the one that was written."""
    results = read_results(folder) if os.path.lexists(folder / RUN_JSON) else None
    return results is not None and is_broken(folder, results)


def is_broken(folder: Path, results: dict[str, Any]) -> bool:
    return not (model := written_model(folder)) or model != results.get("model")


def clear_model(folder: Path) -> None:
    """Make room for a bundle that is written again: of a damaged one a part may be missing. A folder with anything
    else in it is not a run's."""
    place = folder / MODEL
    check_own_folder(place, FILES, "trained")
    if place.is_dir():
        shutil.rmtree(place)
