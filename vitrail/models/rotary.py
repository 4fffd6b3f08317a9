"""Rotary positions: q and k are turned by angles that grow with the place of their patch.

Su et al. 2021 (arXiv:2104.09864) turn pairs of numbers of q and k, so that q . k depends on the difference of two
places alone. Images have two axes; half of the pairs turn with the row, half with the column:

    angle_i = p base^(-i / (d/4))     i = 0 .. d/4 - 1, for p = y and for p = x

    grid      p counts patches, p = n + offset; trained on another grid, it is scaled to that grid's length
              (EVA-02, arXiv:2303.11331, section 2.2)
    unit      p = 2 pi (2 (n + 1/2) / N - 1): from -2 pi to 2 pi whatever the grid; in training all p may be shifted,
              stretched for each axis, and stretched together (DINOv3, arXiv:2508.10104, section 3.2)
    learned   angle_i = f_x x + f_y y, with frequencies for each layer and head, which may mix the axes
              (RoPE-Mixed, Heo et al. 2024, arXiv:2403.13298, Eq. 14)

Tokens before the patches are not turned. Angles, and the rotation itself, are in float32 whatever the model's
precision is: bf16 cannot tell large angles apart. T = prefix + N tokens, d = D / h.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models import checking, choices

if TYPE_CHECKING:
    from vitrail.models.vit import ViTConfig


@dataclass(frozen=True)
class RotaryConfig:
    """Everything that rotary positions depend on."""

    kind: choices.Rotary = "grid"
    base: float = 0.0  # 0: 10,000 for grid, 100 for unit, 10 for learned
    pairs: choices.Pairs = "adjacent"  # numbers that are turned together: 0 and 1, or 0 and d/2
    columns_first: bool = False  # the first half of the pairs turns with the column
    offset: float = 0.0  # added to the number of a patch
    reference: tuple[int, int] | None = None  # the grid that p is scaled to; None: not scaled
    shift: float = 0.0  # in training, of unit: p moves by up to this
    jitter: float = 1.0  # each axis is stretched by a factor of up to this
    rescale: float = 1.0  # both axes are stretched by a factor of up to this

    def __post_init__(self) -> None:
        if isinstance(self.reference, list):
            object.__setattr__(self, "reference", tuple(self.reference))
        if not self.base:
            object.__setattr__(
                self, "base", {"grid": 10_000.0, "unit": 100.0, "learned": 10.0}.get(self.kind, 1.0)
            )
        checking.check_fields({f"rotary_{name}": value for name, value in vars(self).items()})
        if self.reference is not None:
            checking.image_size(self.reference)
        if self.kind != "unit" and (self.shift, self.jitter, self.rescale) != (0.0, 1.0, 1.0):
            raise ConfigError("only rotary positions of kind 'unit' are shifted, stretched and rescaled")


def rotary_config(value: Any) -> RotaryConfig | None:
    """Return the config from itself, from the name of a kind, or from a dict of its fields."""
    if value is None or isinstance(value, RotaryConfig):
        return value
    if isinstance(value, str):
        pairs = "halves" if value == "unit" else "adjacent"
        return None if value == "none" else rotary_config({"kind": value, "pairs": pairs})
    if isinstance(value, dict) and set(value) <= {f.name for f in fields(RotaryConfig)}:
        return RotaryConfig(**value)
    raise ConfigError(f"rotary={value!r:.60} is neither a kind nor a dict of the fields of RotaryConfig")


class Rotary(nn.Module):
    """grid -> cosines and sines (2, L or 1, 1, h or 1, T, d) of the angles of all tokens."""

    def __init__(self, c: ViTConfig) -> None:
        super().__init__()
        assert c.rotary is not None
        self.c, self.prefix, self.d = c.rotary, c.prefix, c.width // c.heads
        if c.rotary.kind == "learned":
            self.frequencies = nn.Parameter(torch.empty(2, c.depth, c.heads, self.d // 2))

    def forward(self, grid: tuple[int, int], places: Tensor | None, device: torch.device) -> Tensor:
        """`places` (B, T): the places of the tokens, if only some patches are kept."""
        y, x = self.coordinates(grid, device)  # (rows), (columns)
        y, x = y.repeat_interleave(len(x)), x.repeat(len(y))  # (N) each
        first, second = (x, y) if self.c.columns_first else (y, x)
        if self.c.kind == "learned":
            f = self.frequencies.float()[:, :, :, None]  # (2, L, h, 1, d/2)
            angles = first[:, None] * f[0] + second[:, None] * f[1]  # (L, h, N, d/2)
        else:
            w = self.c.base ** (-torch.arange(self.d // 4, device=device).float() / (self.d // 4))  # (d/4)
            angles = torch.cat([first[:, None] * w, second[:, None] * w], dim=1)[None, None]  # (1, 1, N, d/2)
        angles = torch.nn.functional.pad(
            angles, (0, 0, self.prefix, 0)
        )  # (..., T, d/2): others are not turned
        if places is not None:
            at = places[None, :, None, :, None].expand(len(angles), -1, angles.shape[1], -1, angles.shape[-1])
            angles = angles[:, None].expand(-1, len(places), -1, -1, -1).gather(3, at)  # (L, B, h, n, d/2)
        else:
            angles = angles[:, None]  # (L, 1, h, T, d/2)
        halves = self.c.pairs == "halves"
        angles = torch.cat([angles, angles], -1) if halves else angles.repeat_interleave(2, -1)  # (..., d)
        return torch.stack([angles.cos(), angles.sin()])  # (2, L or 1, B or 1, h or 1, T, d)

    def coordinates(self, grid: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return p of the rows and of the columns."""
        c = self.c
        y, x = (torch.arange(n, device=device).float() + c.offset for n in grid)
        if c.kind == "unit":
            y, x = (2 * (p + 0.5) / n - 1 for p, n in zip((y, x), grid, strict=True))
            if self.training:
                y, x = self.moved(y, x)
            return 2 * math.pi * y, 2 * math.pi * x
        if c.reference is not None:
            y, x = (p / n * r for p, n, r in zip((y, x), grid, c.reference, strict=True))
        return y, x

    def moved(self, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shift and stretch the coordinates of a step at random, as DINOv3 trains."""
        c = self.c
        if c.shift:
            dy, dx = torch.empty(2, device=y.device).uniform_(-c.shift, c.shift).unbind()
            y, x = y + dy, x + dx
        if c.jitter != 1:
            most = math.log(c.jitter)
            by, bx = torch.empty(2, device=y.device).uniform_(-most, most).exp().unbind()
            y, x = y * by, x * bx
        if c.rescale != 1:
            most = math.log(c.rescale)
            both = torch.empty(1, device=y.device).uniform_(-most, most).exp()
            y, x = y * both, x * both
        return y, x

    def rotate(self, q: Tensor, turn: Tensor) -> Tensor:
        """q (B, h, T, d), turn (2, B or 1, h or 1, T, d) -> q cos + q' sin, q' a quarter turn of each pair."""
        x = q.float()
        if self.c.pairs == "halves":
            a, b = x.chunk(2, dim=-1)
            quarter = torch.cat([-b, a], dim=-1)
        else:
            quarter = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
        return (x * turn[0] + quarter * turn[1]).to(q.dtype)
