"""Pixel ops on a whole batch where it lies, each image with numbers of its own: resident.py runs them on a device.

A batch is (B, 3, H, W), bytes or float32 in 0..255. Every function is one chain of tensor operations of fixed
shapes, without a word to the host, so that it compiles whole. They give what the ops of pixel_ops.py and augment.py
give image by image, but for the last bit of a float32 sum where a compiler fuses a product into it.

RandAugment's bytes are exactly those of randaugment.py, which distorts one image by numpy and is the reference.
Every image goes through the same steps (a move, a table of values, a blend, a grey box), with numbers that leave it
as it is where a step was not drawn. The reference rounds each product and each sum to single precision; compilers
fuse a product into the sum after it, and round once. So these numbers are whole here, in units of a power of two:
exact in int64, and rounded by `_single` alone, into which nothing can be fused.

Symbols: x the images (B, 3, H, W), bytes; v the values 0 ... 255; per-image numbers are (B, 1, 1, 1).
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

DISTORTIONS = (
    "autocontrast", "equalize", "invert", "rotate", "posterize", "solarize", "color", "contrast", "brightness",
    "sharpness", "shear_x", "shear_y", "translate_x", "translate_y", "cutout", "solarize_add",
)  # fmt: skip
GREY = 128  # fills what a move uncovers, and a cutout


def _whole(value: float, bits: int) -> int:
    """Return a constant in single precision, in units of 2^-bits."""
    return int(float(np.float32(value)) * 2**bits)


LEVEL = _whole(1 / 255, 31)
LUMA = tuple(_whole(weight, 27) for weight in (0.2989, 0.587, 0.114))
KERNEL = tuple(_whole(weight / 13, 27) for weight in (1, 1, 1, 1, 5, 1, 1, 1, 1))

Chosen: TypeAlias = dict[str, Tensor]  # for each of DISTORTIONS: which images drew it, (B, 1, 1, 1)


def squashed(x: Tensor, box: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize the rectangle `box` (B, 4), top, left, height, width, by TensorFlow's bilinear (resize.py); float32."""
    rows, columns = taps(box[:, 0], box[:, 2], size[0]), taps(box[:, 1], box[:, 3], size[1])
    return two_taps(two_taps(x, rows, 2), columns, 3)  # (B, 3, h, w)


def taps(start: Tensor, length: Tensor, new: int) -> tuple[Tensor, Tensor]:
    """Return each output pixel's two neighbours, and the weight of the second; both begin with (B,)."""
    # In float64 first: a GPU divides by a number as by its rounded reciprocal, which in float32 would be one bit off.
    scale = (length.to(torch.float64) / new).to(torch.float32)[:, None]  # (B, 1)
    centre = (torch.arange(new, dtype=torch.float32, device=start.device) + 0.5) * scale - 0.5  # (B, new)
    low = centre.floor()
    index = torch.stack([low, centre.ceil()], 1).to(torch.int64)  # (B, 2, new)
    last = (length.to(torch.int64) - 1)[:, None, None]  # (B, 1, 1)
    return start.to(torch.int64)[:, None, None] + index.minimum(last).clamp(min=0), centre - low


def two_taps(x: Tensor, neighbours: tuple[Tensor, Tensor], dim: int) -> Tensor:
    """Return (1 - weight) x[first] + weight x[second] along `dim` of (B, 3, H, W), 2 or 3."""
    index, weight = neighbours
    shape = (len(x), 1, -1, 1) if dim == 2 else (len(x), 1, 1, -1)
    weight = weight.reshape(shape)  # (B, 1, new, 1) or (B, 1, 1, new)
    full = list(x.shape)
    full[dim] = index.shape[-1]
    first, second = (x.gather(dim, at.reshape(shape).expand(full)) for at in index.unbind(1))
    return first * (1 - weight) + second * weight  # (B, 3, new, W) or (B, 3, H, new)


def flipped(x: Tensor, chosen: Tensor) -> Tensor:
    """Exchange left and right where `chosen` (B,)."""
    return torch.where(chosen.bool()[:, None, None, None], x.flip(3), x)  # (B, 3, H, W)


