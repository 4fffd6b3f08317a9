"""The inference engine, on random images that are already on the device: a large batch, and one image at a time."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor

from vitrail.bench import peers
from vitrail.bench.rounds import OURS, Contestant, Step, Task
from vitrail.bench.subject import Subject
from vitrail.inference.engine import evaluation_mode, forward_pass
from vitrail.inference.fp8 import measure_scales
from vitrail.inference.precision import Precision, choose_precision
from vitrail.models.cost import cost
from vitrail.runtime.device import peak_flops

MANY = 1_000_000_000  # images and batches to prepare for
CALIBRATED = 64  # images that scales for fp8 are measured on


def inference_task(subject: Subject, batch_size: int, *, latency: bool = False) -> Task:
    """Return the forward pass of the subject, and of other libraries where asked for."""
    precision = choose_precision(subject.settings.precision, subject.device)
    contestants, missing = (
        [Contestant(OURS, lambda: build_step(subject, batch_size, precision))],
        dict[str, str](),
    )
    if subject.settings.peers:
        theirs = "bf16" if precision == "fp8" else precision
        others, missing = peers.inference_contestants(subject, batch_size, theirs)
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
    """Return one pass of the engine over a batch, prepared as for very many."""
    model, images, entered = subject.model(), subject.images(batch_size), ExitStack()
    if precision == "fp8":
        few = images[:CALIBRATED]
        with torch.no_grad(), evaluation_mode(model):
            model.fp8 = measure_scales(model, lambda: model(few))
    forward = entered.enter_context(forward_pass(model, precision=precision, n=MANY, steps=MANY))

    def step() -> Tensor:
        assert (
            entered is not None
        )  # the weights are as the precision needs them for as long as there is a step
        return forward(images)

    return step
