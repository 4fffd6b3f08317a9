"""pretrain --dry-run: the experiment with everything resolved, and what it needs. Imported when it is asked for."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import torch

from vitrail.checkpoints.checkpoint import at_image_size
from vitrail.checkpoints.formats import has_weights, read
from vitrail.checkpoints.run.run_json import flatten
from vitrail.cli.train_flags import Pretrain
from vitrail.cli.verb import Shown
from vitrail.data.preprocess import default_line
from vitrail.data.sources import open_source
from vitrail.models.names import Model, build
from vitrail.recipes.recipe import Recipe
from vitrail.runtime.device import peak_flops, pick
from vitrail.train.assembly import check_fits, check_for_weights, check_used, training_line
from vitrail.train.estimate import TPU_V3_CORE, Accelerators, Estimate, estimate, model_config
from vitrail.train.experiment import Experiment
from vitrail.train.sources import with_splits, with_test


def dry_run(given: Pretrain, known: Recipe) -> Shown:
    """The experiment with all that is known of it, every duration in steps, and what it needs."""
    check_used(given.experiment)
    experiment = with_data(given.experiment)
    examples, classes, counted = examples_of(experiment, known)
    on, where = accelerators(given)
    made = estimate(experiment, examples, classes, on)
    resolved = with_model(experiment)
    resolved = replace(resolved, training=experiment.training.in_steps(examples, experiment.data.batch))
    rows = [*config_rows(asdict(resolved)), ["needs", "data", counted], *need_rows(made, on, where)]
    others = changes(given.experiment, known)
    result: dict[str, Any] = {"recipe": known.name, "claim": known.claim, "command": known.command}
    result |= {"changes": others}
    result |= {"experiment": asdict(resolved), "examples": examples, "classes": classes}
    result |= {**asdict(made), "exaflops": made.exaflops, "memory_bytes": made.memory_bytes, **asdict(on)}
    after = [known.claim, *([f"This run is another, by: {', '.join(others)}."] if others else [])]
    return Shown(given.common, ["", "", ""], rows, result, after=after)


def changes(experiment: Experiment, known: Recipe) -> list[str]:
    """The settings that are not the recipe's, but for where its data lies: its claim is not about such a run."""
    ours, theirs = (flatten(one.identity()) for one in (experiment, known.make()))
    return [name.split(".")[-1] for name in ours if name != "data.data" and ours[name] != theirs[name]]


def with_data(experiment: Experiment) -> Experiment:
    """With the splits that are meant, where there is data to look at."""
    if not experiment.data.data:
        return experiment
    return replace(experiment, data=with_test(with_splits(experiment.data)))


def with_model(experiment: Experiment) -> Experiment:
    """With what the model itself says where nothing else is given."""
    model, choice, data = outline(experiment), experiment.model, experiment.data
    H, W = model.config.image_size
    own = asdict(model.config) | {"image_size": H if H == W else None, "head_bias": 0.0}
    left = [name for name, value in asdict(choice).items() if value is None and name in own]
    choice = replace(choice, **{name: own[name] for name in left})
    data = replace(
        data, preprocess=data.preprocess or training_line(model), evaluate_preprocess=model.preprocess
    )
    return replace(experiment, model=choice, data=data)


def outline(experiment: Experiment) -> Model:
    """The model with its preprocessing line, but no weights."""
    choice = experiment.model
    if has_weights(choice.model):
        check_for_weights(choice)
        start = at_image_size(read(choice.model, image_size=choice.image_size), choice.image_size)
        config, line = start.config, start.preprocess
    else:
        config = model_config(experiment, classes=0)
        line = default_line(config.image_size)
    with torch.device("meta"):
        model = build(config)
    model.preprocess = experiment.data.evaluate_preprocess or line
    return model


def examples_of(experiment: Experiment, known: Recipe) -> tuple[int, int, str]:
    """Examples and classes of the user's data, or of the data that the recipe was published with."""
    if not experiment.data.data:
        data = known.data
        text = f"{data.name}, as published: {data.examples:,} examples, {data.classes:,} classes"
        return data.examples, data.classes, text
    source = open_source(experiment.data.data, experiment.data.train)
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
