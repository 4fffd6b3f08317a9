"""The exponential moving average of the weights (Polyak averaging; the paper's ImageNet numbers use 0.9999).

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

from vitrail.train.parallel import local

MOST_LEFT = 0.3  # share of the first weights that may be left at the end without a remark


class EMA:
    """The average of all parameters of a module that are trained; `tensors` are part of a checkpoint."""

    def __init__(self, module: nn.Module, decay: float, ramp: bool = False) -> None:
        assert 0 < decay < 1, decay
        self.decay, self.ramp = decay, ramp
        self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.tensors: dict[str, Tensor] = {name: p.detach().clone() for name, p in self.parameters.items()}

    @torch.no_grad()
    def update(self, updates: int) -> None:
        """Take in the weights, after `updates` earlier updates."""
        d = min(self.decay, (1 + updates) / (10 + updates)) if self.ramp else self.decay
        torch._foreach_lerp_(self._averages(), self._weights(), 1 - d)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the module hold the average inside, and its own weights again after."""
        kept = [w.clone() for w in self._weights()]
        self.keep()
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._weights(), kept)

    @torch.no_grad()
    def keep(self) -> None:
        """Let the module hold the average from here on."""
        torch._foreach_copy_(self._weights(), self._averages())

    def _weights(self) -> list[Tensor]:
        return [local(p.detach()) for p in self.parameters.values()]

    def _averages(self) -> list[Tensor]:
        return [local(t) for t in self.tensors.values()]


def ema_remark(decay: float, ramp: bool, steps: int) -> str:
    """Return a remark where the average hardly leaves where it began; else nothing."""
    left = decay**steps if 0 < decay < 1 and not ramp else 0.0
    if left <= MOST_LEFT:
        return ""
    return (
        f"ema {decay:g} over {steps:,} steps: {left:.0%} of the average is still the initial weights; "
        "--ema-ramp or a lower decay leaves less"
    )
