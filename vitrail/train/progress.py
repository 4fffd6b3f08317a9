"""The loop's records: the measurements of a step, the state between steps, the outcome of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoints.json_files import check_kind


@dataclass
class Outcome:
    """The end of a run. The objective holds the final weights: averaged, or the best, where asked for."""

    steps: int  # updates done
    scores: dict[str, float]  # of the weights that the objective holds
    seconds: float  # that it took, over all its sittings
    kept: int = 0  # the step of those weights
    interrupted: str = ""  # by which signal
    stopped_early: bool = False


@dataclass
class Progress:
    """The part of a checkpoint that is not tensors."""

    skipped: int = 0
    best: float | None = None
    best_step: int = 0
    stale: int = 0  # evaluations since the best
    scores: dict[str, float] = field(default_factory=dict)
    stopped_early: bool = False
    seconds: float = 0.0
    unevaluated: bool = False  # the step's evaluation is due, and not done

    @classmethod
    def from_json(cls, facts: dict[str, Any], where: str) -> Progress:
        """Read it from a checkpoint, which may be somebody else's."""
        check_kind(facts, cls, where)
        return cls(**facts)


@dataclass
class Measured:
    """Measurements of one step on their way from the device: loss, the objective's metrics, the gradient's norm."""

    step: int
    lr: float
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
    """Return a copy that the host does not wait for, and the event that says when it is there."""
    if values.device.type != "cuda":
        return values.cpu(), None
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    copy.copy_(values, non_blocking=True)
    ready = torch.cuda.Event()
    ready.record()
    return copy, ready
