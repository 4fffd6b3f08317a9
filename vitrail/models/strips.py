"""Images of any shape in one batch: strips of patches, of which each image fills as many as it has.

    x (B, C, P, N P)   an image of h x w patches as a strip: its patches in raster order, then padding
    grids (B, 2)       h and w of each

Positions are those of each grid, padding is attended to by nothing and pooled by nothing: features are those of the
images one by one (NaFlex: arXiv:2502.14786, NaViT: arXiv:2307.06304). The layers compute on the tokens of all images
one after the other, without the padding, where torch has a kernel for such attention.
B batch, P patch, N patches of the longest strip allowed, n = h w, T = prefix + N tokens, S tokens of all
images, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.models.encoder import Layout
from vitrail.models.packing import pack
from vitrail.models.positions import Grid

if TYPE_CHECKING:
    from vitrail.models.vit import ViT, ViTConfig

HALVES = (torch.float16, torch.bfloat16)


def strip_features(vit: ViT, x: Tensor, grids: Tensor) -> Tensor:
    """(B, C, P, N P), (B, 2) -> (B, D), as ViT.features of each image by itself."""
    c = vit.config
    check_any_shape(c)
    z = vit.patches(x)  # (B, N, D): a strip is an image of one row of patches
    B, N = z.shape[:2]
    mask = torch.arange(N, device=x.device) < grids.prod(dim=1)[:, None]  # (B, N)
    mask = F.pad(mask, (c.prefix, 0), value=True)  # (B, T)
    for before in (vit.registers, vit.distillation, vit.cls):
        if before is not None:
            z = torch.cat([before.to(z.dtype).expand(B, -1, -1), z], dim=1)  # (B, T, D)
    if vit.positions is not None:
        z = z + strip_positions(vit, grids, N).to(z.dtype)
    z = vit.dropout(z)
    z = z if vit.pre_norm is None else vit.pre_norm(z)
    if is_packable(vit, z):
        packed = pack(mask)
        joined = vit.encoder(packed.tokens(z)[None], Layout(c.grid, packed=packed))  # (1, S, D)
        z = packed.rows(joined[0])  # (B, T, D)
    else:
        z = vit.encoder(z, Layout(c.grid, mask=mask[:, None, None]))  # (B, T, D)
    return vit.pool(z, mask)


def is_packable(vit: ViT, z: Tensor) -> bool:
    """Return True where torch has a kernel for sequences of several lengths: on CUDA, in half precision.

    Not where whole images or attention weights are dropped, and not for the compiler, which wants fixed shapes.
    """
    dropping = vit.training and (vit.config.drop_path > 0 or vit.config.attention_dropout > 0)
    if dropping or torch.compiler.is_compiling():
        return False
    return z.is_cuda and z.dtype in HALVES and vit.config.width // vit.config.heads % 8 == 0


@torch.compiler.disable(reason="compiled, it would be so for every set of grids")  # type: ignore[untyped-decorator]
def strip_positions(vit: ViT, grids: Tensor, N: int) -> Tensor:
    """Return E_pos of each grid (B, 2), zeros for the padding: (B, T, D)."""
    assert vit.positions is not None
    tables: dict[Grid, Tensor] = {}
    each: list[Grid] = [(h, w) for h, w in grids.tolist()]
    for grid in dict.fromkeys(each):
        E_pos = vit.positions(grid)[0]  # (prefix + n, D)
        tables[grid] = F.pad(E_pos, (0, 0, 0, vit.config.prefix + N - len(E_pos)))  # (T, D)
    return torch.stack([tables[grid] for grid in each])  # (B, T, D)


def check_any_shape(c: ViTConfig) -> None:
    """Raise ConfigError for a model that does not take strips."""
    at_stem = c.positions == "none" or (c.positions in ("1d", "2d", "sincos") and c.positions_at == "stem")
    if c.rotary is not None or c.overlap:
        raise ConfigError("images of any shape need positions at the stem and patches that do not overlap")
    if c.block != "standard" or not at_stem or c.embedded_channels != c.channels:
        raise ConfigError(
            f"images of any shape need a plain ViT with positions none, 1d, 2d or sincos at its stem, not positions "
            f"{c.positions} at {c.positions_at} with {c.block} blocks"
            + (" and a ResNet stem" if c.embedded_channels != c.channels else "")
        )
