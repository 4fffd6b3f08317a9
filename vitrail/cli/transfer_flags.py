"""The flags of vtab and transfer: their own, and every setting of fine-tuning that they do not set themselves.

Apart from transfer_verbs.py because settings import torch; this file is imported when it is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from tyro import MISSING
from tyro.conf import Fixed

from vitrail.cli.verb import ModelPath
from vitrail.data.settings import DataSettings
from vitrail.train.settings import Experiment, ModelSettings
from vitrail.transfer.protocols import Sweep
from vitrail.transfer.suite import Method


@dataclass(frozen=True)
class VTABOptions:
    # an included model (ti8-64), a bundle, a run, any supported checkpoint, or an architecture
    model: ModelPath = MISSING
    # folder with a folder of Parquet files for each task or data set (see docs/transfer.md)
    data: str = MISSING
    out: str = ""  # folder for the results; if unset, runs/vtab-MODEL
    # names of tasks, or groups: natural, specialized, structured; if unset, all 19
    tasks: tuple[str, ...] = ()
    manifests: str | None = None  # folder of TASK.csv from another run; other examples are refused
    paper: str | None = None  # model of Table 9 to compare with: H/14 JFT, L/16 JFT or L/16 i21k


@dataclass(frozen=True)
class TransferOptions:
    # an included model (ti8-64), a bundle, a run, or any supported checkpoint
    model: ModelPath = MISSING
    # folders, Parquet or tar shards, .npz files, or names of the catalog
    data: tuple[str, ...] = MISSING
    out: str = ""  # folder for the results; if unset, runs/transfer-MODEL
    methods: tuple[Method, ...] = ("fewshot", "linear", "knn", "finetune")  # methods to run
    # model of the paper's Tables 5 and 6 to compare with, such as "B/16 i21k"; if unset, by the model's name
    paper: str | None = None


@dataclass(frozen=True)
class TaskModel(ModelSettings):
    model: Fixed[str] = ""


@dataclass(frozen=True)
class TaskData(DataSettings):
    data: Fixed[str] = ""
    train: Fixed[str] = "auto"
    val: Fixed[str] = "auto"
    test: Fixed[str] = "auto"


@dataclass(frozen=True)
class TaskSweep(Sweep):
    seeds: Fixed[int] = 1  # a flag of the suite


def hide_own(experiment: Experiment) -> Experiment:
    """Return the experiment without flags for settings that differ between data sets."""
    model = TaskModel(**vars(experiment.model) | {"model": ""})
    return replace(experiment, model=model, data=TaskData(**vars(experiment.data)))


def find_changes(words: list[str], *groups: Any) -> dict[str, Any]:
    """Return the settings of fine-tuning whose flags are among the words."""
    flags = {
        word.partition("=")[0].removeprefix("--").replace("-", "_") for word in words if word[:2] == "--"
    }
    named = {field.name: getattr(group, field.name) for group in groups for field in fields(group)}
    return {name: value for name, value in named.items() if name in flags - {"model", "data", "seeds"}}
