"""What an evaluator says of a model: `evaluator(model) -> Iterator[Score]`, the same shape for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Score:
    """A number with its evidence."""

    name: str  # top1, loss, 5-shot, ...
    value: float
    n: int  # examples (or runs) that it stands on
    std: float | None = None  # over seeds, where there are several


Evaluator = Callable[[nn.Module], Iterator[Score]]
