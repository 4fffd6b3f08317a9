"""The speed of this machine, for a run with a budget: measured on a few images, and kept in the run's run.json."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import torch

from vitrail.checkpoints.json_files import check_kind
from vitrail.checkpoints.run.records import RUN_JSON, read_run_json
from vitrail.data.loader import Loader
from vitrail.errors import DataError
from vitrail.runtime.device import Device, pick
from vitrail.runtime.distributed import gather, group
from vitrail.train.assemble import Assembled, Inputs, assemble
from vitrail.train.estimate import seconds_per_image
from vitrail.train.keywords import override
from vitrail.transfer.facts import Facts, Speed
from vitrail.transfer.protocols import plain

READ = 8  # images


class Measured(TypedDict):
    """A speed in run.json."""

    flops: float
    reading: float


def find_speed(
    out: str | Path | None, budget: str, facts: Facts, inputs: Inputs, model: str, device: Device
) -> Speed:
    """Return the speed that the run in `out` began with, if it has this budget; else measure it."""
    with group(pick(device)) as where:
        speed = None if out is None else recorded_speed(Path(out).expanduser(), budget)
        return gather(speed or measure_speed(facts, inputs, model, where))[0]  # that of the first process


def recorded_speed(folder: Path, budget: str) -> Speed | None:
    if not os.path.lexists(folder / RUN_JSON):
        return None
    config = read_run_json(folder)["config"]
    sweep, speed = config.get("sweep"), config.get("speed")
    if not isinstance(sweep, dict) or sweep.get("budget") != budget or speed is None:
        return None  # the run of other settings, which is refused later
    check_kind(speed, Measured, f"{folder / RUN_JSON}: speed")
    return Speed(**speed)


def measure_speed(facts: Facts, inputs: Inputs, model: str, device: torch.device) -> Speed:
    """Train and read a few images, at the checkpoint's own image size."""
    usual = plain(replace(facts, image_size=facts.model_size, tune=None, preprocess=None, budget=""))
    named = {"model": model, "augment": "light", "val": "none", "test": "none"}
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        assembled = assemble(override(usual.experiment, named), device, Path(folder), inputs)
        each = seconds_per_image(assembled, statistics.median)  # of a machine as busy as it is
        reading = seconds_to_read(assembled)
    return Speed(facts.flops(facts.model_size, "all") / each, reading)


def seconds_to_read(assembled: Assembled) -> float:
    loader: Loader = assembled.loader
    source, began, read = loader.stream.source, time.perf_counter(), 0
    for index in range(0, len(source), max(1, len(source) // READ)):
        with suppress(DataError):  # broken ones are reported by the loader
            loader.stream.draws(0, index)
            read += 1
    return (time.perf_counter() - began) / max(1, read) / max(1, loader.stream.settings.num_workers or 0)
