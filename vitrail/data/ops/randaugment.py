"""RandAugment as AugReg trained with it: the 16 ops of the TensorFlow AutoAugment code, by Pillow.

A random pixel op of a preprocessing line (see augment.py). Cubuk et al. 2019; the op set, the scale of the
magnitudes and the grey that fills what a move uncovers are those of big_vision's autoaugment. A layer draws one
op and, where the op has a direction, its sign. AugReg uses magnitudes 0, 10, 15 and 20.

Kept from the published code, since the published weights were trained so: solarize and posterize get weaker as
the magnitude grows, and contrast pulls toward the level (number of pixels) / 256, which was meant to be the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from vitrail.data.ops.arguments import check_numbers, check_whole
from vitrail.data.ops.pixel_ops import PixelOp, bytes_only
from vitrail.data.ops.resize import Pixels

DISTORTIONS = (
    "autocontrast", "equalize", "invert", "rotate", "posterize", "solarize", "color", "contrast", "brightness",
    "sharpness", "shear_x", "shear_y", "translate_x", "translate_y", "cutout", "solarize_add",
)  # fmt: skip
GREY = (128, 128, 128)


@dataclass(frozen=True)
class RandAugment(PixelOp):
    """`layers` distortions in a row, each drawn from DISTORTIONS, all of the same magnitude."""

    name = "randaugment"
    random = True
    layers: int
    magnitude: float

    def __post_init__(self) -> None:
        check_whole(self.name, most=16, layers=self.layers)
        check_numbers(self.name, 0, 30, magnitude=self.magnitude)

    def __call__(self, image: Pixels, rng: np.random.Generator | None) -> Pixels:
        assert rng is not None
        assert image.dtype == np.uint8
        picture = Image.fromarray(image)
        for _ in range(self.layers):
            picture = distorted(
                picture, DISTORTIONS[rng.integers(len(DISTORTIONS))], self.magnitude / 10, rng
            )
        return np.array(picture)  # (H, W, 3)

    def kind(self, given: str) -> str:
        return bytes_only(self.name, given)


def distorted(picture: Image.Image, how: str, strength: float, rng: np.random.Generator) -> Image.Image:
    """The RGB picture after one of DISTORTIONS; strength 1 is magnitude 10."""
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
            return _cutout(picture, int(strength * 40), rng)
        case _:
            return _moved(picture, how, strength * float(rng.choice((-1, 1))))


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


def _cutout(picture: Image.Image, reach: int, rng: np.random.Generator) -> Image.Image:
    """A grey square of side 2 * reach around a random pixel, cut off at the border."""
    x, y = int(rng.integers(picture.width)), int(rng.integers(picture.height))
    left, top = max(x - reach, 0), max(y - reach, 0)
    right, bottom = min(x + reach, picture.width), min(y + reach, picture.height)
    covered = picture.copy()
    covered.paste(GREY, (left, top, right, bottom))
    return covered


def _moved(picture: Image.Image, how: str, strength: float) -> Image.Image:
    """Rotated about the centre, sheared from the top left corner, or shifted; nearest pixels."""
    if how == "rotate":
        return picture.rotate(30 * strength, Image.Resampling.NEAREST, fillcolor=GREY)
    shear, shift = 0.3 * strength, 100 * strength
    source = {  # output (x, y) comes from (a x + b y + c, d x + e y + f)
        "shear_x": (1, shear, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, shear, 1, 0),
        "translate_x": (1, 0, shift, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, shift),
    }[how]
    affine, nearest = Image.Transform.AFFINE, Image.Resampling.NEAREST
    return picture.transform(picture.size, affine, source, nearest, fillcolor=GREY)
