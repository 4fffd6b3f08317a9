"""A study from start to end: plan, cost, the runs that are missing, results, figure, page.

    run_study(study, choices, out)      the same call again continues; nothing is computed twice

A study's folder holds plan.json, runs/ (every run, resumable), results.csv, figure.png and .svg, page.html and .md.
"""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitrail.errors import ConfigError
from vitrail.runtime.device import Device, pick
from vitrail.runtime.files import check_writable
from vitrail.runtime.log import note
from vitrail.runtime.progress import progress
from vitrail.studies.cost import Costs, PieceCost, remaining_seconds
from vitrail.studies.local import wait, workers
from vitrail.studies.page import conclude, draw_figure, make_page, write_pages
from vitrail.studies.plan import PLAN, RUNS, Choices, Plan, make_plan
from vitrail.studies.results import CSV, Results, collect, write_csv
from vitrail.studies.study import Study
from vitrail.studies.work import piece_results, work
from vitrail.train.estimate import describe_seconds
from vitrail.transfer.tables import check_no_link, results_lock

AT_ONCE = {"cuda": 5}  # runs at once, by device; elsewhere one
On = Literal["here", "ray"]


@dataclass(frozen=True)
class Machine:
    """Choice of where the runs are computed."""

    at_once: int | None = None  # number of runs at once; if unset, 5 on CUDA, else 1
    minutes: float | None = None  # stop after this time, saving; the same command continues
    on: On = "here"  # this machine, or a Ray cluster
    # address of the Ray cluster; if unset, a running one, else one on this machine
    ray_address: str | None = None

    def __post_init__(self) -> None:
        if self.at_once is not None and self.at_once < 1:
            raise ConfigError(f"at_once {self.at_once}: must be at least 1")
        if self.minutes is not None and not self.minutes > 0:
            raise ConfigError(f"minutes {self.minutes:g}: must be above 0")


@dataclass(frozen=True)
class Estimate:
    """Cost of a study, and how much of it is left."""

    plan: Plan
    costs: dict[str, PieceCost]
    left: int  # runs
    seconds: float  # of those
    basis: str  # of the seconds
    at_once: int

    @property
    def exaflops(self) -> float:
        return sum(one.flops for one in self.costs.values()) / 1e18

    def sentence(self) -> str:
        runs = f"{len(self.costs)} runs, {self.exaflops:.3g} exaFLOPs"
        if not self.left:
            return f"{runs}: all are finished"
        if not self.plan.data:
            return runs  # of the authors' data, on their machines
        done = f", {len(self.costs) - self.left} of them finished" if self.left < len(self.costs) else ""
        time = f"about {describe_seconds(self.seconds)}, estimated {self.basis}"
        return f"{runs}{done}; {self.at_once} at once: {time}"


@dataclass(frozen=True)
class Finished:
    """A study as far as it is finished."""

    folder: Path
    plan: Plan
    results: Results
    verdict: str


def estimate_study(
    study: Study, choices: Choices, out: str | Path, machine: Machine | None = None, device: Device = "auto"
) -> Estimate:
    """Plan a study and estimate what is left of it; writes nothing."""
    where, machine = pick(device), machine or Machine()
    plan = make_plan(study, choices)
    at_once = machine.at_once or AT_ONCE.get(where.type, 1)
    costs = Costs(study.scales[choices.size], where)
    each = {piece.name: costs.estimate(piece) for piece in plan.pieces}
    done = {name: r["seconds"] for name in each if (r := piece_results(Path(out), name)) is not None}
    seconds, basis = remaining_seconds(plan, each, done, at_once)
    return Estimate(plan, each, len(each) - len(done), seconds, basis, at_once)


def run_study(
    study: Study, choices: Choices, out: str | Path, machine: Machine | None = None, device: Device = "auto"
) -> Finished:
    """Run what is missing of a study, and write its results and its page."""
    folder, machine = Path(out).expanduser(), machine or Machine()
    check_folder(folder)
    estimate = estimate_study(study, choices, folder, machine, device)
    plan = estimate.plan
    if not plan.data:
        raise ConfigError(f"study {study.name} at size {plan.size} needs data: --data PATH")
    collect(
        plan, folder, study.scores, study.figure.x
    )  # refuses another version's runs before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    # The longest runs first, before them what others wait for.
    needed = {name for piece in plan.pieces for name in piece.needs()}
    plan.ordered(lambda piece: (piece.name not in needed, -estimate.costs[piece.name].flops)).write(folder)
    note(f"{study.name}, {plan.size}: {estimate.sentence()}")
    begin = time.monotonic()
    if estimate.left:
        until = None if machine.minutes is None else begin + 60 * machine.minutes
        compute(folder, plan, estimate.at_once, machine, until, device)
    return finish_study(study, choices, plan, folder)


def compute(
    folder: Path, plan: Plan, at_once: int, machine: Machine, until: float | None, device: Device
) -> None:
    """Let the workers do what is left, showing how many runs are finished."""
    group: AbstractContextManager[Callable[[], bool]]
    if machine.on == "ray":
        from vitrail.studies.cluster import ray_workers

        group = ray_workers(folder, at_once, device, machine.ray_address)
    elif at_once == 1 and until is None:
        work(folder, device)
        return
    else:
        group = workers(folder, at_once, device)
    total = len(plan.pieces)
    bar = progress(range(total), total, f"{plan.study}: runs")
    shown = 0

    def show() -> None:
        nonlocal shown
        done = sum(piece_results(folder, piece.name) is not None for piece in plan.pieces)
        while shown < done:
            next(bar, None)
            shown += 1

    with group as running:
        if not wait(running, until, show):
            note(f"Stopped after {machine.minutes:g} minutes, saved; the same command continues")


def finish_study(study: Study, choices: Choices, plan: Plan, folder: Path) -> Finished:
    """Write results.csv, the figure and the page of what is finished."""
    with results_lock(folder):
        results = collect(plan, folder, study.scores, study.figure.x)
        write_csv(results.rows, folder / CSV)
        draw_figure(study, plan, results, folder)
        page = make_page(study, plan, results, describe_command(study, choices))
        write_pages(page, folder)
    return Finished(folder, plan, results, conclude(study, results))


def describe_command(study: Study, choices: Choices) -> str:
    """Return the command that makes this study."""
    words = ["vitrail", "study", study.name]
    for field in dataclasses.fields(choices):
        value = getattr(choices, field.name)
        if field.name == "size" or value != field.default:
            flag = f"--{field.name.replace('_', '-')}"
            words += [
                flag,
                *([] if value is True else map(str, value) if isinstance(value, tuple) else [str(value)]),
            ]
    return shlex.join(words)


def check_folder(folder: Path) -> None:
    """Refuse a folder of something else, and links that would be followed."""
    check_writable(folder)
    for name in (PLAN, RUNS, CSV):
        check_no_link(folder / name)
    others = [p.name for p in folder.iterdir() if not p.name.startswith(".")] if folder.is_dir() else []
    if others and PLAN not in others:
        raise ConfigError(f"{folder} is not the folder of a study (it has no {PLAN}): choose another (--out)")