def to_bytes(x: Tensor, rounding: str) -> Tensor:
    if x.dtype == torch.uint8:
        return x
    whole = x.round() if rounding == "nearest" else x.floor()
    return whole.clamp(0, 255).to(torch.uint8)


def distorted(x: Tensor, drawn: Tensor, reach: float = 1.0) -> Tensor:
    """Apply all layers of `drawn` (B, layers * 4), each image's RandAugment.draw, to bytes (B, 3, H, W)."""
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


def _single(n: Tensor) -> Tensor:
    """Round whole numbers, int64, to the nearest that single precision has."""
    return n.float().long()


def _in_units(value: Tensor, unit: float) -> Tensor:
    """Convert to single precision, as a count of units; a power of two changes no digit."""
    return (value.float() / unit).long()


def _moved(x: Tensor, chosen: Chosen, strength: Tensor, reach: float) -> Tensor:
    """Rotate about the centre, shear from the top left corner, or shift; grey where nothing comes from."""
    H, W = x.shape[2:]
    bits = 40  # of the unit: an image of 2^14 pixels, turned by any angle, still is below 2^63
    one, half = 1 << bits, 1 << (bits - 1)
    turn = (30 * strength).float() * math.radians(1)
    turn = torch.where(chosen["rotate"], turn, 0.0).to(strength.dtype)
    shear, shift = 0.3 * strength, 100 * strength * reach
    cos, sin, shear, shift = (_in_units(at, 1 / one) for at in (turn.cos(), turn.sin(), shear, shift))
    # The centre stays where it is.
    right = _single((W - 1) * one - _single(_single(cos * (W - 1)) - _single(sin * (H - 1)))) >> 1
    down = _single((H - 1) * one - _single(_single(sin * (W - 1)) + _single(cos * (H - 1)))) >> 1
    # Output (column, row) comes from (a column + b row + c, d column + e row + f); a and e are cos.
    b = torch.where(chosen["shear_x"], shear, -sin)
    d = torch.where(chosen["shear_y"], shear, sin)
    c = torch.where(chosen["translate_x"], shift, right)
    f = torch.where(chosen["translate_y"], shift, down)
    rows, columns = _places(x)
    from_x = _single(_single(_single(cos * columns) + _single(b * rows)) + c)  # (B, 1, H, W)
    from_y = _single(_single(_single(d * columns) + _single(cos * rows)) + f)  # (B, 1, H, W)
    inside = (from_x > -half) & (from_x < W * one - half) & (from_y > -half) & (from_y < H * one - half)
    index = ((from_y + half) >> bits).clamp(0, H - 1) * W + ((from_x + half) >> bits).clamp(0, W - 1)
    moved = x.flatten(2).gather(2, index.flatten(2).expand(-1, 3, -1)).view_as(x)  # (B, 3, H, W)
    return torch.where(inside, moved, GREY)


def _table(x: Tensor, chosen: Chosen, strength: Tensor) -> Tensor:
    """Tabulate the new value of each value in each image and channel, bytes (B, 3, 256)."""
    v = torch.arange(256, device=x.device, dtype=torch.int32)
    values = x.flatten(2).long()  # (B, 3, H W)
    counts = torch.zeros(*x.shape[:2], 256, device=x.device, dtype=torch.int32)
    counts = counts.scatter_add(2, values, torch.ones_like(values, dtype=torch.int32))
    counts = counts[:, :, None]  # (B, 3, 1, 256)
    low = torch.where(counts > 0, v, 255).amin(-1, keepdim=True)  # (B, 3, 1, 1)
    high = torch.where(counts > 0, v, 0).amax(-1, keepdim=True)
    lost_bits = ((8 - (strength * 4).int()) % 256).clamp(max=7)
    tables = {
        "autocontrast": _autocontrast(v, low, high, strength.dtype),
        "equalize": _equalize(v, counts, high),
        "invert": 255 - v,
        "posterize": (v >> lost_bits) << lost_bits,
        "solarize": torch.where(v < (strength * 256).int() % 256, v, 255 - v),
        "solarize_add": torch.where(v < 128, (v + (strength * 110).int()).clamp(max=255), v),
    }
    table = v.expand_as(counts)  # (B, 3, 1, 256)
    for how, other in tables.items():
        table = torch.where(chosen[how], other, table)
    return table.squeeze(2).to(torch.uint8)  # (B, 3, 256)


