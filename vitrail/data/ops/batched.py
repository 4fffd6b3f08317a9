"""Pixel ops on a whole batch where it lies, each image with numbers of its own: what resident.py runs on a device.

A batch is (B, 3, H, W), bytes or float32 in 0..255. Every function is one chain of tensor operations of fixed
shapes, without a word to the host, so that it compiles whole. They give what the ops of pixel_ops.py and augment.py
give image by image, but for the last bit of a float32 sum where a compiler fuses a product into it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def squashed(x: Tensor, box: Tensor, size: tuple[int, int]) -> Tensor:
    """TensorFlow's bilinear (resize.py) of the rectangle `box` (B, 4): top, left, height, width; float32."""
    rows, columns = taps(box[:, 0], box[:, 2], size[0]), taps(box[:, 1], box[:, 3], size[1])
    return two_taps(two_taps(x, rows, 2), columns, 3)  # (B, 3, h, w)


def taps(start: Tensor, length: Tensor, new: int) -> tuple[Tensor, Tensor]:
    """Each output pixel's two neighbours, and the weight of the second; both begin with (B,)."""
    # In float64 first: a GPU divides by a number as by its rounded reciprocal, which in float32 would be one bit off.
    scale = (length.to(torch.float64) / new).to(torch.float32)[:, None]  # (B, 1)
    centre = (torch.arange(new, dtype=torch.float32, device=start.device) + 0.5) * scale - 0.5  # (B, new)
    low = centre.floor()
    index = torch.stack([low, centre.ceil()], 1).to(torch.int64)  # (B, 2, new)
    last = (length.to(torch.int64) - 1)[:, None, None]  # (B, 1, 1)
    return start.to(torch.int64)[:, None, None] + index.minimum(last).clamp(min=0), centre - low


def two_taps(x: Tensor, neighbours: tuple[Tensor, Tensor], dim: int) -> Tensor:
    """(1 - weight) x[first] + weight x[second] along `dim` of (B, 3, H, W), 2 or 3."""
    index, weight = neighbours
    shape = (len(x), 1, -1, 1) if dim == 2 else (len(x), 1, 1, -1)
    weight = weight.reshape(shape)  # (B, 1, new, 1) or (B, 1, 1, new)
    full = list(x.shape)
    full[dim] = index.shape[-1]
    first, second = (x.gather(dim, at.reshape(shape).expand(full)) for at in index.unbind(1))
    return first * (1 - weight) + second * weight  # (B, 3, new, W) or (B, 3, H, new)


def flipped(x: Tensor, whether: Tensor) -> Tensor:
    """Left and right exchanged where `whether` (B,)."""
    return torch.where(whether.bool()[:, None, None, None], x.flip(3), x)  # (B, 3, H, W)


def to_bytes(x: Tensor, rounding: str) -> Tensor:
    if x.dtype == torch.uint8:
        return x
    whole = x.round() if rounding == "nearest" else x.floor()
    return whole.clamp(0, 255).to(torch.uint8)
