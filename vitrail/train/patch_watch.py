"""Masked patch prediction on held-out images, while it trains: its loss beside the best guess without looking,
and a picture of masked input, prediction and truth.

The guess is the distribution of colours over all held-out patches (the squared error: their mean pixels). Its loss,
`prior_loss`, is the least that a prediction can have that depends neither on the image nor on the place.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.loader import Batch, Loader, Loading
from vitrail.data.masking import MASKED, Masking
from vitrail.data.preprocess import parse
from vitrail.data.sources import Source
from vitrail.evaluators.score import Score
from vitrail.inspection.drawing import masked_patches
from vitrail.objectives.masked_patches import COLOURS, MaskedPatches, colours_of, corrupted_patches
from vitrail.runtime.distributed import all_sum, rank, world

PICTURES = 8
GREY = 0.5


class PatchWatch:
    """An evaluator; the masks are those of seed 0, whatever the run's, so the same every time."""

    def __init__(
        self, objective: MaskedPatches, source: Source, masking: Masking, batch: int, figures: Path
    ) -> None:
        self.objective, self.figures = objective, figures
        b = min(batch * world(), -(-len(source) // world()) * world())  # `batch` on each process, at most
        loading = Loading(b, masking=masking, rank=rank(), world=world(), max_bad=1.0)
        self.loader = Loader(source, parse(objective.model.preprocess), loading, evaluation=True)

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> Iterator[Score]:
        device = next(model.parameters()).device
        sums = torch.zeros(2, dtype=torch.float64)  # loss, examples
        prior = Prior(3 * self.objective.stride**2 if self.objective.target == "pixels" else 0)
        for step, batch in enumerate(self.loader.batches(device=device)):
            loss, _ = self.objective(batch)
            n = batch["weight"].sum()
            sums += torch.stack([(loss * n).double(), n.double()]).cpu()
            chosen = corrupted_patches(batch["corruption"], self.objective.count)
            prior.add(self.objective.truth(batch["image"], chosen)[batch["weight"] > 0].cpu())
            if not step:
                self.draw(batch)
        sums = all_sum(sums)
        examples = int(sums[1])
        yield Score("val_loss", float(sums[0] / sums[1]), examples)
        yield Score("prior_loss", prior.loss(), examples)

    def draw(self, batch: Batch) -> None:
        """Every process predicts, as sharded weights need it; one draws."""
        first = {name: t[:PICTURES] for name, t in batch.items()}
        chosen = corrupted_patches(first["corruption"], self.objective.count)
        y = self.objective.predict(first, chosen)
        if rank():
            return
        shown = y if self.objective.target == "pixels" else y.argmax(dim=-1)
        truth = self.objective.truth(first["image"], chosen)
        x = (first["image"] + 1) / 2  # (n, 3, H, W) in [0, 1]
        masked_patches(
            as_bytes(self.corrupted(x, first)),
            as_bytes(self.painted(x, chosen, shown)),
            as_bytes(self.painted(x, chosen, truth)),
            self.figures / "patches.png",
        )

    def corrupted(self, x: Tensor, batch: Batch) -> Tensor:
        """The images as the model sees them: masked patches grey, and in place of a replaced one the other."""
        image = torch.arange(len(x), device=x.device)[:, None]  # (B, 1)
        x_p = self.cut(x)[image, batch["other"]]  # (B, N, 3, P, P): a patch itself, or another
        masked = (batch["corruption"] == MASKED)[..., None, None, None]  # (B, N, 1, 1, 1)
        return self.joined(torch.where(masked, GREY, x_p))  # (B, 3, H, W)

    def painted(self, x: Tensor, chosen: Tensor, patches: Tensor) -> Tensor:
        """The images with the chosen patches replaced by classes of colour, or by pixels."""
        P = self.objective.stride
        B, n = chosen.shape
        if self.objective.target == "pixels":
            cells = ((patches.float() + 1) / 2).clamp(0, 1).view(B, n, 3, P, P)
        else:
            k = 1 if self.objective.target == "mean" else 4
            cells = colours_of(patches).view(B, n, k, k, 3).permute(0, 1, 4, 2, 3)  # (B, n, 3, k, k)
            cells = cells.repeat_interleave(P // k, 3).repeat_interleave(P // k, 4)  # (B, n, 3, P, P)
        x_p = self.cut(x).clone()  # (B, N, 3, P, P)
        x_p[torch.arange(B, device=x.device)[:, None], chosen] = cells.to(x_p.dtype)
        return self.joined(x_p)  # (B, 3, H, W)

    def cut(self, x: Tensor) -> Tensor:
        """Images (B, 3, H, W) -> their patches."""
        P, (rows, columns) = self.objective.stride, self.objective.model.config.grid
        x_p = x.unflatten(2, (rows, P)).unflatten(4, (columns, P))  # (B, 3, rows, P, columns, P)
        return x_p.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (B, N, 3, P, P)

    def joined(self, x_p: Tensor) -> Tensor:
        """Patches (B, N, 3, P, P) -> images."""
        x_p = x_p.unflatten(1, self.objective.model.config.grid)  # (B, rows, columns, 3, P, P)
        return x_p.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)  # (B, 3, H, W)


class Prior:
    """What all truths together say: counts of colours, or sums of pixels."""

    def __init__(self, pixels: int = 0) -> None:
        """`pixels` of a patch, where those are predicted, and not colours."""
        self.counts = torch.zeros(COLOURS, dtype=torch.float64)
        self.sums = torch.zeros(3, pixels, dtype=torch.float64)  # n, sum, sum of squares, by pixel
        self.pixels = pixels

    def add(self, truth: Tensor) -> None:
        if not self.pixels:
            self.counts += torch.bincount(truth.flatten(), minlength=COLOURS)
            return
        t = truth.flatten(0, 1).double()  # (patches, pixels)
        self.sums += torch.stack([torch.full_like(self.sums[0], len(t)), t.sum(0), t.square().sum(0)])

    def loss(self) -> float:
        if self.pixels:
            n, s, squares = all_sum(self.sums)
            return float((squares / n - (s / n).square()).mean())
        p = all_sum(self.counts)
        p = p[p > 0] / p.sum()
        return float(-(p * p.log()).sum())


def as_bytes(x: Tensor) -> np.ndarray:
    """(n, 3, H, W) in [0, 1] -> uint8 (n, H, W, 3)."""
    return (x.float().clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
