"""The step of the training loop, on random images that are already on the device.

It is `Loop.update` and `Loop.settle` with the real training state: weighted loss, accuracy, clipping at norm 1,
AdamW, measurements read one step late; precision and compilation as `auto` resolves them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from vitrail.bench import peers
from vitrail.bench.rounds import OURS, Contestant, Step, Task
from vitrail.bench.subject import Subject
from vitrail.models.cost import cost
from vitrail.runtime.device import peak_flops
from vitrail.runtime.training_display import TrainingDisplay, Work
from vitrail.train.fit import Batch, Loop, Measured
from vitrail.train.keywords import override
from vitrail.train.settings import Experiment
from vitrail.train.state import TrainState

STEPS = 1_000_000  # of the schedule; more than are ever done
SETTINGS = {"lr": 1e-3, "warmup": 100, "weight_decay": 0.1, "steps": STEPS, "log_every": 100}


def training_task(subject: Subject) -> Task:
    """Return the training step of the subject, and of other libraries where asked for."""
    settings, cuda = subject.settings, subject.device.type == "cuda"
    changes = SETTINGS | {
        "batch_size": subject.batch_size,
        "precision": settings.precision,
        "seed": settings.seed,
    }
    experiment = override(Experiment(), changes).resolve(subject.batch_size, cuda=cuda)
    training, optimizer = experiment.training, experiment.optimizer
    contestants, missing = [Contestant(OURS, lambda: build_step(subject, experiment))], dict[str, str]()
    if settings.peers:
        others, missing = peers.training_contestants(
            subject,
            training.precision,
            lr=optimizer.lr,
            weight_decay=optimizer.weight_decay,
            grad_clip=optimizer.grad_clip,
        )
        contestants += others
    return Task(
        "train",
        subject.batch_size,
        contestants,
        missing,
        facts={
            "precision": training.precision,
            "compile": training.compile,
            "optimizer": optimizer.optimizer,
            "grad_clip": optimizer.grad_clip,
        },
        flops=cost(subject.config).training_flops,
        peak=peak_flops(subject.device) if training.precision == "bf16" else 0.0,
    )


class Repeated:
    """A source of batches that are all the same one."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def batches(self, start: int, stop: int, device: torch.device) -> Iterator[Batch]:
        return (dict(self.batch) for _ in range(start, stop))


def build_step(subject: Subject, experiment: Experiment) -> Step:
    """Return one step of the loop, which waits for the measurements of the step before."""
    device, b = subject.device, subject.batch_size
    data = Repeated(
        {
            "image": subject.images(b),
            "label": subject.labels(),
            "weight": torch.ones(b, device=device),
            "index": torch.arange(b, device=device),
        }
    )
    objective = experiment.objective.build(subject.model())
    state = TrainState.build(objective, experiment, device)
    loop = Loop(state, objective, data, experiment, device, TrainingDisplay(Work(STEPS, b), shown=False))
    batches, numbers = data.batches(0, STEPS, device), itertools.count()
    waiting: Measured | None = None

    def step() -> None:
        nonlocal waiting
        measured = loop.update(next(numbers), next(batches), "")
        loop.settle(waiting)
        waiting = measured

    return step
