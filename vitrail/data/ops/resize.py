"""Resizing one image, by the arithmetic of the code whose weights we run.

Used by the ops of pixel_ops.py and augment.py that resize. Images are (H, W, 3) arrays of bytes or float32.

  bilinear         TensorFlow's: half-pixel centres, no antialiasing; float32 (official ViT, BiT, big_vision)
  area             TensorFlow's: the mean of the rectangle that an output pixel covers; float32 (big_vision)
  antialiased      torch's bilinear, antialiased when it shrinks, in float32 (transformers' processor of DINOv3)
  pillow_bilinear  Pillow's: antialiased when it shrinks; bytes in, bytes out (torchvision on PIL images)
  pillow_bicubic   the same (timm)
  pillow_lanczos   the same
  torch_bilinear   torch's, antialiased, on bytes: within a level or two of Pillow's, and faster (transformers 5)
  torch_bicubic    the same; further from Pillow's where the filter overshoots

TensorFlow's two are sums of a few neighbours, taken in a fixed order: the same bits on every machine. (torch's
bilinear without antialiasing is up to 1e-5 of the range away, and its area has whole-pixel borders.)
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import interpolate

from vitrail.data.decode import MAX_PIXELS
from vitrail.errors import ImageError

Pixels: TypeAlias = NDArray[np.uint8] | NDArray[np.float32]
Box: TypeAlias = tuple[int, int, int, int]  # top, left, height, width
Taps: TypeAlias = tuple[NDArray[np.intp], NDArray[np.float32]]

PILLOW = {
    "pillow_bilinear": Image.Resampling.BILINEAR,
    "pillow_bicubic": Image.Resampling.BICUBIC,
    "pillow_lanczos": Image.Resampling.LANCZOS,
}
TORCH = {"torch_bilinear": "bilinear", "torch_bicubic": "bicubic"}
OF_BYTES = (*PILLOW, *TORCH)  # bytes in, bytes out
KEPT = 512  # taps of so many pairs of lengths: crops of an image have at most as many as it has rows


def resize(image: Pixels, size: tuple[int, int], method: str, window: Box | None = None) -> Pixels:
    """Resize to `size` (height, width), by one of METHODS; or compute only a window of that, with the same bits."""
    height, width = size
    if height * width > MAX_PIXELS:
        before = f"{image.shape[0]} x {image.shape[1]}"
        raise ImageError(f"an image of {before} would become {height} x {width}: over {MAX_PIXELS:,} pixels")
    top, left, h, w = window or (0, 0, height, width)
    if method in OF_FRACTIONS:
        taps = OF_FRACTIONS[method]
        (rows, row_weight), (columns, weight) = taps(image.shape[0], height), taps(image.shape[1], width)
        rows, row_weight = rows[:, top : top + h], row_weight[:, top : top + h]  # (taps, h)
        columns, weight = columns[:, left : left + w], weight[:, left : left + w]  # (taps, w)
        # In both directions by sums of whole rows, which is fast.
        first, last = int(columns[0, 0]), int(columns[-1, -1])  # they grow from tap to tap, pixel to pixel
        W = last + 1 - first
        x = image[:, first : last + 1].reshape(len(image), W * 3)  # (H, W * 3)
        x = np.ascontiguousarray(_sum_of_rows(x, rows, row_weight).T).reshape(W, 3 * h)  # (W, 3 * h)
        x = np.ascontiguousarray(_sum_of_rows(x, columns - first, weight).T)  # (3 * h, w)
        return x.reshape(3, h, w).transpose(1, 2, 0)  # (h, w, 3), in memory as planes
    assert image.dtype == np.uint8
    if method in PILLOW:
        picture = Image.fromarray(image).resize((width, height), PILLOW[method])
        resized = np.array(picture)  # (height, width, 3)
    else:
        own = image if image.flags.c_contiguous and image.flags.writeable else image.copy()
        batch = torch.from_numpy(own).permute(2, 0, 1)[None]  # (1, 3, H, W)
        batch = interpolate(batch, size, mode=TORCH[method], antialias=True, align_corners=False)
        resized = np.asarray(batch[0].permute(1, 2, 0))  # (height, width, 3)
    return resized[top : top + h, left : left + w]  # (h, w, 3)


def _sum_of_rows(rows: Pixels, index: NDArray[np.intp], weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the sum over taps t of weight[t] * rows[index[t]]."""
    total: NDArray[np.float32] = rows[index[0]] * weight[0][:, None]
    for t in range(1, len(index)):
        total += rows[index[t]] * weight[t][:, None]
    return total


@lru_cache(maxsize=KEPT)
def _bilinear_taps(length: int, new: int) -> Taps:
    """Return each output pixel's two neighbours and their weights, both (2, new); in float32, as TensorFlow does."""
    scale = np.float32(length) / np.float32(new)
    centre = (np.arange(new, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    low = np.floor(centre)
    fraction = centre - low
    index = np.stack([low, np.ceil(centre)]).clip(0, length - 1).astype(np.intp)  # (2, new)
    return index, np.stack([1 - fraction, fraction])  # (2, new)


@lru_cache(maxsize=KEPT)
def _area_taps(length: int, new: int) -> Taps:
    """Return the inputs that each output pixel covers, and the share of it that each fills: both (taps, new)."""
    scale = np.float32(length) / np.float32(new)
    start = np.arange(new, dtype=np.float32) * scale
    end = np.arange(1, new + 1, dtype=np.float32) * scale
    first = np.floor(start)
    taps = int((np.ceil(end) - first).max())
    index = first + np.arange(taps, dtype=np.float32)[:, None]  # (taps, new)
    share = np.minimum(index + 1, end) - np.maximum(index, start)
    return index.clip(max=length - 1).astype(np.intp), share.clip(min=0) / scale


@lru_cache(maxsize=KEPT)
def _antialiased_taps(length: int, new: int) -> Taps:
    """Return the inputs under a triangle around each output pixel, and its heights there: both (taps, new)."""
    scale = length / new
    wider = max(1.0, scale)
    centre = (np.arange(new) + 0.5) * scale
    first, last = np.floor(centre - wider + 0.5), np.floor(centre + wider + 0.5)
    index = first + np.arange(int((last - first).max()))[:, None]  # (taps, new)
    height = (1 - np.abs(index + 0.5 - centre) / wider).clip(min=0)
    height[(index < 0) | (index >= length) | (index >= last)] = 0
    return index.clip(0, length - 1).astype(np.intp), (height / height.sum(axis=0)).astype(np.float32)


# Sums of a few neighbours, in float32.
OF_FRACTIONS = {"bilinear": _bilinear_taps, "area": _area_taps, "antialiased": _antialiased_taps}
METHODS = (*OF_FRACTIONS, *OF_BYTES)
