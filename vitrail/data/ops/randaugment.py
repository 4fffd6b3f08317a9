"""RandAugment as AugReg trained with it: the 16 ops of the TensorFlow AutoAugment code, by Pillow.

A random pixel op of a preprocessing line (see augment.py). Cubuk et al. 2019; the op set, the scale of the
magnitudes and the grey that fills what a move uncovers are those of big_vision's autoaugment. A layer draws one
op and, where the op has a direction, its sign. AugReg uses magnitudes 0, 10, 15 and 20. What is drawn can also be
carried out on a device, a batch at a time (batched_randaugment.py).

Kept from the published code, since the published weights were trained so: solarize and posterize get weaker as
the magnitude grows, and contrast pulls toward the level (number of pixels) / 256, which was meant to be the mean.
Shifts and cutouts are in pixels, made for images of 224 and more: at magnitude 10 a shift leaves nothing of an image
of 64, a cutout a quarter on average. `reach` is a factor of both, 0.29 = 64 / 224 there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from vitrail.data.ops import batched_randaugment
from vitrail.data.ops.arguments import check_numbers, check_whole
from vitrail.data.ops.batched_randaugment import DISTORTIONS, GREY
from vitrail.data.ops.pixel_ops import PixelOp, bytes_only
from vitrail.data.ops.resize import Pixels

MOVES = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


@dataclass(frozen=True)
class RandAugment(PixelOp):
    """`layers` distortions in a row, each drawn from DISTORTIONS, all of the same magnitude."""

    name = "randaugment"
    random = True
    layers: int
    magnitude: float
    reach: float = 1.0

    def __post_init__(self) -> None:
        check_whole(self.name, most=16, layers=self.layers)
        check_numbers(self.name, 0, 30, magnitude=self.magnitude)
        check_numbers(self.name, 0, 100, reach=self.reach)

    def draw(self, height: int, width: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """All that is random about one image: per layer, the number of its distortion in DISTORTIONS, its
        strength with its sign, and the pixel (x, y) that a cutout covers; 0 where a distortion has no such thing.
        """
        row: list[float] = []
        for _ in range(self.layers):
            number = int(rng.integers(len(DISTORTIONS)))
            row += (number, *drawn(DISTORTIONS[number], self.magnitude / 10, height, width, rng))
        return np.array(row)  # (layers * 4,)

    def __call__(self, image: Pixels, rng: np.random.Generator | None) -> Pixels:
        assert rng is not None
        assert image.dtype == np.uint8
        height, width, _ = image.shape
        picture = Image.fromarray(image)
        for number, strength, x, y in self.draw(height, width, rng).reshape(-1, 4):  # (layers, 4)
            picture = distorted(picture, DISTORTIONS[int(number)], strength, int(x), int(y), self.reach)
        return np.array(picture)  # (H, W, 3)

    @property
    def batchable(self) -> bool:
        return True

    def batched(self, x: Tensor, drawn: Tensor) -> Tensor:
        return batched_randaugment.distorted(x, drawn, self.reach)

    def kind(self, given: str) -> str:
        return bytes_only(self.name, given)


def drawn(
    how: str, strength: float, height: int, width: int, rng: np.random.Generator
) -> tuple[float, int, int]:
    """(strength, x, y): moves go one way or the other, and a cutout has a place."""
    if how in MOVES:
        return strength * (-1, 1)[rng.integers(2)], 0, 0
    if how == "cutout":
        return strength, int(rng.integers(width)), int(rng.integers(height))
    return strength, 0, 0


def distorted(
    picture: Image.Image, how: str, strength: float, x: int = 0, y: int = 0, reach: float = 1.0
) -> Image.Image:
    """The RGB picture after that one of DISTORTIONS; strength 1 is magnitude 10."""
    match how:
        case "autocontrast":
            return ImageOps.autocontrast(picture)
        case "equalize":
            return ImageOps.equalize(picture)
        case "invert":
            return ImageOps.invert(picture)
        case "posterize":
            return ImageOps.posterize(picture, min(max(int(strength * 4), 1), 8))
        case "solarize":
            return ImageOps.solarize(picture, int(strength * 256))
        case "solarize_add":
            return _solarize_add(picture, int(strength * 110))
        case "color" | "contrast" | "brightness" | "sharpness":
            return _enhanced(picture, how, strength * 1.8 + 0.1)
        case "cutout":
            return _cutout(picture, int(strength * 40 * reach), x, y)
        case _:
            return _moved(picture, how, strength, reach)


def _enhanced(picture: Image.Image, how: str, factor: float) -> Image.Image:
    """Blended with a plainer picture; `factor` is the picture's own share, and above 1 exaggerates it."""
    match how:
        case "color":
            return ImageEnhance.Color(picture).enhance(factor)
        case "brightness":
            return ImageEnhance.Brightness(picture).enhance(factor)
        case "sharpness":
            return ImageEnhance.Sharpness(picture).enhance(factor)
        case _:
            level = min(picture.width * picture.height // 256, 255)
            return Image.blend(Image.new("RGB", picture.size, (level, level, level)), picture, factor)


def _solarize_add(picture: Image.Image, addition: int) -> Image.Image:
    """The darker half of the values, brightened."""
    return picture.point([min(v + addition, 255) if v < 128 else v for v in range(256)] * 3)


def _cutout(picture: Image.Image, reach: int, x: int, y: int) -> Image.Image:
    """A grey square of side 2 * reach around the pixel (x, y), cut off at the border."""
    left, top = max(x - reach, 0), max(y - reach, 0)
    right, bottom = min(x + reach, picture.width), min(y + reach, picture.height)
    covered = picture.copy()
    covered.paste((GREY, GREY, GREY), (left, top, right, bottom))
    return covered


def _moved(picture: Image.Image, how: str, strength: float, reach: float) -> Image.Image:
    """Rotated about the centre, sheared from the top left corner, or shifted; nearest pixels."""
    if how == "rotate":
        return picture.rotate(30 * strength, Image.Resampling.NEAREST, fillcolor=(GREY, GREY, GREY))
    shear, shift = 0.3 * strength, math.floor(100 * strength * reach + 0.5)
    source = {  # output (x, y) comes from (a x + b y + c, d x + e y + f)
        "shear_x": (1, shear, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, shear, 1, 0),
        "translate_x": (1, 0, shift, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, shift),
    }[how]
    affine, nearest = Image.Transform.AFFINE, Image.Resampling.NEAREST
    return picture.transform(picture.size, affine, source, nearest, fillcolor=(GREY, GREY, GREY))
