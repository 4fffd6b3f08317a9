"""The inference engine, on random images that are already on the device: a large batch, and one image at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch

from vitrail.bench import peers
from vitrail.bench.rounds import OURS, Contestant, Step, Task
from vitrail.bench.subject import Subject
from vitrail.data.loader import Batch, Loader
from vitrail.inference.engine import outputs
from vitrail.inference.precision import Precision, choose_precision
from vitrail.models.cost import cost
from vitrail.runtime.device import peak_flops


def inference_task(subject: Subject, batch_size: int, *, latency: bool = False) -> Task:
    """Return the forward pass of the subject, and of other libraries where asked for."""
    precision = choose_precision(subject.settings.precision, subject.device)
    contestants, missing = (
        [Contestant(OURS, lambda: build_step(subject, batch_size, precision))],
        dict[str, str](),
    )
    if subject.settings.peers:
        others, missing = peers.inference_contestants(subject, batch_size, precision)
        contestants += others
    return Task(
        "latency" if latency else "infer",
        batch_size,
        contestants,
        missing,
        latency=latency,
        facts={"precision": precision},
        flops=cost(subject.config).flops,
        peak=peak_flops(subject.device) if precision == "bf16" else 0.0,
    )


def build_step(subject: Subject, batch_size: int, precision: Precision) -> Step:
    """Return one pass of the engine over a batch; the only place here that calls the engine."""
    loader = cast(Loader, OnDevice(subject, batch_size))
    results = outputs(subject.model(), loader, precision=precision)
    return lambda: next(results)


class OnDevice:
    """The part of a Loader that the engine uses, with one batch that is on the device already, again and again."""

    def __init__(self, subject: Subject, batch_size: int) -> None:
        device = subject.device
        self.batch = {
            "image": subject.images(batch_size),
            "weight": torch.ones(batch_size, device=device),
            "index": torch.arange(batch_size, device=device),
        }

    def batches(self, **_: Any) -> Iterator[Batch]:
        while True:
            yield dict(self.batch)
