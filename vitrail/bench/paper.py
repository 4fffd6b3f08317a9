"""The paper's two figures of speed (D.5, Figure 12) on this device: inference speed and the largest batch, for each
model and image size.

Batches of 1, 2, 4, ... random images that are on the device are passed through the model, not compiled, until the
memory is full; the speed is that of the best batch. On a CPU memory is not filled: batches end at MOST_CPU, and the
largest one is not measured. Whether the paper's largest batch is of training or of inference it does not say; here it
is inference.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from vitrail.bench import BenchSettings
from vitrail.bench.bench import describe_device
from vitrail.bench.infer import MANY
from vitrail.bench.rounds import free_memory, synchronise
from vitrail.bench.subject import Subject
from vitrail.inference.engine import forward_pass
from vitrail.inference.precision import Precision, choose_precision
from vitrail.models.names import Model, make_config
from vitrail.models.vit import ViTConfig
from vitrail.runtime.device import Device, pick
from vitrail.runtime.log import note
from vitrail.runtime.memory import exhausted_memory
from vitrail.runtime.progress import progress

MODELS = ("R50x1", "R50x2", "R152x2", "B/32", "B/16", "L/32", "L/16", "H/14")
SIZES = (64, 128, 224, 384, 512)
MOST, MOST_CPU = 8192, 8  # images at a time
SLOWER = 0.8  # of the best speed: below it, larger batches are only tried for the memory


@dataclass(frozen=True)
class Cell:
    """One model at one image size."""

    model: str
    image_size: int
    precision: str
    # images per second by batch size: median of the rounds
    speeds: dict[int, float] = field(default_factory=dict)
    full: bool = False  # the memory was full at twice the largest batch

    @property
    def best(self) -> tuple[int, float]:
        """Return the fastest batch size, and its images per second; (0, 0) if no batch fits."""
        return max(self.speeds.items(), key=lambda item: item[1], default=(0, 0.0))

    @property
    def largest(self) -> int | None:
        """Largest batch that fits in memory; None if the memory was not full."""
        return max(self.speeds, default=0) if self.full else None


@dataclass(frozen=True)
class PaperReport:
    device: str
    cells: list[Cell]

    def as_json(self) -> dict[str, Any]:
        cells = []
        for cell in self.cells:
            batch_size, speed = cell.best
            more = {
                "best_batch_size": batch_size,
                "images_per_second": speed,
                "largest_batch_size": cell.largest,
            }
            cells.append(asdict(cell) | more)
        return {"device_name": self.device, "torch": torch.__version__, "cells": cells}


def run_paper_bench(
    settings: BenchSettings, sizes: tuple[int, ...] = (), device: Device = "auto"
) -> PaperReport:
    """Measure every model at every size, or those that are set."""
    where = pick(device)
    models = MODELS if settings.model is None else (settings.model,)
    pairs = [(name, size) for name in models for size in fitting_sizes(name, sizes or SIZES)]
    note(f"Measuring {len(models)} models at {len(pairs)} sizes on {describe_device(where)}")
    cells = [
        measure_cell(name, size, settings, where)
        for name, size in progress(pairs, len(pairs), "bench --paper")
    ]
    return PaperReport(describe_device(where), cells)


def fitting_sizes(name: str, sizes: tuple[int, ...]) -> Iterator[int]:
    """Yield each size, or the nearest that the patches divide."""
    config = make_config(name)
    stride = config.stride if isinstance(config, ViTConfig) else 1
    yield from dict.fromkeys(max(1, round(size / stride)) * stride for size in sizes)


def measure_cell(name: str, size: int, settings: BenchSettings, device: torch.device) -> Cell:
    subject = Subject.choose(replace(settings, model=name), size, device)
    precision = choose_precision(settings.precision, device)
    speeds: dict[int, float] = {}
    most = MOST if device.type == "cuda" else settings.batch_size or MOST_CPU
    model, batch_size, full = subject.model(), 1, False
    while batch_size <= most and not full:
        best = max(speeds.values(), default=0.0)
        rounds = 1 if speeds and speeds[batch_size // 2] < SLOWER * best else settings.rounds
        try:
            speeds[batch_size] = images_per_second(
                model, batch_size, precision, rounds, settings.round_seconds
            )
        except (RuntimeError, MemoryError) as error:
            if not exhausted_memory(error):
                raise
            full = True
        free_memory(device)
        batch_size *= 2
    return Cell(name, size, precision, speeds, full)


def images_per_second(
    model: Model, batch_size: int, precision: Precision, rounds: int, round_seconds: float
) -> float:
    """Return the median of the rounds, each of one pass at least."""
    device = next(model.parameters()).device
    shape = (batch_size, model.config.channels, *model.config.image_size)
    images = torch.zeros(shape, device=device)  # (B, C, H, W); speed does not depend on the pixels
    speeds = []
    with forward_pass(model, precision=precision, n=MANY) as forward:
        forward(images)
        synchronise(device)
        for _ in range(rounds):
            begin, passes = time.perf_counter(), 0
            while not passes or time.perf_counter() - begin < round_seconds:
                forward(images)
                synchronise(device)
                passes += 1
            speeds.append(passes * batch_size / (time.perf_counter() - begin))
    return statistics.median(speeds)
