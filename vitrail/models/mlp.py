"""Gated MLPs: half of the first dense layer gates the other half.

    y = fc2(a(g) * x)      [g, x] = gated(z)      Shazeer 2020, arXiv:2002.05202, Eq. 5

With a = SiLU this is SwiGLU (DINOv2's giant, EVA-02, DINOv3's largest), with a = GELU GeGLU. The two halves are
stored as one matrix (2 mlp_dim, D), the gate first. A norm of the hidden layer before fc2, if there is one, is
EVA-02's (Fang et al. 2023, arXiv:2303.11331, section 2.2: sub-LN).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.fused import gelu_tanh
from vitrail.models.norms import make_norm

if TYPE_CHECKING:
    from vitrail.models.vit import ViTConfig


def quick_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), the approximation of GELU that CLIP was trained with (arXiv:1606.08415, section 2)."""
    return x * (1.702 * x).sigmoid()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": gelu_tanh,
    "gelu": F.gelu,
    "quick_gelu": quick_gelu,
    "silu": F.silu,
}


class GatedMLP(nn.Module):
    """z (B, T, D) -> (B, T, D)."""

    def __init__(self, c: ViTConfig) -> None:
        super().__init__()
        self.gated = nn.Linear(c.width, 2 * c.mlp_dim, bias=c.dense_bias)
        self.norm = make_norm(c, c.mlp_dim) if c.mlp_norm else None
        self.fc2 = nn.Linear(c.mlp_dim, c.width, bias=c.dense_bias)
        self.dropout = nn.Dropout(c.dropout)
        self.activation = ACTIVATIONS[c.activation]

    def forward(self, z: Tensor) -> Tensor:
        gate, x = self.gated(z).chunk(2, dim=-1)  # (B, T, mlp_dim) each
        y = self.dropout(self.activation(gate) * x)  # (B, T, mlp_dim)
        y = y if self.norm is None else self.norm(y)
        return self.dropout(self.fc2(y))  # (B, T, D)
