"""Fresh models have zero heads and constant norms, and comparing those proves nothing."""

from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


@torch.no_grad()
def randomise(model: M, seed: int = 0) -> M:
    """Every parameter set to distinct random values, norms around 1, so that outputs stay of order 1."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        scale = 0.5 * max(1, parameter[0].numel()) ** -0.5 if parameter.ndim > 1 else 0.1
        around = 1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0  # norms, whatever their name
        parameter.copy_(around + scale * torch.randn(parameter.shape, generator=generator))
    return model
