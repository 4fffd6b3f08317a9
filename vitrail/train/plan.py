"""What the loop is told, what it remembers between steps, what it measures in one, and what it comes to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from vitrail.checkpoints.json_files import check_kind
from vitrail.train.parallel import Parallel
from vitrail.train.schedule import Schedule


@dataclass(frozen=True)
class Plan:
    """How the loop runs; all durations in steps."""

    schedule: Schedule  # with the number of steps
    seed: int = 0
    accumulate: int = 1  # parts that a batch is computed in
    clip: float = 1.0  # largest global norm of the gradient; 0: none
    bf16: bool = False
    compile: bool = False
    graphs: bool = False  # of what is compiled: the host launches a step as one
    parallel: Parallel = "ddp"
    replicas: int = 1  # groups of processes that hold copies of the shards
    log_every: int = 10
    evaluate_every: int = 0  # 0: only at the end
    save_every: int = 0  # likewise
    watch: str = ""  # the score that early stopping and the best checkpoint look at
    patience: int = 0  # evaluations without a better one before the run ends; 0: never
    on_nonfinite: Literal["stop", "skip"] = "stop"
    max_skipped: int = 10  # batches

    @property
    def steps(self) -> int:
        return self.schedule.steps


@dataclass
class Outcome:
    """What a run came to. The objective holds the final weights: averaged, or the best, where asked for."""

    steps: int  # updates done
    scores: dict[str, float]  # of the weights that the objective holds
    seconds: float  # that it took, over all its sittings
    kept: int = 0  # the step of those weights
    interrupted: str = ""  # by which signal
    stopped_early: bool = False


@dataclass
class Progress:
    """What a checkpoint holds beside tensors."""

    skipped: int = 0
    best: float | None = None
    best_step: int = 0
    stale: int = 0  # evaluations since the best
    scores: dict[str, float] = field(default_factory=dict)
    stopped_early: bool = False
    seconds: float = 0.0
    unevaluated: bool = False  # the step's evaluation is due, and not done

    @classmethod
    def of(cls, facts: dict[str, Any], where: str) -> Progress:
        """From a checkpoint, which may be somebody else's."""
        check_kind(facts, cls, where)
        return cls(**facts)


@dataclass
class Measured:
    """Of one step: loss, the objective's own metrics, whether to stop, the norm; on their way from the device."""

    step: int
    rate: float
    names: list[str]
    values: Tensor  # on the host, once `ready`
    ready: torch.cuda.Event | None
    indices: Tensor

    def row(self) -> dict[str, float]:
        if self.ready is not None:
            self.ready.synchronize()
        return dict(zip(self.names, self.values.tolist(), strict=True))

    def finite(self) -> bool:
        return all(map(math.isfinite, self.row().values()))


def on_host(values: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """A copy that the host does not wait for, and the event that says when it is there."""
    if values.device.type != "cuda":
        return values.cpu(), None
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    copy.copy_(values, non_blocking=True)
    ready = torch.cuda.Event()
    ready.record()
    return copy, ready
