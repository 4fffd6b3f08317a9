"""Images -> patches -> embedded patches: the first half of Eq. 1.

    x (B, C, H, W)  --patchify-->  x_p (B, N, P*P*C)  --E-->  x_p E (B, N, D)          N = HW / P^2

The weights are those of a convolution whose kernel and stride are the patch, (D, C, P, P), as every checkpoint has
them; the arithmetic is one matrix product, which GPUs do faster. A test holds the two equal.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class PatchEmbedding(nn.Conv2d):
    """x -> x_p E + b, patches in row-major order."""

    def __init__(self, channels: int, width: int, patch_size: int) -> None:
        super().__init__(channels, width, kernel_size=patch_size, stride=patch_size)

    def forward(self, x: Tensor) -> Tensor:
        E = self.weight.permute(0, 2, 3, 1).flatten(1)  # (D, P*P*C)
        return F.linear(patchify(x, self.kernel_size[0]), E, self.bias)  # (B, N, D)


def patchify(x: Tensor, patch_size: int) -> Tensor:
    """x (B, C, H, W) -> x_p (B, N, P*P*C); within a patch: row, column, channel, as the published E has it."""
    B, C, H, W = x.shape
    P = patch_size
    x = x.reshape(B, C, H // P, P, W // P, P).permute(0, 2, 4, 3, 5, 1)  # (B, H/P, W/P, P, P, C)
    return x.reshape(B, (H // P) * (W // P), P * P * C)  # (B, N, P*P*C)
