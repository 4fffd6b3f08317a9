"""RandAugment of a batch of equal sizes on its device, by what RandAugment.draw decided for each of its images.

Stands beside randaugment.py, which distorts one image by Pillow and is the reference: the bytes are the same. Every
image goes through the same steps (a move, a table of values, a blend, a grey box), with numbers that leave it as it
is where a step was not drawn. No shape and no branch depends on the data, so all of it compiles whole.

Symbols: x the images (B, 3, H, W), bytes; v the values 0 ... 255; what belongs to an image is (B, 1, 1, 1).
Pillow's arithmetic is followed where it decides a byte: 16.16 fixed point in moves, single precision in blends,
double precision in autocontrast. Compilers may fuse a product into the sum that follows, and so round once where
Pillow rounds twice; `_blended` and `_autocontrast` are written such that this changes nothing.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

DISTORTIONS = (
    "autocontrast", "equalize", "invert", "rotate", "posterize", "solarize", "color", "contrast", "brightness",
    "sharpness", "shear_x", "shear_y", "translate_x", "translate_y", "cutout", "solarize_add",
)  # fmt: skip
GREY = 128  # fills what a move uncovers, and a cutout

Chosen: TypeAlias = dict[str, Tensor]  # of each of DISTORTIONS: which images drew it, (B, 1, 1, 1)


def distorted(x: Tensor, drawn: Tensor, reach: float = 1.0) -> Tensor:
    """The images, bytes (B, 3, H, W), after all layers of `drawn`: (B, layers * 4), an image's RandAugment.draw."""
    assert x.dtype == torch.uint8
    for layer in drawn.unflatten(1, (-1, 4)).unbind(1):  # (B, 4)
        number, strength, left, top = layer[:, :, None, None, None].unbind(1)  # (B, 1, 1, 1)
        chosen = {how: number == n for n, how in enumerate(DISTORTIONS)}
        # An image has one distortion per layer: what a step takes of it can be seen before the steps are made.
        table, plainer = _table(x, chosen, strength), _plainer(x, chosen)
        x = _moved(x, chosen, strength, reach)
        x = table.gather(2, x.flatten(2).long()).view_as(x)  # (B, 3, H, W)
        enhanced = chosen["color"] | chosen["contrast"] | chosen["brightness"] | chosen["sharpness"]
        x = _blended(plainer, x, torch.where(enhanced, strength * 1.8 + 0.1, 1.0))
        x = _boxed(x, torch.where(chosen["cutout"], (strength * 40 * reach).floor(), 0.0), left, top)
    return x


def _moved(x: Tensor, chosen: Chosen, strength: Tensor, reach: float) -> Tensor:
    """Rotated about the centre, sheared from the top left corner, or shifted; grey where nothing comes from."""
    H, W = x.shape[2:]
    turn = torch.where(chosen["rotate"], -math.radians(30) * strength, 0.0)
    shear, shift = 0.3 * strength, (100 * strength * reach + 0.5).floor()
    cos, sin = turn.cos(), turn.sin()
    # Output (column, row) comes from (a column + b row + c, d column + e row + f).
    b = sin + torch.where(chosen["shear_x"], shear, 0.0)
    d = -sin + torch.where(chosen["shear_y"], shear, 0.0)
    c = W / 2 - cos * (W / 2) - sin * (H / 2) + torch.where(chosen["translate_x"], shift, 0.0)
    f = H / 2 + sin * (W / 2) - cos * (H / 2) + torch.where(chosen["translate_y"], shift, 0.0)
    # Pillow steps through the source, from the centre of its first pixel, in 16.16 fixed point.
    steps = torch.stack((cos, b, c + cos / 2 + b / 2, d, cos, f + d / 2 + cos / 2))  # (6, B, 1, 1, 1)
    a, b, c, d, e, f = (steps * 65536 + 0.5).floor().long().unbind()  # (B, 1, 1, 1)
    rows, columns = _places(x)
    from_x = (a * columns + b * rows + c) >> 16  # (B, 1, H, W)
    from_y = (d * columns + e * rows + f) >> 16  # (B, 1, H, W)
    inside = (from_x >= 0) & (from_x < W) & (from_y >= 0) & (from_y < H)
    index = from_y.clamp(0, H - 1) * W + from_x.clamp(0, W - 1)
    moved = x.flatten(2).gather(2, index.flatten(2).expand(-1, 3, -1)).view_as(x)  # (B, 3, H, W)
    return torch.where(inside, moved, GREY)


