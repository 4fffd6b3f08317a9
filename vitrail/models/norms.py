"""Norms and scales beside LayerNorm: each small, and off by default.

RMSNorm      x / sqrt(mean(x^2) + eps) * g         Zhang and Sennrich 2019, arXiv:1910.07467; torch.nn.RMSNorm
LayerScale   g * y, of a branch before it is added Touvron et al. 2021, arXiv:2103.17239, Eq. 4 (CaiT)
QK-norm      norms of each head's q and k          Dehghani et al. 2023, arXiv:2302.05442, section 2.1 (ViT-22B)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from vitrail.models.vit import ViTConfig


def make_norm(c: ViTConfig, width: int = 0) -> nn.Module:
    """Return the config's norm of tokens, or of vectors of another width."""
    kind = nn.RMSNorm if c.norm == "rms" else nn.LayerNorm
    return kind(width or c.width, eps=c.norm_eps)


class LayerScale(nn.Module):
    """y -> gamma * y, gamma (D) learned and small at first, so that each branch starts close to the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(width))

    def forward(self, y: Tensor) -> Tensor:
        return y * self.gamma


def make_scale(c: ViTConfig) -> LayerScale | None:
    return LayerScale(c.width) if c.layer_scale else None
