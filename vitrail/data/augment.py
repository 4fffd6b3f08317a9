"""The random ops of a preprocessing line, and the mixing of a batch.

The pixel ops have the form of those in pixel_ops.py, and a line names them in the same way. Each draws all that
is random from the numpy Generator that it is called with, and nothing else is random: the loader makes one from
(seed, epoch, index), so that every process augments an example in the same way. RandAugment is in randaugment.py.

Mixing (mixup, cutmix) has two halves: a `draw_` function decides the share, one for a whole global batch, and a
function of tensors applies it to images and targets, on any device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from vitrail.data.ops.on_device import GREY, inside
from vitrail.data.ops.pixel_ops import (
    Drawn,
    Method,
    PixelOp,
    Probability,
    Ratios,
    Shares,
    Sized,
    check_inside,
    cut,
)
from vitrail.data.ops.resize import Box, Pixels, resize


@dataclass(frozen=True)
class InceptionCrop(Sized):
    """A rectangle of random area, aspect ratio and place (`inception_box`), squashed to height x width."""

    name = "inception_crop"
    random = True
    resizes = True
    method: Method = "bilinear"
    area: Shares = (0.05, 1.0)
    aspect: Ratios = (0.75, 1.33)

    def draw(self, height: int, width: int, rng: np.random.Generator) -> Box:
        return inception_box(height, width, rng, area=self.area, aspect=self.aspect)

    def apply(self, image: Pixels, drawn: Drawn) -> Pixels:
        return resize(cut(image, drawn), self.output, self.method)


def inception_box(
    height: int,
    width: int,
    rng: np.random.Generator,
    *,
    area: tuple[float, float] = (0.05, 1.0),
    aspect: tuple[float, float] = (0.75, 1.33),
    attempts: int = 100,
) -> Box:
    """Draw a random rectangle as tf.image.sample_distorted_bounding_box does, by its defaults.

    The aspect ratio w / h is uniform in `aspect`. Given that, h is uniform over the whole numbers for which the
    rectangle fits into the image and has a share of its area within `area`; so small shares are likelier than
    under torchvision's uniform share. The place is uniform. After `attempts` failures: the whole image.
    """
    least, most = area[0] * height * width, area[1] * height * width
    for _ in range(attempts):
        ratio = rng.uniform(*aspect)
        h_most = min(round(math.sqrt(most / ratio)), height, int((width + 0.5 - 1e-7) / ratio))
        h_least = min(round(math.sqrt(least / ratio)), h_most)
        h = int(rng.integers(h_least, h_most, endpoint=True))
        # A rectangle that rounding pushed out of `area` gets a second chance, one row taller or shorter.
        if h * round(h * ratio) < least:
            h += 1
        if h * round(h * ratio) > most:
            h -= 1
        w = round(h * ratio)
        if least <= h * w <= most and 0 < h <= height and 0 < w <= width:
            return _place(height, width, h, w, rng)
    return 0, 0, height, width


@dataclass(frozen=True)
class RandomCrop(Sized):
    """A height x width rectangle at a uniform place."""

    name = "random_crop"
    random = True

    def draw(self, height: int, width: int, rng: np.random.Generator) -> Box:
        check_inside((0, 0, *self.output), height, width)
        return _place(height, width, *self.output, rng)

    def apply(self, image: Pixels, drawn: Drawn) -> Pixels:
        return cut(image, drawn)


@dataclass(frozen=True)
class FlipLR(PixelOp):
    """Mirror the image left to right with probability p."""

    name = "flip_lr"
    random = True
    p: Probability = 0.5

    def draw(self, height: int, width: int, rng: np.random.Generator) -> Drawn:
        return (float(rng.random() < self.p),)

    def apply(self, image: Pixels, drawn: Drawn) -> Pixels:
        return image[:, ::-1] if drawn[0] else image  # (H, W, 3)


@dataclass(frozen=True)
class RandomErasing(PixelOp):
    """Overwrite a random rectangle by random bytes, or by grey, with probability p (Zhong et al. 2017).

    Its share of the area is uniform in `area`, the logarithm of its aspect ratio h / w in `aspect`, its place is
    uniform; after 10 rectangles that do not fit, nothing is erased.
    """

    name = "random_erasing"
    random = True
    p: Probability = 0.25
    area: Shares = (0.02, 0.33)
    aspect: Ratios = (0.3, 3.3)
    fill: Annotated[str, "noise", "grey"] = "noise"

    def __call__(self, image: Pixels, rng: np.random.Generator | None) -> Pixels:
        assert rng is not None
        top, left, h, w = self.draw(image.shape[0], image.shape[1], rng)
        if not h:
            return image
        erased = image.copy()
        filling = rng.integers(256, size=(h, w, 3), dtype=np.uint8) if self.fill == "noise" else GREY
        erased[top : top + h, left : left + w] = filling
        return erased

    def draw(self, height: int, width: int, rng: np.random.Generator) -> Box:
        """Draw the rectangle; its height is 0 where nothing is erased."""
        if rng.random() < self.p:
            for _ in range(10):
                area = height * width * rng.uniform(*self.area)
                ratio = math.exp(rng.uniform(math.log(self.aspect[0]), math.log(self.aspect[1])))
                h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
                if 0 < h <= height and 0 < w <= width:
                    return _place(height, width, h, w, rng)
        return 0, 0, 0, 0


def _place(height: int, width: int, h: int, w: int, rng: np.random.Generator) -> Box:
    """Draw the place of an h x w rectangle in height x width."""
    return int(rng.integers(height - h, endpoint=True)), int(rng.integers(width - w, endpoint=True)), h, w


def draw_mixup(p: float, rng: np.random.Generator) -> float:
    """Draw the share max(l, 1 - l) of each example in itself, with l from Beta(p, p) (big_vision)."""
    share = float(rng.beta(p, p)) if p > 0 else 1.0
    return max(share, 1 - share)


def draw_cutmix(image_size: tuple[int, int], p: float, rng: np.random.Generator) -> tuple[float, Box]:
    """Draw a rectangle of the share 1 - l, l from Beta(p, p), cut off at the image border (Yun et al. 2019).

    Return the share of each example in itself, and the rectangle that shows its partner.
    """
    height, width = image_size
    side = math.sqrt(1 - rng.beta(p, p)) if p > 0 else 0.0
    h, w = round(height * side), round(width * side)
    top, left = int(rng.integers(height)) - h // 2, int(rng.integers(width)) - w // 2
    bottom, right = min(top + h, height), min(left + w, width)
    top, left = max(top, 0), max(left, 0)
    return 1 - (bottom - top) * (right - left) / (height * width), (top, left, bottom - top, right - left)


def mixup(x: Tensor, weight: Tensor) -> Tensor:
    """Return weight * x + (1 - weight) * partner, row by row: images, or the targets of either mixing."""
    weight = weight.to(x.dtype).reshape(-1, *(1 for _ in x.shape[1:]))  # (B, 1, ..., 1)
    return weight * x[: len(weight)] + (1 - weight) * partners(x, len(weight))


def cutmix(x: Tensor, box: Tensor) -> Tensor:
    """Put the partner's pixels into the box (B, 4) of each image of x (B, C, H, W)."""
    return torch.where(inside(box, x), partners(x, len(box)), x[: len(box)])


def partners(x: Tensor, b: int) -> Tensor:
    """Return the partners of the first b rows of x: the row before; for the first, the last, which may be row b."""
    return x.roll(1, 0)[:b]