def _table(x: Tensor, chosen: Chosen, strength: Tensor) -> Tensor:
    """What becomes of each value in each image and channel, bytes (B, 3, 256)."""
    v = torch.arange(256, device=x.device, dtype=torch.int32)
    values = x.flatten(2).long()  # (B, 3, H W)
    counts = torch.zeros(*x.shape[:2], 256, device=x.device, dtype=torch.int32)
    counts = counts.scatter_add(2, values, torch.ones_like(values, dtype=torch.int32))
    counts = counts[:, :, None]  # (B, 3, 1, 256)
    low = torch.where(counts > 0, v, 255).amin(-1, keepdim=True)  # (B, 3, 1, 1)
    high = torch.where(counts > 0, v, 0).amax(-1, keepdim=True)
    lost_bits = 8 - (strength * 4).int().clamp(1, 8)
    tables = {
        "autocontrast": _autocontrast(v, low, high, strength.dtype),
        "equalize": _equalize(v, counts, high),
        "invert": 255 - v,
        "posterize": (v >> lost_bits) << lost_bits,
        "solarize": torch.where(v < (strength * 256).int(), v, 255 - v),
        "solarize_add": torch.where(v < 128, (v + (strength * 110).int()).clamp(max=255), v),
    }
    table = v.expand_as(counts)  # (B, 3, 1, 256)
    for how, other in tables.items():
        table = torch.where(chosen[how], other, table)
    return table.squeeze(2).to(torch.uint8)  # (B, 3, 256)


def _autocontrast(v: Tensor, low: Tensor, high: Tensor, dtype: torch.dtype) -> Tensor:
    """From low to high stretched to 0 ... 255; `dtype` that of the arithmetic."""
    width = (high - low).clamp(min=1).to(dtype)
    scale = torch.full_like(width, 255) / width  # a division; 255 / width would be 255 times the reciprocal
    # Of the two parts of scale, the products with a byte are exact: their sum is rounded once, however it is made.
    coarse = (scale * 2**20).floor() / 2**20
    fine = scale - coarse
    stretched = (v * coarse + v * fine) - (low * coarse + low * fine)
    return torch.where(high > low, stretched.int().clamp(0, 255), v)


def _equalize(v: Tensor, counts: Tensor, high: Tensor) -> Tensor:
    """Each value by how many pixels are below it; an image of few pixels besides its lightest stays as it is."""
    lightest = counts.gather(-1, high.long())  # (B, 3, 1, 1)
    step = (counts.sum(-1, keepdim=True, dtype=torch.int32) - lightest) // 255
    below = counts.cumsum(-1, dtype=torch.int32) - counts
    return torch.where(step > 0, ((step // 2 + below) // step.clamp(min=1)).clamp(max=255), v)


def _plainer(x: Tensor, chosen: Chosen) -> Tensor:
    """What an image is blended with: its grey, its smooth version, an even level, or black; int32 (B, 3, H, W)."""
    H, W = x.shape[2:]
    x = x.int()
    red, green, blue = x.split(1, dim=1)  # (B, 1, H, W)
    grey = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    rows, columns = _places(x)
    inner = (rows > 0) & (rows < H - 1) & (columns > 0) & (columns < W - 1)  # (H, W)
    wide = F.pad(x, (1, 1, 1, 1))  # (B, 3, H + 2, W + 2)
    wide = wide[..., :-2] + wide[..., 1:-1] + wide[..., 2:]  # (B, 3, H + 2, W)
    around = wide[..., :-2, :] + wide[..., 1:-1, :] + wide[..., 2:, :]  # (B, 3, H, W)
    # The mean of nine pixels where the middle counts five times; Pillow leaves the border as it is.
    smooth = torch.where(inner, (2 * (around + 4 * x) + 13) // 26, x)
    level = torch.where(chosen["contrast"], min(H * W // 256, 255), 0)
    return torch.where(chosen["sharpness"], smooth, torch.where(chosen["color"], grey, level))


def _blended(plainer: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    """plainer + factor (x - plainer), in single precision with each of both operations rounded.

    A factor of at least 1/16 is a whole multiple of 2^-27 in single precision, so that the product is whole and the
    one rounding of it is that from int64.
    """
    product = (factor.float() * 2**27).long() * (x.int() - plainer)
    return (plainer + product.float() * 2.0**-27).clamp(0, 255).to(torch.uint8)


def _boxed(x: Tensor, reach: Tensor, left: Tensor, top: Tensor) -> Tensor:
    """A grey square of side 2 * reach around the pixel (left, top)."""
    rows, columns = _places(x)
    covered = (columns >= left - reach) & (columns < left + reach)
    covered = covered & (rows >= top - reach) & (rows < top + reach)  # (B, 1, H, W)
    return torch.where(covered, GREY, x)


def _places(x: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of the rows (H, 1) and of the columns (W,)."""
    H, W = x.shape[2:]
    return torch.arange(H, device=x.device)[:, None], torch.arange(W, device=x.device)
