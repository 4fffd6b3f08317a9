"""The running average of the weights (Polyak averaging; the paper's ImageNet numbers use 0.9999).

    average <- d average + (1 - d) weights      d = min(decay, (1 + t) / (10 + t)) after t updates

The ramp lets the average forget where it began in a short run. It ends after about 9 / (1 - decay) updates: a run of
20,000 with a decay of 0.9999 gets to 0.99955.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.train.parallel import local


class Average:
    """Of all parameters of a module that are trained; `tensors` are part of a checkpoint."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ConfigError(f"an average with decay {decay}: it must be between 0 and 1, as 0.9999")
        self.decay = decay
        self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.tensors: dict[str, Tensor] = {name: p.detach().clone() for name, p in self.parameters.items()}

    @torch.no_grad()
    def update(self, updates: int) -> None:
        """After `updates` earlier ones."""
        d = min(self.decay, (1 + updates) / (10 + updates))
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
