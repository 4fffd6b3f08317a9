"""E_pos: the positions of the patches (second half of Eq. 1; the options of the paper's Table 8).

    none        nothing: a bag of patches
    1d          a learned row for each of the T tokens in raster order, the class token's row first
    2d          learned X and Y tables of D/2 each; a patch at (y, x) gets [X[x], Y[y]]
    sincos      like 2d, with fixed sines and cosines
    relative    a learned key for each offset p_q - p_k; its logits are added to attention before the softmax
    relative_bias   BEiT's: a learned number for each head and offset in rows and columns, added in the same place

The first four are added to the tokens: at the stem (Eq. 1), or again at the input of every layer, with a separate
table for each layer or one shared by all. The relative ones are part of attention: every layer, or shared.
The tokens before the patches (the class token) have learned rows in `1d`; in `2d` and `sincos` they get zeros.

Positions are a function of the grid: for another grid, tables are resampled, as when a model is loaded at another
image size, and sines are computed. If only some patches are kept, `places` are the places of those.
T = prefix + N tokens, N = rows * columns patches, D width, h heads, d = D / h.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models.choices import Positions

Grid = tuple[int, int]

# Methods of resampling tables, by library. The published code uses scipy.ndimage.zoom(order=1), which is bilinear
# with aligned corners.
RESAMPLE: dict[str, dict[str, str | bool]] = {
    "official": {"mode": "bilinear", "align_corners": True},
    "bilinear": {"mode": "bilinear", "align_corners": False},
    "bicubic": {"mode": "bicubic", "align_corners": False},  # transformers
    "bicubic_antialias": {"mode": "bicubic", "align_corners": False, "antialias": True},  # timm
    "bicubic_corners": {"mode": "bicubic", "align_corners": True},  # torchvision
}


def additive(kind: Positions, grid: Grid, width: int, prefix: int) -> nn.Module | None:
    """Return the module grid -> E_pos (1, T, D) of an additive kind; None for `none`."""
    kinds: dict[str, Callable[[Grid, int, int], nn.Module]] = {
        "1d": Learned1D,
        "2d": Learned2D,
        "sincos": SinCos2D,
    }
    return None if kind == "none" else kinds[kind](grid, width, prefix)


class Learned1D(nn.Module):
    """E_pos in R^(T x D), learned."""

    def __init__(self, grid: Grid, width: int, prefix: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(1, prefix + grid[0] * grid[1], width))
        self.grid = grid

    def forward(self, grid: Grid) -> Tensor:
        return self.table if grid == self.grid else resample(self.table, self.grid, grid)  # (1, T, D)


class Learned2D(nn.Module):
    """E_pos = [X[x], Y[y]], learned tables of D/2."""

    def __init__(self, grid: Grid, width: int, prefix: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.empty(grid[1], width // 2))
        self.y = nn.Parameter(torch.empty(grid[0], width // 2))
        self.prefix = prefix

    def forward(self, grid: Grid) -> Tensor:
        rows, columns = grid
        X = resample_axis(self.x, columns).expand(rows, -1, -1)  # (rows, columns, D/2)
        Y = resample_axis(self.y, rows)[:, None].expand(-1, columns, -1)  # (rows, columns, D/2)
        E_pos = torch.cat([X, Y], dim=-1).flatten(0, 1)  # (N, D)
        return F.pad(E_pos, (0, 0, self.prefix, 0))[None]  # (1, T, D)


class SinCos2D(nn.Module):
    """E_pos = [sin x w, cos x w, sin y w, cos y w], w_i = 10000^(-i / (D/4 - 1)); fixed, as big_vision has it."""

    def __init__(self, grid: Grid, width: int, prefix: int) -> None:
        super().__init__()
        self.grid, self.prefix = grid, prefix
        self.register_buffer("table", self.computed(grid, width), persistent=False)
        self.table: Tensor

    def forward(self, grid: Grid) -> Tensor:
        if grid == self.grid:
            return self.table
        return self.computed(grid, self.table.shape[-1]).to(self.table)  # (1, T, D)

    def computed(self, grid: Grid, width: int) -> Tensor:
        # The device is stated so that a model laid out on `meta` for loading has its real table.
        w = torch.arange(width // 4, dtype=torch.float64, device="cpu") / (width // 4 - 1)
        w = 1.0 / 10_000**w
        sides = (torch.arange(n, dtype=torch.float64, device="cpu") for n in grid)
        y, x = (side[:, None] * w for side in sides)  # (side, D/4) each
        Y, X = (torch.cat([v.sin(), v.cos()], dim=1).float() for v in (y, x))  # (side, D/2) each
        X = X.expand(grid[0], -1, -1)  # (rows, columns, D/2)
        Y = Y[:, None].expand(-1, grid[1], -1)  # (rows, columns, D/2)
        E_pos = torch.cat([X, Y], dim=2).flatten(0, 1)  # (N, D)
        return F.pad(E_pos, (0, 0, self.prefix, 0))[None]  # (1, T, D)


class Relative1D(nn.Module):
    """Attention logits q . r_(p_q - p_k) / sqrt(d), with a learned r for each of the 2T - 1 offsets.

    The paper's "extra attention": the content query against position keys. Tokens are counted in raster
    order with the class token at 0. r has width D and is split into heads as the content keys are.
    """

    def __init__(self, tokens: int, width: int, heads: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(2 * tokens - 1, width))
        self.heads = heads

    def forward(self, q: Tensor, p: Tensor | None = None) -> Tensor:
        """q (B, h, T, d) -> (B, h, T, T). `p` (B, T): the places of the tokens; None: all of them, in order."""
        tokens = (self.table.shape[0] + 1) // 2
        if p is None:
            p = torch.arange(q.shape[2], device=q.device)
        offset = p[..., :, None] - p[..., None, :] + tokens - 1  # (T, T) or (B, T, T)
        r = self.table.unflatten(1, (self.heads, -1)).permute(1, 2, 0)  # (h, d, 2T-1)
        by_offset = q @ r / q.shape[-1] ** 0.5  # (B, h, T, 2T-1)
        offset = offset if offset.ndim == 2 else offset[:, None]  # (T, T) or (B, 1, T, T)
        return by_offset.gather(-1, offset.expand(*q.shape[:2], -1, -1))  # (B, h, T, T)


class RelativeBias2D(nn.Module):
    """Attention logits b_(y_q - y_k, x_q - x_k) of each head; three more: class to patch, patch to class, class to
    class (Bao et al. 2021, arXiv:2106.08254, as in Raffel et al. 2019, arXiv:1910.10683, section 2.1)."""

    def __init__(self, grid: Grid, heads: int, prefix: int) -> None:
        super().__init__()
        assert prefix == 1
        rows, columns = grid
        self.table = nn.Parameter(torch.empty((2 * rows - 1) * (2 * columns - 1) + 3, heads))
        self.grid = grid

    def forward(self, q: Tensor, p: Tensor | None = None) -> Tensor:
        """q (B, h, T, d) -> (1 or B, h, T, T). `p` (B, T): the places of the tokens; None: all of them, in order."""
        rows, columns = self.grid
        y = torch.arange(rows, device=q.device).repeat_interleave(columns)  # (N)
        x = torch.arange(columns, device=q.device).repeat(rows)  # (N)
        down, right = y[:, None] - y + rows - 1, x[:, None] - x + columns - 1  # (N, N) each
        last = len(self.table)
        index = F.pad(
            down * (2 * columns - 1) + right, (1, 0, 1, 0), value=last - 3
        )  # (T, T): class to patch
        index[1:, 0], index[0, 0] = last - 2, last - 1
        index = index[None] if p is None else index[p[:, :, None], p[:, None]]  # (1 or B, T, T)
        return self.table[index].permute(0, 3, 1, 2).to(q.dtype)  # (1 or B, h, T, T)


def relative(kind: Positions, grid: Grid, width: int, heads: int, prefix: int) -> nn.Module:
    """Return the module of a kind that is part of attention."""
    if kind == "relative_bias":
        return RelativeBias2D(grid, heads, prefix)
    return Relative1D(prefix + grid[0] * grid[1], width, heads)


def resample_bias(table: Tensor, old: Grid, new: Grid, method: str = "official") -> Tensor:
    """Resample a RelativeBias2D's table from grid `old` to grid `new`; its last three rows stay."""
    offsets, others = table[:-3], table[-3:]  # (offsets, h), (3, h)
    square = offsets.T.unflatten(1, (2 * old[0] - 1, 2 * old[1] - 1))[
        None
    ]  # (1, h, 2 rows - 1, 2 columns - 1)
    square = interpolate(square, (2 * new[0] - 1, 2 * new[1] - 1), method)
    return torch.cat([square[0].flatten(1).T, others])  # (offsets', h)


