"""Masked patch prediction, the paper's self-supervision (appendix B.1.2).

Half of the patch embeddings are corrupted: 80% of those become a learnable [mask] embedding, 10% another patch's
embedding, 10% stay as they are. From the encoder's output at each corrupted patch, and there only, a linear layer
predicts what the patch shows:

    mean     its mean colour in 3 bits a channel: 512 classes                             the paper's choice
    grid     the 3-bit colours of the patch down-sized to 4 x 4: 16 x 512 classes
    pixels   its pixels, by squared error

Binning: a channel c in [0, 1] falls into bin min(7, floor(8 c)), eight equal bins, the upper edge in the last;
the class is 64 r + 8 g + b. The paper does not give its bin edges.

On held-out images the loss is reported beside `prior_loss`, the lowest loss of a prediction that depends neither on
the image nor on the place: that of the distribution of colours over all held-out patches (for pixels: of their mean).

x (B, 3, H, W) images in [-1, 1], N patches, n of them corrupted, z (B, N, D) embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.loader import Arrays, Loader, View
from vitrail.data.preprocess import parse
from vitrail.data.settings import DataSettings
from vitrail.data.sources import Source
from vitrail.errors import ConfigError
from vitrail.evaluators.score import Evaluator, Gallery, Score
from vitrail.models.names import Model
from vitrail.models.positions import take
from vitrail.models.vit import ViT
from vitrail.objectives.objective import Batch, mean, training_view
from vitrail.runtime.distributed import all_sum, rank, world

COLOURS = 8**3
GRID = 4
PICTURES = 8
GREY = 0.5
# Codes of `corruption`.
INTACT, MASKED, REPLACED, KEPT = range(4)


@dataclass(frozen=True)
class MaskedPatches:
    # what is predicted of a corrupted patch: its mean colour, a grid of 4 x 4 colours, or its pixels
    target: Literal["mean", "grid", "pixels"] = "mean"
    corrupted: float = 0.5  # fraction of the patches that is corrupted, and predicted
    masked: float = 0.8  # fraction of the corrupted patches that becomes the mask embedding
    replaced: float = 0.1  # fraction of the corrupted patches that becomes another patch; the rest stays

    needs_labels: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.target not in ("mean", "grid", "pixels"):
            raise ConfigError(f"target {self.target!r} is not one of mean, grid, pixels")
        if not 0 < self.corrupted <= 1:
            raise ConfigError(f"corrupted {self.corrupted}: must be in (0, 1]")
        if min(self.masked, self.replaced) < 0 or self.masked + self.replaced > 1:
            raise ConfigError(
                f"masked {self.masked} and replaced {self.replaced}: neither may be negative, nor their sum above 1"
            )

    def views(self, model: Model, data: DataSettings) -> dict[str, View]:
        return {"image": replace(training_view(model, data), masks=self.corruption(model))}

    def corruption(self, model: Model) -> Corruption:
        if not isinstance(model, ViT):
            raise ConfigError("masked patch prediction needs a model with patches: a ViT or a hybrid")
        rows, columns = model.config.grid
        return Corruption(rows * columns, self)

    def build(self, model: Model) -> nn.Module:
        if "to_range(-1, 1)" not in model.preprocess:
            raise ConfigError(f"masked patch prediction takes images in [-1, 1], not '{model.preprocess}'")
        return PatchPrediction(model, self)

    def evaluators(self, module: Any, val: Source, data: DataSettings) -> list[Evaluator]:
        return [HeldOutPatches(module, val, data.batch_size)]


@dataclass(frozen=True)
class Corruption:
    """Draws which of N patches are corrupted, and how. Their number is fixed, so that shapes are."""

    patches: int  # N
    settings: MaskedPatches

    def __post_init__(self) -> None:
        if self.patches < 2:
            raise ConfigError(f"{self.patches} patches in an image: masked patch prediction needs at least 2")

    @property
    def count(self) -> int:
        """Number of corrupted patches in an image, n."""
        return max(1, round(self.patches * self.settings.corrupted))

    def __call__(self, rng: np.random.Generator) -> Arrays:
        """Draw corruption, int8 (N,), a code for each patch; and other, int64 (N,), whose embedding a replaced one
        gets."""
        N, masked, replaced = self.patches, self.settings.masked, self.settings.replaced
        chosen = rng.permutation(N)[: self.count]
        u = rng.random(len(chosen))
        corruption = np.zeros(N, np.int8)
        corruption[chosen] = np.where(u < masked, MASKED, np.where(u < masked + replaced, REPLACED, KEPT))
        other = (np.arange(N) + rng.integers(1, N, size=N)) % N  # never itself
        return {"corruption": corruption, "other": np.where(corruption == REPLACED, other, np.arange(N))}


class PatchPrediction(nn.Module):
    """The model, a mask embedding, and the linear layer that predicts."""

    def __init__(self, model: Model, settings: MaskedPatches) -> None:
        super().__init__()
        self.corruption = settings.corruption(model)
        assert isinstance(model, ViT)
        c, target = model.config, settings.target
        if target == "grid" and c.stride % GRID:
            raise ConfigError(
                f"target grid needs patches that divide into {GRID}x{GRID}, not of {c.stride} pixels"
            )
        self.model, self.target, self.stride = model, target, c.stride
        self.count = self.corruption.count  # n
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
        """Predict the chosen patches: (B, n, 512), (B, n, 16, 512) or (B, n, 3 P^2)."""
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
        """Return what the chosen patches show: classes (B, n) or (B, n, 16), or pixels in [-1, 1] (B, n, 3 P^2)."""
        P = self.stride
        if self.target == "pixels":
            return take(cut_patches(x, P), chosen)
        cell = P if self.target == "mean" else P // GRID
        colour = colour_classes(F.avg_pool2d((x + 1) / 2, cell))  # (B, H / cell, W / cell)
        k = P // cell
        cells = colour.unflatten(1, (-1, k)).unflatten(3, (-1, k)).transpose(2, 3)  # (B, rows, columns, k, k)
        cells = cells.flatten(3).flatten(1, 2)  # (B, N, k^2)
        taken = take(cells, chosen)  # (B, n, k^2)
        return taken[..., 0] if self.target == "mean" else taken


def corrupted_patches(corruption: Tensor, count: int) -> Tensor:
    """Map codes (B, N) to the places of the `count` corrupted patches, in order: (B, count)."""
    return (corruption != INTACT).to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :count]


def colour_classes(colour: Tensor) -> Tensor:
    """Map colours (B, 3, h, w) in [0, 1] to classes (B, h, w): 64 r + 8 g + b of eight bins a channel."""
    bins = (colour * 8).floor().clamp(0, 7).long()
    return bins[:, 0] * 64 + bins[:, 1] * 8 + bins[:, 2]


def bin_colours(classes: Tensor) -> Tensor:
    """Map classes to the middle of their bins, in [0, 1]: (...,) -> (..., 3)."""
    return (torch.stack([classes // 64, classes // 8 % 8, classes % 8], dim=-1) + 0.5) / 8


class HeldOutPatches:
    """An evaluator: the loss beside `prior_loss`, and a picture of masked input, prediction and truth.

    The masks are those of seed 0, whatever the run's: the same every time.
    """

    names = ("val_loss", "prior_loss")

    def __init__(self, objective: PatchPrediction, source: Source, batch_size: int) -> None:
        self.objective = objective
        # On each process `batch_size`, at most.
        b = min(batch_size, math.ceil(len(source) / world())) * world()
        views = {"image": View(parse(objective.model.preprocess), masks=objective.corruption)}
        settings = DataSettings(batch_size=b, max_bad=1.0)
        self.loader = Loader(source, views, settings, rank=rank(), world=world(), evaluation=True)

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> Iterator[Score | Gallery]:
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
                yield self.gallery({name: t[:PICTURES] for name, t in batch.items()})
        sums = all_sum(sums)
        examples = int(sums[1])
        yield Score("val_loss", float(sums[0] / sums[1]), examples)
        yield Score("prior_loss", prior.loss(), examples)

    def gallery(self, batch: Batch) -> Gallery:
        """Return pictures of a few images; every process predicts, as sharded weights need it."""
        chosen = corrupted_patches(batch["corruption"], self.objective.count)
        y = self.objective.predict(batch, chosen)
        prediction = y if self.objective.target == "pixels" else y.argmax(dim=-1)
        truth = self.objective.truth(batch["image"], chosen)
        x = (batch["image"] + 1) / 2  # (n, 3, H, W) in [0, 1]
        # As the model sees them: masked patches grey, and in place of a replaced one the other.
        seen = take(cut_patches(x, self.objective.stride), batch["other"])  # (n, N, 3 P^2)
        seen = seen.masked_fill((batch["corruption"] == MASKED)[..., None], GREY)
        rows = {
            "input": join_patches(seen, x),
            "predicted": self.painted(x, chosen, prediction),
            "truth": self.painted(x, chosen, truth),
        }
        return Gallery("patches", {name: as_bytes(row) for name, row in rows.items()})

    def painted(self, x: Tensor, chosen: Tensor, patches: Tensor) -> Tensor:
        """Return the images with the chosen patches replaced by classes of colour, or by pixels."""
        P = self.objective.stride
        if self.objective.target == "pixels":
            cells = ((patches.float() + 1) / 2).clamp(0, 1)  # (B, n, 3 P^2)
        else:
            k = 1 if self.objective.target == "mean" else GRID
            cells = bin_colours(patches).view(*chosen.shape, k, k, 3)  # (B, n, k, k, 3)
            cells = cells.permute(0, 1, 4, 2, 3)  # (B, n, 3, k, k)
            cells = cells.repeat_interleave(P // k, 3).repeat_interleave(P // k, 4)  # (B, n, 3, P, P)
            cells = cells.flatten(2)  # (B, n, 3 P^2)
        x_p = cut_patches(x, P)  # (B, N, 3 P^2)
        x_p = x_p.scatter(1, chosen[..., None].expand_as(cells), cells.to(x_p.dtype))
        return join_patches(x_p, x)  # (B, 3, H, W)


def cut_patches(x: Tensor, P: int) -> Tensor:
    """Cut images (B, 3, H, W) into patches (B, N, 3 P^2)."""
    return F.unfold(x, P, stride=P).transpose(1, 2)


def join_patches(x_p: Tensor, like: Tensor) -> Tensor:
    """Join patches (B, N, 3 P^2) to images of the size of `like` (B, 3, H, W)."""
    P = math.isqrt(x_p.shape[2] // 3)
    return F.fold(x_p.transpose(1, 2), like.shape[2:], P, stride=P)


class Prior:
    """Counts of colours, or sums of pixels, over all truths."""

    def __init__(self, pixels: int = 0) -> None:
        """`pixels` of a patch, if those are predicted, and not colours."""
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
    """Map (n, 3, H, W) in [0, 1] to uint8 (n, H, W, 3)."""
    return (x.float().clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
