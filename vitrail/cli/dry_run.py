"""pretrain --dry-run: the experiment with everything resolved, and what it needs. Imported when it is asked for."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from vitrail.cli.train_flags import Pretrain
from vitrail.cli.verb import Shown
from vitrail.data.sources import open_source
from vitrail.recipes.recipe import Recipe
from vitrail.runtime.device import peak_flops, pick
from vitrail.train.assembly import check_fits
from vitrail.train.estimate import TPU_V3_CORE, Accelerators, Estimate, estimate
from vitrail.train.experiment import Experiment
from vitrail.train.sources import with_splits


def dry_run(given: Pretrain, known: Recipe) -> Shown:
    """The experiment with every duration in steps, and what it needs."""
    experiment = given.experiment
    examples, classes, counted = examples_of(experiment, known)
    on, where = accelerators(given)
    made = estimate(experiment, examples, classes, on)
    resolved = replace(experiment, training=experiment.training.in_steps(examples, experiment.data.batch))
    rows = [*config_rows(asdict(resolved)), ["needs", "data", counted], *need_rows(made, on, where)]
    result: dict[str, Any] = {"recipe": known.name, "claim": known.claim, "command": known.command}
    result |= {"experiment": asdict(resolved), "examples": examples, "classes": classes}
    result |= {**asdict(made), "exaflops": made.exaflops, "memory_bytes": made.memory_bytes, **asdict(on)}
    return Shown(given.common, ["", "", ""], rows, result, after=[known.claim])


def examples_of(experiment: Experiment, known: Recipe) -> tuple[int, int, str]:
    """Examples and classes of the user's data, or of the data that the recipe was published with."""
    if not experiment.data.data:
        data = known.data
        text = f"{data.name}, as published: {data.examples:,} examples, {data.classes:,} classes"
        return data.examples, data.classes, text
    choice = with_splits(experiment.data)
    source = open_source(choice.data, choice.train)
    check_fits(experiment, source)
    examples, classes = len(source), len(source.class_names)
    return examples, classes, f"{source.name}: {examples:,} examples, {classes:,} classes"


def accelerators(given: Pretrain) -> tuple[Accelerators, str]:
    """What to estimate for, and what it is called."""
    if given.peak_tflops is not None:
        peak, where = given.peak_tflops * 1e12, "--peak-tflops"
    elif here := peak_flops(pick(given.common.device)):
        peak, where = here, "this machine's"
    else:
        peak, where = TPU_V3_CORE, "a TPUv3 core; another by --peak-tflops"
    return Accelerators(given.processes, peak, given.utilisation), where


def config_rows(experiment: dict[str, Any], part: str = "run") -> list[list[str]]:
    """part, field, value; the part is said once, and the parts of a part come after its own fields."""
    own = {name: value for name, value in experiment.items() if not isinstance(value, dict)}
    rows = [[part if not i else "", name, in_words(value)] for i, (name, value) in enumerate(own.items())]
    for name, value in experiment.items():
        if isinstance(value, dict):
            rows += config_rows(value, name)
    return rows


def in_words(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:,}" if type(value) is int else f"{value}"


def need_rows(made: Estimate, on: Accelerators, where: str) -> list[list[str]]:
    many = f"{on.processes} x {on.peak_flops / 1e12:g} TFLOP/s ({where}) at {on.utilisation:.0%}"
    return [
        ["", "steps", f"{made.steps:,} ({made.examples_seen:,} images)"],
        ["", "image size", "{} x {}".format(*made.image_size)],
        ["", "parameters", f"{made.parameters:,}"],
        ["", "exaFLOPs", f"{made.exaflops:,.4g}"],
        ["", "memory of a process", size(made.memory_bytes)],
        ["", "  weights, gradients, optimizer", size(made.state_bytes)],
        ["", "  activations", f"{size(made.activation_bytes)} (less by --accumulate, --recompute)"],
        ["", "time", f"{clock(made.seconds)} on {many}"],
        ["", "accelerator-days", f"{made.accelerator_days:,.3g}"],
    ]


def size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def clock(seconds: float) -> str:
    days, hours, minutes = seconds / 86_400, seconds / 3_600, seconds / 60
    if days >= 2:
        return f"{days:,.1f} days"
    return f"{hours:.1f} hours" if hours >= 2 else f"{minutes:.1f} minutes"
