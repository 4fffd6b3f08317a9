"""pretrain --dry-run: the experiment with everything resolved, and what it needs. Imported when needed."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import torch

from vitrail.checkpoints.checkpoint import Checkpoint, change_image_size
from vitrail.checkpoints.run.records import flatten
from vitrail.cli.train_flags import PretrainOptions
from vitrail.cli.verb import Common, Output
from vitrail.data.preprocess import default_line
from vitrail.inference.engine import training_line
from vitrail.models.names import Config, build
from vitrail.recipes.recipe import Recipe
from vitrail.runtime.device import peak_flops, pick
from vitrail.train.assemble import check_fits, check_mixing, choose_compile, model_config, read_start
from vitrail.train.data_splits import open_data, resolve_splits
from vitrail.train.estimate import TPU_V3_CORE, Accelerators, Estimate, describe_seconds, estimate
from vitrail.train.settings import Experiment


def dry_run(options: PretrainOptions, experiment: Experiment, recipe: Recipe, common: Common) -> Output:
    """Show the experiment with every known value, every duration in steps, and what it needs."""
    check_mixing(experiment)
    # The settings that are not the recipe's, but for the path of its data: they void its claim.
    ours, theirs = (flatten(one.identity()) for one in (experiment, recipe.make()))
    differing = [name for name in {**theirs, **ours} if ours.get(name) != theirs.get(name)]
    changes = [name.split(".")[-1] for name in differing if name != "data.data"]
    if options.peak_tflops is not None:
        peak, where = options.peak_tflops * 1e12, "--peak-tflops"
    elif here := peak_flops(pick(common.device)):
        peak, where = here, "this machine's"
    else:
        peak, where = TPU_V3_CORE, "a TPUv3 core; another with --peak-tflops"
    on = Accelerators(options.processes, peak, options.utilisation)
    examples, classes = recipe.data.examples, recipe.data.classes
    data = f"{recipe.data.name}, as published: {examples:,} examples, {classes:,} classes"
    if experiment.data.data:
        opened = open_data(experiment.data)
        experiment = replace(experiment, data=resolve_splits(experiment.data, opened))
        train = opened.part(experiment.data.train)
        check_fits(experiment, train, on.processes)
        examples, classes = len(train), len(train.class_names)
        data = f"{train.name}: {examples:,} examples, {classes:,} classes"
    start = read_start(experiment.model)
    config = model_config(experiment, classes, start)
    needs = estimate(experiment, config, examples, on)
    device = pick(common.device)
    resolved = experiment.resolve(examples, cuda=device.type == "cuda")
    resolved = choose_compile(experiment, resolved, config, device)
    settings = with_model(resolved, config, start).as_dict()
    groups = {"run": {"seed": settings["seed"]}}
    groups |= {name: group for name, group in settings.items() if isinstance(group, dict)}
    groups["needs"] = {"data": data} | describe_needs(needs, on, where)
    rows = [
        ["" if i else part, name, show_value(value)]
        for part, group in groups.items()
        for i, (name, value) in enumerate(group.items())
    ]
    result: dict[str, Any] = {"recipe": recipe.name, "claim": recipe.claim, "command": recipe.command}
    result |= {"changes": changes, "experiment": settings, "examples": examples, "classes": classes}
    result |= {**asdict(needs), "exaflops": needs.exaflops, "memory_bytes": needs.memory_bytes, **asdict(on)}
    after = [recipe.claim, *([f"Changed from the recipe: {', '.join(changes)}."] if changes else [])]
    return Output(common, ["", "", ""], rows, result, after=after)


def with_model(experiment: Experiment, config: Config, start: Checkpoint | None) -> Experiment:
    """Fill in unset fields from the model itself."""
    settings, data = experiment.model, experiment.data
    with torch.device("meta"):
        model = build(config)
    own_line = default_line(config.image_size)
    if start is not None:
        settings.loaded_overrides()  # an error where they need other weights
        own_line = change_image_size(start, settings.pixels).preprocess
    model.preprocess = data.evaluate_preprocess or own_line
    line = data.preprocess or training_line(model)
    data = replace(data, preprocess=line, evaluate_preprocess=model.preprocess)
    return replace(experiment, model=settings.completed(config), data=data)


def describe_needs(needs: Estimate, on: Accelerators, where: str) -> dict[str, str]:
    many = f"{on.processes} x {on.peak_flops / 1e12:g} TFLOP/s ({where}) at {on.utilisation:.0%}"
    trained = "" if needs.trained == needs.parameters else f", {needs.trained:,} of them trained"
    less = "(less with --grad-accum, --activation-checkpointing)"
    return {
        "steps": f"{needs.steps:,} ({needs.examples_seen:,} images)",
        "image size": "{} x {}".format(*needs.image_size),
        "parameters": f"{needs.parameters:,}" + trained,
        "exaFLOPs": f"{needs.exaflops:,.4g}",
        "memory per process": size(needs.memory_bytes),
        "  weights, gradients, optimizer": size(needs.state_bytes),
        "  activations": f"{size(needs.activation_bytes)} {less}",
        "time": f"{describe_seconds(needs.seconds)} on {many}",
        "accelerator-days": f"{needs.accelerator_days:,.3g}",
    }


def show_value(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:,}" if type(value) is int else f"{value}"


def size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
