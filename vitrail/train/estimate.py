"""Estimates of a run before it starts: steps, FLOPs, memory and time by arithmetic, or time measured on this machine.

    FLOPs         training FLOPs of an image (models/cost.py) x batch x steps
    memory        per process: weights, gradients and the optimizer's moments in float32, the average where there is
                  one, and what the backward pass keeps of its part of a batch
    time          FLOPs / (processes x peak x utilisation)

The layer by which masked patches are predicted is not counted: 0.2% of B/16 for mean colours.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from vitrail.checkpoints.checkpoint import Checkpoint, change_classes, change_image_size
from vitrail.errors import ConfigError
from vitrail.models.cost import Cost, accelerator_days, cost
from vitrail.models.names import Config
from vitrail.models.vit import ViTConfig
from vitrail.runtime.distributed import world
from vitrail.runtime.log import note
from vitrail.train.assemble import Assembled, fresh_config
from vitrail.train.optim import MOMENTS, OptimizerSettings
from vitrail.train.settings import Experiment, TrainingSettings

UTILISATION = 0.4  # fraction of the peak that training reaches, unless something else is known
TPU_V3_CORE = 61.5e12  # FLOP/s: what the paper counts its days in


@dataclass(frozen=True)
class Accelerators:
    """The machines that a run is estimated for."""

    processes: int = 1  # that share the global batch, with one accelerator each
    peak_flops: float = TPU_V3_CORE  # of one of them
    utilisation: float = UTILISATION


@dataclass(frozen=True)
class Estimate:
    steps: int
    examples_seen: int  # steps x batch
    image_size: tuple[int, int]
    parameters: int
    flops: float  # of the whole run
    state_bytes: int  # of a process: weights, gradients, moments, average
    activation_bytes: int  # of a process: kept for the backward pass
    accelerator_days: float  # of all processes together
    seconds: float  # by the clock

    @property
    def exaflops(self) -> float:
        return self.flops / 1e18

    @property
    def memory_bytes(self) -> int:
        return self.state_bytes + self.activation_bytes


def estimate(
    experiment: Experiment,
    config: Config,
    examples: int,
    on: Accelerators | None = None,
) -> Estimate:
    """Estimate a run of a model with this config over `examples` training images."""
    on = Accelerators() if on is None else on
    batch_size = experiment.data.batch_size
    resolved = experiment.resolve(examples, cuda=True)
    training, steps = resolved.training, int(resolved.training.steps)
    c = cost(config)
    flops = float(c.training_flops) * batch_size * steps
    days = accelerator_days(flops, on.peak_flops, on.utilisation)
    images = images_at_once(batch_size, on.processes, training.grad_accum)
    return Estimate(
        steps=steps,
        examples_seen=steps * batch_size,
        image_size=config.image_size,
        parameters=c.parameters,
        flops=flops,
        state_bytes=c.parameters * bytes_per_parameter(resolved.optimizer) // shards(training, on.processes),
        activation_bytes=images
        * values_kept(config, c, training)
        * (4 if training.precision == "float32" else 2),
        accelerator_days=days,
        seconds=days * 86_400 / on.processes,
    )


def model_config(experiment: Experiment, classes: int, start: Checkpoint | None = None) -> Config:
    """Return the config of the model that a run would train: fresh, or from the weights of `start`."""
    settings = experiment.model
    classes = classes if experiment.objective.needs_labels else 0
    if start is None:
        return fresh_config(settings, classes)
    body = change_classes(start, 0)  # its head is never kept
    return change_image_size(change_classes(body, classes), settings.image_size).config


def images_at_once(batch_size: int, processes: int, grad_accum: int) -> int:
    if processes < 1 or batch_size % (processes * grad_accum):
        raise ConfigError(
            f"batch_size {batch_size} cannot be split into equal parts: {processes} for the processes, times "
            f"{grad_accum} (grad_accum)"
        )
    return batch_size // (processes * grad_accum)


def bytes_per_parameter(optimizer: OptimizerSettings) -> int:
    """Count in float32 the weight, its gradient, AdamW's two moments or SGD's one, and the average."""
    return 4 * (2 + len(MOMENTS[optimizer.optimizer]) + bool(optimizer.ema))


def shards(training: TrainingSettings, processes: int) -> int:
    """Return the number of processes that share one copy of the state."""
    if training.parallel == "ddp":
        return 1
    if processes % training.replicas:
        raise ConfigError(f"{processes} processes do not form {training.replicas} groups of equal size")
    return processes // training.replicas


def values_kept(config: Config, c: Cost, training: TrainingSettings) -> int:
    """Count the values kept of one image. With checkpointing a layer keeps its input, and one layer at a time the
    rest."""
    if not training.activation_checkpointing or not isinstance(config, ViTConfig):
        return c.activations
    T, D = config.tokens, config.width
    layer = T * (8 * D + 2 * config.mlp_dim) * (2 if config.block == "axial" else 1)
    return c.activations - (config.depth - 1) * layer + config.depth * T * D


IMAGES, REPEATS = 8, 5
MOST_SECONDS = 10.0  # for measuring
LONG_SECONDS = 30 * 60.0


def advise(assembled: Assembled, *, runs: int) -> float:
    """Say how long so many runs will take here, measured on a few images of noise; on a CPU that needs over 30
    minutes, also what is quicker. Return the seconds."""
    experiment, device = assembled.experiment, assembled.device
    steps, batch_size = int(experiment.training.steps), experiment.data.batch_size
    with torch.random.fork_rng(devices=[]):
        seconds = (
            seconds_per_image(assembled) * steps * batch_size / world() * runs
        )  # processes share a batch
    many = f", {runs} runs" if runs > 1 else ""
    note(f"{steps:,} steps of {batch_size} images{many}: about {in_words(seconds)} on {device}")
    if device.type == "cpu" and seconds > LONG_SECONDS:
        note(
            "That is long on a CPU. A linear probe on frozen features takes one pass over the images: "
            f"vitrail linear {experiment.model.model} {experiment.data.data}; or train the head alone: --freeze body"
        )
    return seconds


def seconds_per_image(assembled: Assembled) -> float:
    """Measure forward and backward; the quickest of a few times, when everything is warm."""
    model, device = (
        assembled.model.train(),
        assembled.device,
    )  # an objective may keep a state, or draw other views
    x = torch.rand(IMAGES, 3, *model.config.image_size, device=device) * 2 - 1
    least, begin = float("inf"), time.perf_counter()
    for _ in range(REPEATS):
        start = time.perf_counter()
        with torch.autocast(
            device.type, torch.bfloat16, enabled=assembled.experiment.training.precision == "bf16"
        ):
            y = model(x)
        y.float().sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        least = min(least, time.perf_counter() - start)
        if time.perf_counter() - begin > MOST_SECONDS:
            break
    model.zero_grad(set_to_none=True)
    return least / IMAGES


def in_words(seconds: float) -> str:
    if seconds < 90:
        return "1 second" if round(seconds) == 1 else f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