def token_places(keep: Tensor, prefix: int) -> Tensor:
    """Return the places of the tokens of kept patches (B, n), after those of the prefix: (B, prefix + n)."""
    first = torch.arange(prefix, device=keep.device).expand(len(keep), -1)  # (B, prefix)
    return torch.cat([first, keep + prefix], dim=1)


def take(z: Tensor, places: Tensor) -> Tensor:
    """z (B or 1, T, D), places (B, n) -> (B, n, D)."""
    return z.expand(len(places), -1, -1).gather(1, places[..., None].expand(-1, -1, z.shape[-1]))


def resample(table: Tensor, old: Grid, new: Grid, method: str = "official") -> Tensor:
    """Resample a learned 1-D table (1, T, D) of grid `old` to grid `new`; rows before the patches stay."""
    prefix = table.shape[1] - old[0] * old[1]
    rows, patches = table[:, :prefix], table[:, prefix:]  # (1, prefix, D), (1, N, D)
    patches = patches.unflatten(1, old).permute(0, 3, 1, 2)  # (1, D, rows, columns)
    patches = interpolate(patches, new, method)
    return torch.cat([rows, patches.flatten(2).transpose(1, 2)], dim=1)  # (1, T', D)


def resample_axis(table: Tensor, length: int, method: str = "official") -> Tensor:
    """Resample an X or Y table (L, D/2) to (length, D/2)."""
    if len(table) == length:
        return table
    column = table.T[None, :, :, None]  # (1, D/2, L, 1)
    return interpolate(column, (length, 1), method)[0, :, :, 0].T.contiguous()  # (length, D/2)


def interpolate(patches: Tensor, new: Grid, method: str) -> Tensor:
    if method not in RESAMPLE:
        raise ConfigError(f"resample={method!r} is not one of {', '.join(RESAMPLE)}")
    if tuple(patches.shape[-2:]) == tuple(new):
        return patches
    # In double precision, as scipy computes: single is off by 2e-6 at the far end of a long table. MPS has no double.
    exact = patches.float() if patches.device.type == "mps" else patches.double()
    return F.interpolate(exact, size=new, **RESAMPLE[method]).to(patches.dtype)  # type: ignore[arg-type]
