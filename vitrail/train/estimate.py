"""Estimates of a run before it starts: steps, FLOPs, memory and time by arithmetic, or time measured on this machine.

    FLOPs         training FLOPs of an image (tuning.py) x batch x steps
    memory        per process: weights in float32, of those that learn also gradients, the optimizer's moments and the
                  average where there is one; and what the backward pass keeps of its part of a batch
    time          FLOPs / (processes x peak x utilisation)

The layer by which masked patches are predicted is not counted: 0.2% of B/16 for mean colours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vitrail.models.cost import accelerator_days
from vitrail.models.names import Config
from vitrail.models.vit import ViTConfig
from vitrail.runtime.distributed import world
from vitrail.runtime.log import note
from vitrail.train.assemble import Assembled
from vitrail.train.frozen import FrozenLoader
from vitrail.train.optim import MOMENTS
from vitrail.train.parallel import check_processes
from vitrail.train.settings import Experiment
from vitrail.train.tuning import parse_tune, training_cost

UTILISATION = 0.4  # fraction of the peak that training reaches, unless something else is known
TPU_V3_CORE = 61.5e12  # FLOP/s: what the paper counts its days in
IMAGES, REPEATS, MOST_SECONDS = 8, 5, 10.0  # for measuring
LONG_SECONDS = 30 * 60.0


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
    trained: int  # of them
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
    experiment: Experiment, config: Config, examples: int, on: Accelerators | None = None
) -> Estimate:
    """Estimate a run of a model with this config over `examples` training images."""
    on = Accelerators() if on is None else on
    batch_size = experiment.data.batch_size
    check_processes(experiment.training, batch_size, on.processes)
    resolved = experiment.resolve(examples, cuda=True)
    training, optimizer, steps = resolved.training, resolved.optimizer, int(resolved.training.steps)
    c = training_cost(config, optimizer.tune, optimizer.freeze)
    flops = float(c.flops) * batch_size * steps
    days = accelerator_days(flops, on.peak_flops, on.utilisation)
    # In float32 the weight; if it learns its gradient, AdamW's two moments or SGD's one, and the average.
    state = 4 * (c.trained * (2 + len(MOMENTS[optimizer.optimizer]) + bool(optimizer.ema)) + c.fixed)
    activations = c.activations  # values kept of one image
    kind, number = parse_tune(optimizer.tune)
    layers = {"head": 0, "last": number}.get(kind, getattr(config, "depth", 0))  # that keep something
    if training.activation_checkpointing and isinstance(config, ViTConfig) and layers:
        # A layer keeps its input, and one layer at a time the rest.
        T, D = config.tokens, config.width
        layer = T * (8 * D + 2 * config.mlp_dim) * (2 if config.block == "axial" else 1)
        activations += layers * T * D - (layers - 1) * layer
    images = batch_size // (on.processes * training.grad_accum)
    return Estimate(
        steps=steps,
        examples_seen=steps * batch_size,
        image_size=config.image_size,
        parameters=c.trained + c.fixed,
        trained=c.trained,
        flops=flops,
        state_bytes=state // (on.processes // training.replicas if training.parallel == "fsdp" else 1),
        activation_bytes=images * activations * (4 if training.precision == "float32" else 2),
        accelerator_days=days,
        seconds=days * 86_400 / on.processes,
    )


def advise(assembled: Assembled, *, runs: int) -> float:
    """Note how long `runs` runs will take here, measured on a few images of noise; on a CPU that needs over 30
    minutes, also suggest what is faster. Return the seconds."""
    experiment, device = assembled.experiment, assembled.device
    steps, batch_size = int(experiment.training.steps), experiment.data.batch_size
    with torch.random.fork_rng(devices=[]):
        each = seconds_per_image(assembled)
    cached = isinstance(assembled.loader, FrozenLoader)
    images = len(assembled.sources.train) if cached else steps * batch_size
    seconds = each * images / world() * runs  # processes share a batch
    many = f", {runs} runs" if runs > 1 else ""
    once = f"One pass over {images:,} images, then " if cached else ""
    what = f"{'of their features' if cached else 'images'}{many}"
    note(f"{once}{steps:,} steps of {batch_size} {what}: about {describe_seconds(seconds)} on {device}")
    if device.type == "cpu" and seconds > LONG_SECONDS:
        note(
            "That is long on a CPU. A linear probe on frozen features needs one pass over the images: "
            f"vitrail linear {experiment.model.model} {experiment.data.data}; or train only the head: --tune head; "
            "or give the time that you have: --budget 20m"
        )
    return seconds


def seconds_per_image(assembled: Assembled, typical: Callable[[Sequence[float]], float] = min) -> float:
    """Measure forward and backward; the quickest of a few times, when everything is warm, or another of them."""
    # The model alone: an objective may keep a state, or draw other views.
    model, device = assembled.model.train(), assembled.device
    bf16 = assembled.experiment.training.precision == "bf16"
    x = torch.rand(IMAGES, 3, *model.config.image_size, device=device) * 2 - 1
    times: list[float] = []
    while len(times) < REPEATS and sum(times) < MOST_SECONDS:
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            y = model(x)
        y.float().sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    model.zero_grad(set_to_none=True)
    return typical(times) / IMAGES


def describe_seconds(seconds: float) -> str:
    if seconds < 90:
        return "1 second" if round(seconds) == 1 else f"{seconds:.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 2 * 86_400 else f"{seconds / 86_400:,.1f} days"
