"""Pixel ops on a whole batch, each image with its own random numbers: resident.py runs them on a device.

A batch is (B, 3, H, W), bytes or float32 in 0..255. Every function is one chain of tensor operations of fixed
shapes, without host synchronisation, so that it compiles as one graph. They give the same results as the ops of
pixel_ops.py and augment.py, except for the last bit of a float32 sum if a compiler fuses a product into it.

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
    for dim, new in ((2, size[0]), (3, size[1])):  # down, then across
        start, length = box[:, dim - 2].to(torch.int64), box[:, dim]
        # In float64 first: a GPU divides by a number as by its rounded reciprocal, in float32 one bit off.
        scale = (length.to(torch.float64) / new).to(torch.float32)[:, None]  # (B, 1)
        centre = (torch.arange(new, dtype=torch.float32, device=x.device) + 0.5) * scale - 0.5  # (B, new)
        low = centre.floor()
        last = (length.to(torch.int64) - 1)[:, None, None]  # (B, 1, 1)
        index = torch.stack([low, centre.ceil()], 1).to(torch.int64).minimum(last).clamp(min=0)  # (B, 2, new)
        shape = (len(x), 1, new, 1) if dim == 2 else (len(x), 1, 1, new)
        full = [*x.shape[:dim], new, *x.shape[dim + 1 :]]
        places = (index + start[:, None, None]).unbind(1)  # two neighbours, (B, new) each
        first, second = (x.gather(dim, place.reshape(shape).expand(full)) for place in places)
        weight = (centre - low).reshape(shape)
        x = first * (1 - weight) + second * weight
    return x  # (B, 3, h, w)


def inside(box: Tensor, x: Tensor) -> Tensor:
    """Return the mask of the pixels of x in their boxes (B, 4: top, left, height, width); bool (B, 1, H, W)."""
    top, left, height, width = (side[:, None] for side in box.unbind(1))  # (B, 1)
    row, column = (torch.arange(n, device=x.device) for n in x.shape[2:])
    rows = (row >= top) & (row < top + height)  # (B, H)
    columns = (column >= left) & (column < left + width)  # (B, W)
    return rows[:, None, :, None] & columns[:, None, None, :]  # (B, 1, H, W)


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
        # plainer + factor (x - plainer), both operations rounded to single precision. A factor of at least 1/16 is
        # a whole multiple of 2^-27 there, so the product is whole and the one rounding of it is that from int64.
        enhanced = chosen["color"] | chosen["contrast"] | chosen["brightness"] | chosen["sharpness"]
        factor = _in_units(torch.where(enhanced, strength * 1.8 + 0.1, 1.0), 2.0**-27)
        product = factor * (x.long() - plainer)
        x = (plainer + product.float() * 2.0**-27).clamp(0, 255).to(torch.uint8)
        # A grey square of side 2 * half around the pixel (left, top), of no size where no cutout was drawn.
        half = torch.where(chosen["cutout"], (strength * 40 * reach).floor(), 0.0)
        box = torch.stack([top - half, left - half, 2 * half, 2 * half], 1).flatten(1)  # (B, 4)
        x = torch.where(inside(box, x), GREY, x)
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
    rows, columns = torch.arange(H, device=x.device)[:, None], torch.arange(W, device=x.device)
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
    # Stretch low ... high to 0 ... 255. A scale of at least 1 has no more than 23 bits behind the point.
    width = (high - low).clamp(min=1).to(strength.dtype)  # digits to spare for the division
    white = torch.full_like(width, 255)  # since 255 / width would be by the reciprocal
    scale = _in_units(white / width, 2.0**-23)
    stretched = (_single(_single(v * scale) - _single(low * scale)) >> 23).clamp(0, 255)
    # Map each value by how many pixels are below it; an image of few pixels besides its lightest stays as it is.
    lightest = counts.gather(-1, high.long())  # (B, 3, 1, 1)
    step = (counts.sum(-1, keepdim=True, dtype=torch.int32) - lightest) // 255
    below = counts.cumsum(-1, dtype=torch.int32) - counts
    equalized = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    lost_bits = ((8 - (strength * 4).int()) % 256).clamp(max=7)
    tables = {
        "autocontrast": torch.where(high > low, stretched, v),
        "equalize": torch.where(step > 0, equalized, v),
        "invert": 255 - v,
        "posterize": (v >> lost_bits) << lost_bits,
        "solarize": torch.where(v < (strength * 256).int() % 256, v, 255 - v),
        "solarize_add": torch.where(v < 128, (v + (strength * 110).int()).clamp(max=255), v),
    }
    table = v.expand_as(counts)  # (B, 3, 1, 256)
    for how, other in tables.items():
        table = torch.where(chosen[how], other, table)
    return table.squeeze(2).to(torch.uint8)  # (B, 3, 256)


def _plainer(x: Tensor, chosen: Chosen) -> Tensor:
    """Return the image to blend with: its grey, its smooth version, an even level, or black; int64 (B, 3, H, W)."""
    H, W = x.shape[2:]
    x = x.long()
    shares = zip(_single(x * LEVEL).split(1, dim=1), LUMA, strict=True)
    red, green, blue = ((share * weight).float() * 2.0**-58 for share, weight in shares)
    grey = ((red + green + blue) * 255.5).long()  # (B, 1, H, W)
    # The mean of nine pixels, the middle one five times; the border stays as it is.
    around, total = F.pad(x, (1, 1, 1, 1)), torch.zeros_like(x)  # (B, 3, H + 2, W + 2), (B, 3, H, W)
    for place, weight in enumerate(KERNEL):
        top, left = divmod(place, 3)
        total = _single(total + weight * around[..., top : top + H, left : left + W])
    smooth = x.clone()
    smooth[..., 1:-1, 1:-1] = (total >> 27)[..., 1:-1, 1:-1]
    level = torch.where(chosen["contrast"], min(H * W // 256, 255), 0)
    plainer = torch.where(chosen["color"], grey, level)
    return torch.where(chosen["sharpness"], smooth, plainer)
