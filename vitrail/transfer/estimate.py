"""How long a fine-tuning will take here: measured on a few images before it starts."""

from __future__ import annotations

import time

import torch

from vitrail.data.sources import open_source
from vitrail.runtime.distributed import world
from vitrail.runtime.log import note
from vitrail.train.assembly import model_of, objective_of, plan_of
from vitrail.train.experiment import Experiment
from vitrail.train.optim import freeze

IMAGES, REPEATS = 8, 5
MOST_SECONDS = 10.0  # for measuring
LONG_SECONDS = 30 * 60.0


def seconds_an_image(experiment: Experiment, device: torch.device) -> float:
    """Forward and backward, on images of noise; the quickest of a few times, when everything is warm."""
    source = open_source(experiment.data.data, experiment.data.train)
    model = model_of(experiment, source).to(device)
    objective = objective_of(experiment.objective, model).train()
    freeze(model, experiment.training.optimization.freeze)
    training = experiment.training.in_steps(len(source), experiment.data.batch)
    bf16 = plan_of(training, experiment.seed, device).bf16
    x = torch.rand(IMAGES, 3, *model.config.image_size, device=device) * 2 - 1
    batch = {
        "image": x,
        "label": torch.zeros(IMAGES, dtype=torch.int64, device=device),
        "weight": torch.ones(IMAGES, device=device),
    }
    least, begun = float("inf"), time.perf_counter()
    for _ in range(REPEATS):
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss, _ = objective(batch)
        loss.backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        least = min(least, time.perf_counter() - start)
        if time.perf_counter() - begun > MOST_SECONDS:
            break
    return least / IMAGES


def advise(experiment: Experiment, device: torch.device, *, runs: int, sweep: int) -> float:
    """Say how long it will take, in seconds; on a CPU that needs over 30 minutes, what is quicker."""
    with torch.random.fork_rng(devices=[]):
        each = seconds_an_image(experiment, device)
    source = open_source(experiment.data.data, experiment.data.train)
    steps = experiment.training.in_steps(len(source), experiment.data.batch).steps
    assert isinstance(steps, int)
    seconds = each * steps * experiment.data.batch / world() * (runs + sweep)  # processes share a batch
    many = f", {runs + sweep} runs" if runs + sweep > 1 else ""
    note(f"{steps:,} steps of {experiment.data.batch} images{many}: about {in_words(seconds)} on {device}")
    if device.type == "cpu" and seconds > LONG_SECONDS:
        choice = experiment.model.model
        note(
            f"that is long on a CPU. A linear probe on frozen features takes one pass over the images: "
            f"vitrail linear {choice} {experiment.data.data}; or train the head alone: --freeze body"
        )
    return seconds


def in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
