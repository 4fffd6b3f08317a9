"""q, k and v in one product, with biases for all of them, for q and v alone, or for none.

A bias of k adds the same number to all logits of a query, which the softmax cancels; so BEiT (Bao et al. 2021,
arXiv:2106.08254) and EVA (Fang et al. 2022, arXiv:2211.07636) leave it out. With rotary positions it would count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from vitrail.models.vit import ViTConfig


def make_qkv(c: ViTConfig) -> nn.Linear:
    if c.qkv_bias == "qv":
        return QVBias(c.width, 3 * c.width, bias=False)
    return nn.Linear(c.width, 3 * c.width, bias=c.qkv_bias == "all")


class QVBias(nn.Linear):
    """z (B, T, D) -> (B, T, 3 D) with a bias (2 D) of q and v."""

    def __init__(self, width: int, outputs: int, bias: bool = False) -> None:
        super().__init__(width, outputs, bias=bias)
        self.qv_bias = nn.Parameter(torch.empty(2 * width))

    def forward(self, z: Tensor) -> Tensor:
        b_q, b_v = self.qv_bias.chunk(2)  # (D) each
        return F.linear(z, self.weight, torch.cat([b_q, torch.zeros_like(b_q), b_v]))  # (B, T, 3 D)