def _autocontrast(v: Tensor, low: Tensor, high: Tensor, dtype: torch.dtype) -> Tensor:
    """Stretch low ... high to 0 ... 255; `dtype` is that of the division, with digits to spare."""
    bits = 23  # of the unit: a scale of at least 1 has no more behind the point
    width = (high - low).clamp(min=1).to(dtype)
    white = torch.full_like(width, 255)  # since 255 / width would be by the reciprocal
    scale = _in_units(white / width, 2.0**-bits)
    stretched = _single(_single(v * scale) - _single(low * scale)) >> bits
    return torch.where(high > low, stretched.clamp(0, 255), v)


def _equalize(v: Tensor, counts: Tensor, high: Tensor) -> Tensor:
    """Map each value by how many pixels are below it; an image of few pixels besides its lightest stays as it is."""
    lightest = counts.gather(-1, high.long())  # (B, 3, 1, 1)
    step = (counts.sum(-1, keepdim=True, dtype=torch.int32) - lightest) // 255
    below = counts.cumsum(-1, dtype=torch.int32) - counts
    return torch.where(step > 0, ((step // 2 + below) // step.clamp(min=1)).clamp(max=255), v)


def _plainer(x: Tensor, chosen: Chosen) -> Tensor:
    """Return the image to blend with: its grey, its smooth version, an even level, or black; int64 (B, 3, H, W)."""
    H, W = x.shape[2:]
    x = x.long()
    level = torch.where(chosen["contrast"], min(H * W // 256, 255), 0)
    plainer = torch.where(chosen["color"], _grey(x), level)
    return torch.where(chosen["sharpness"], _smooth(x), plainer)


def _grey(x: Tensor) -> Tensor:
    """Convert (B, 3, H, W) to grey (B, 1, H, W)."""
    shares = _single(x * LEVEL).split(1, dim=1)
    red, green, blue = (
        (share * weight).float() * 2.0**-58 for share, weight in zip(shares, LUMA, strict=True)
    )
    return ((red + green + blue) * 255.5).long()


def _smooth(x: Tensor) -> Tensor:
    """Average nine pixels, the middle one five times; the border stays as it is."""
    H, W = x.shape[2:]
    rows, columns = _places(x)
    inner = (rows > 0) & (rows < H - 1) & (columns > 0) & (columns < W - 1)  # (H, W)
    around = F.pad(x, (1, 1, 1, 1))  # (B, 3, H + 2, W + 2)
    total = torch.zeros_like(x)
    for place, weight in enumerate(KERNEL):
        top, left = divmod(place, 3)
        total = _single(total + weight * around[..., top : top + H, left : left + W])
    return torch.where(inner, total >> 27, x)


def _blended(plainer: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    """Return plainer + factor (x - plainer), in single precision with both operations rounded.

    A factor of at least 1/16 is a whole multiple of 2^-27 in single precision, so that the product is whole and the
    one rounding of it is that from int64.
    """
    product = _in_units(factor, 2.0**-27) * (x.long() - plainer)
    return (plainer + product.float() * 2.0**-27).clamp(0, 255).to(torch.uint8)


def _boxed(x: Tensor, reach: Tensor, left: Tensor, top: Tensor) -> Tensor:
    """Draw a grey square of side 2 * reach around the pixel (left, top)."""
    rows, columns = _places(x)
    covered = (columns >= left - reach) & (columns < left + reach)
    covered = covered & (rows >= top - reach) & (rows < top + reach)  # (B, 1, H, W)
    return torch.where(covered, GREY, x)


def _places(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of the rows (H, 1) and of the columns (W,)."""
    H, W = x.shape[2:]
    return torch.arange(H, device=x.device)[:, None], torch.arange(W, device=x.device)
