"""The running average of the weights (Polyak averaging; the paper's ImageNet numbers use 0.9999).

    average <- d average + (1 - d) weights      d = decay, as in the paper
                                                d = min(decay, (1 + t) / (10 + t)) after t updates, with a ramp

It begins as the weights that training begins with, of which decay^steps is left at the end: 13.5% of the paper's
20,000 steps. A ramp lets a short run forget them. It ends after about 9 / (1 - decay) updates; 20,000 get to 0.99955.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.train.parallel import local

MOST_LEFT = 0.3  # of the first weights, at the end, without a word


class Average:
    """Of all parameters of a module that are trained; `tensors` are part of a checkpoint."""

    def __init__(self, module: nn.Module, decay: float, ramp: bool = False) -> None:
        if not 0 < decay < 1:
            raise ConfigError(f"an average with decay {decay}: it must be between 0 and 1, as 0.9999")
        self.decay, self.ramp = decay, ramp
        self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.tensors: dict[str, Tensor] = {name: p.detach().clone() for name, p in self.parameters.items()}

    @torch.no_grad()
    def update(self, updates: int) -> None:
        """After `updates` earlier ones."""
        d = min(self.decay, (1 + updates) / (10 + updates)) if self.ramp else self.decay
        torch._foreach_lerp_(self._averages(), self._weights(), 1 - d)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The module holds the average inside, its own weights again after."""
        kept = [w.clone() for w in self._weights()]
        self.keep()
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._weights(), kept)

    @torch.no_grad()
    def keep(self) -> None:
        """The module holds the average from here on."""
        torch._foreach_copy_(self._weights(), self._averages())

    def _weights(self) -> list[Tensor]:
        return [local(p.detach()) for p in self.parameters.values()]

    def _averages(self) -> list[Tensor]:
        return [local(t) for t in self.tensors.values()]


def average_remark(decay: float, ramp: bool, steps: int) -> str:
    """Say so where the average hardly leaves where it began; else nothing."""
    left = decay**steps if 0 < decay < 1 and not ramp else 0.0
    if left <= MOST_LEFT:
        return ""
    return (
        f"average {decay:g} over {steps:,} steps: {left:.0%} of the average are the weights that training began "
        "with; --average-ramp, or a lower decay, leaves fewer"
    )
