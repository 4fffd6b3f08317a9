"""The ops that end a preprocessing line: from 0..255 to the values that the model takes.

They take a float32 tensor (..., 3, H, W), of one image or of a batch, on any device, and work element by element,
so that an image gives the same bits alone and in a batch. Divisors are tensors on the device of x: a GPU divides
by a Python number through its reciprocal, which gives other bits than a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from vitrail.data.ops.pixel_ops import Op


@dataclass(frozen=True)
class ValueOp(Op):
    """Maps a float32 tensor (..., 3, H, W) in 0..255 to the range of the model.

    In place: a new tensor of a whole batch for each step of the arithmetic costs ten times the arithmetic.
    """

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class ToRange(ValueOp):
    """low + (high - low) x / 255."""

    name = "to_range"
    low: Annotated[float, -1e9, 1e9]
    high: Annotated[float, -1e9, 1e9]

    def __call__(self, x: Tensor) -> Tensor:
        return x.div_(_channels(255, x)).mul_(self.high - self.low).add_(self.low)


@dataclass(frozen=True)
class Normalize(ValueOp):
    """(x / 255 - mean) / std, in the order of torchvision's arithmetic; one number, or one for each channel."""

    name = "normalize"
    mean: Annotated[float | tuple[float, ...], -1e9, 1e9]
    std: Annotated[float | tuple[float, ...], 1e-9, 1e9]

    def __call__(self, x: Tensor) -> Tensor:
        return x.div_(_channels(255, x)).sub_(_channels(self.mean, x)).div_(_channels(self.std, x))


def _channels(value: float | tuple[float, ...], x: Tensor) -> Tensor:
    """Return a number for each channel of x, or one for all: (3, 1, 1) or (1, 1, 1)."""
    numbers = value if isinstance(value, tuple) else (value,)
    return torch.tensor(numbers, dtype=x.dtype).to(x.device, non_blocking=True)[:, None, None]  # (3, 1, 1)
