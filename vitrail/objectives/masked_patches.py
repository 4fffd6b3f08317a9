"""Masked patch prediction, the paper's self-supervision (appendix B.1.2).

Half of the patch embeddings are corrupted (data/masking.py draws which, and how); from the encoder's output at each
corrupted patch, and there only, a linear layer predicts what the patch shows:

    mean     its mean colour in 3 bits a channel: 512 classes                             the paper's choice
    grid     the 3-bit colours of the patch down-sized to 4 x 4: 16 x 512 classes
    pixels   its pixels, by squared error

Binning: a channel c in [0, 1] falls into bin min(7, floor(8 c)), eight equal bins, the upper edge in the last;
the class is 64 r + 8 g + b. The paper does not give its bin edges.

x (B, 3, H, W) images in [-1, 1], N patches, n of them corrupted, z (B, N, D) embeddings.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.masking import INTACT, MASKED, Masking
from vitrail.errors import ConfigError
from vitrail.models.positions import take
from vitrail.models.vit import ViT
from vitrail.objectives.supervised import Batch, mean

Target = Literal["mean", "grid", "pixels"]
COLOURS = 8**3
GRID = 4


class MaskedPatches(nn.Module):
    def __init__(self, model: ViT, target: Target = "mean", corrupted: float = 0.5) -> None:
        super().__init__()
        c = model.config
        if target not in ("mean", "grid", "pixels"):
            raise ConfigError(f"target {target!r} is not one of mean, grid, pixels")
        if target == "grid" and c.stride % GRID:
            raise ConfigError(
                f"target='grid' needs patches that divide into {GRID}x{GRID}, not of {c.stride} pixels"
            )
        self.model, self.target, self.stride = model, target, c.stride
        self.count = Masking(c.grid[0] * c.grid[1], corrupted).count  # n
        self.mask = nn.Parameter(torch.randn(1, 1, c.width) * 0.02)
        outputs = {"mean": COLOURS, "grid": GRID**2 * COLOURS, "pixels": 3 * c.stride**2}[target]
        self.prediction = nn.Linear(c.width, outputs)
        nn.init.zeros_(self.prediction.weight)
        nn.init.zeros_(self.prediction.bias)
        for part in (model.head, model.attention_pool, model.pooled_norm):
            if part is not None:
                part.requires_grad_(False)  # no class is predicted here

    def forward(self, batch: Batch) -> tuple[Tensor, Batch]:
        chosen = corrupted_patches(batch["corruption"], self.count)  # (B, n)
        y = self.predict(batch, chosen)  # (B, n, outputs)
        truth = self.truth(batch["image"], chosen)
        if self.target == "pixels":
            each = (y - truth).square().mean(dim=(1, 2))  # (B,)
            return mean(each, batch["weight"]), {}
        each = F.cross_entropy(y.flatten(0, -2), truth.flatten(), reduction="none")  # (B * n * cells,)
        right = (y.argmax(dim=-1) == truth).float().flatten(1).mean(dim=1)  # (B,)
        each = each.view(truth.shape[0], -1).mean(dim=1)  # (B,)
        return mean(each, batch["weight"]), {"patch_top1": mean(right, batch["weight"]).detach()}

    def predict(self, batch: Batch, chosen: Tensor) -> Tensor:
        """Of the chosen patches: (B, n, 512), (B, n, 16, 512) or (B, n, 3 P^2)."""
        model = self.model
        z = self.corrupt(model.patches(batch["image"]), batch)  # (B, N, D)
        z = model.encode(model.tokens(z))  # (B, T, D)
        z = z[:, model.config.prefix :]  # (B, N, D)
        y = self.prediction(take(z, chosen)).float()  # (B, n, outputs)
        return y.unflatten(-1, (GRID**2, COLOURS)) if self.target == "grid" else y

    def corrupt(self, z: Tensor, batch: Batch) -> Tensor:
        z = take(z, batch["other"])  # (B, N, D): a patch's own embedding, or another's
        masked = (batch["corruption"] == MASKED)[..., None]  # (B, N, 1)
        return torch.where(masked, self.mask.to(z.dtype), z)

    def truth(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Of the chosen patches: classes (B, n) or (B, n, 16), or pixels in [-1, 1] (B, n, 3 P^2)."""
        P = self.stride
        if self.target == "pixels":
            x_p = F.unfold(x, P, stride=P).transpose(1, 2)  # (B, N, 3 P^2)
            return take(x_p, chosen)
        cell = P if self.target == "mean" else P // GRID
        colour = colour_classes(F.avg_pool2d((x + 1) / 2, cell))  # (B, H / cell, W / cell)
        k = P // cell
        cells = colour.unflatten(1, (-1, k)).unflatten(3, (-1, k)).transpose(2, 3)  # (B, rows, columns, k, k)
        cells = cells.flatten(3).flatten(1, 2)  # (B, N, k^2)
        taken = take(cells, chosen)  # (B, n, k^2)
        return taken[..., 0] if self.target == "mean" else taken


def corrupted_patches(corruption: Tensor, count: int) -> Tensor:
    """codes (B, N) -> the places of the `count` corrupted patches, in order: (B, count)."""
    return (corruption != INTACT).to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :count]


def colour_classes(colour: Tensor) -> Tensor:
    """(B, 3, h, w) in [0, 1] -> (B, h, w): 64 r + 8 g + b of eight bins a channel."""
    bins = (colour * 8).floor().clamp(0, 7).long()
    return bins[:, 0] * 64 + bins[:, 1] * 8 + bins[:, 2]


def colours_of(classes: Tensor) -> Tensor:
    """Classes -> the middle of their bins, in [0, 1]: (...,) -> (..., 3)."""
    return (torch.stack([classes // 64, classes // 8 % 8, classes % 8], dim=-1) + 0.5) / 8
