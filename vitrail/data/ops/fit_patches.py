"""Images that keep their aspect: as large as a number of patches allows, and laid out as a strip of patches.

    fit_patches(256, 16)    an op of a line: both sides a multiple of 16, at most 256 patches

The images of such a line have many sizes. A batch holds them as strips (3, P, N P) of their patches in raster order,
with zeros after them, and in `grid` the rows and columns of each; models/strips.py reads them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from vitrail.data.decode import MAX_PIXELS
from vitrail.data.ops.pixel_ops import Drawn, Method, PixelOp, Side
from vitrail.data.ops.resize import Pixels, resize
from vitrail.errors import ConfigError

STEPS = 60  # of halving: finer than a double


@dataclass(frozen=True)
class FitPatches(PixelOp):
    """Resize by the largest factor that gives at most `max_tokens` patches of `patch` pixels, each side rounded up to
    whole patches, as in SigLIP 2."""

    name = "fit_patches"
    resizes = True
    max_tokens: Annotated[int, 1, 65_536]
    patch: Side
    method: Method = "pillow_bilinear"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (pixels := self.max_tokens * self.patch**2) > MAX_PIXELS:
            raise ConfigError(
                f"{self.name}: {self.max_tokens} patches of {self.patch} pixels are {pixels:,} pixels"
            )

    def apply(self, image: Pixels, drawn: Drawn) -> Pixels:
        rows, columns = self.grid(image.shape[0], image.shape[1])
        return resize(image, (rows * self.patch, columns * self.patch), self.method)

    def size(self, before: tuple[int, int] | None) -> tuple[int, int] | None:
        if before is None:
            return None
        rows, columns = self.grid(*before)
        return rows * self.patch, columns * self.patch

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of patches of an image: those of the largest factor that has not too many."""

        def patches(factor: float) -> tuple[int, int]:
            rows, columns = (max(1, math.ceil(side * factor / self.patch)) for side in (height, width))
            return rows, columns

        low, high = 0.0, (self.max_tokens + 1) * self.patch / min(height, width)
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if math.prod(patches(middle)) <= self.max_tokens else (low, middle)
        return patches(low)

    def strip(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return an image (3, h P, w P) as a strip (3, P, N P), and its grid (2,)."""
        P = self.patch
        rows, columns = x.shape[1] // P, x.shape[2] // P
        strip = x.new_zeros(3, P, self.max_tokens, P)
        tiles = x.unflatten(2, (columns, P)).unflatten(1, (rows, P))  # (3, rows, P, columns, P)
        strip[:, :, : rows * columns] = tiles.permute(0, 2, 1, 3, 4).flatten(2, 3)  # (3, P, n, P)
        return strip.flatten(2), torch.tensor([rows, columns])  # (3, P, N P)

    @property
    def strip_size(self) -> tuple[int, int]:
        return self.patch, self.max_tokens * self.patch
