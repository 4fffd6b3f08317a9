"""RandAugment as AugReg used it: the 16 ops of big_vision's autoaugment, byte for byte.

A random pixel op of a preprocessing line (see augment.py). Cubuk et al. 2019; the op set, the scale of the
magnitudes and the grey that fills what a move uncovers are those of big_vision's autoaugment. A layer draws one
op and, where the op has a direction, its sign. AugReg uses magnitudes 0, 10, 15 and 20. What is drawn can also be
carried out on a device, a batch at a time (on_device.py).

The arithmetic is TensorFlow's too: single precision, each operation rounded, and fractions of a level cut off. A
moved pixel comes from the nearest one, halves away from zero, and coordinates are those of pixels, not of their
centres. The ops are named after Pillow's, which round differently.

Oddities of the published code are kept, since its weights were trained with them: the threshold of solarize and the
shift of posterize are bytes, and wrap around. So solarize inverts the whole image at magnitudes 10, 20 and 30, and at
15 every value of at least 128; posterize leaves one bit at 0, all at 20, and one again from 22.5 on. Contrast
blends with the level (number of pixels) / 256, which was meant to be the mean.

Shifts and cutouts are in pixels, for images of 224 or more: at magnitude 10 a shift leaves nothing of an image of 64,
and a cutout leaves a quarter on average. `reach` is a factor for both: for such images 0.29 = 64 / 224.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitrail.data.ops.on_device import DISTORTIONS, GREY
from vitrail.data.ops.pixel_ops import Drawn, PixelOp
from vitrail.data.ops.resize import Pixels

Bytes: TypeAlias = NDArray[np.uint8]  # an image (H, W, 3), or a table of values (256,)

MOVES = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


@dataclass(frozen=True)
class RandAugment(PixelOp):
    """`layers` distortions in a row, each drawn from DISTORTIONS, all of the same magnitude."""

    name = "randaugment"
    random = True
    layers: Annotated[int, 1, 16]
    magnitude: Annotated[float, 0.0, 30.0]
    reach: Annotated[float, 0.0, 100.0] = 1.0

    def draw(self, height: int, width: int, rng: np.random.Generator) -> Drawn:
        """Draw all that is random about one image: per layer, the number of its distortion in DISTORTIONS, its
        strength with its sign, and the pixel (x, y) that a cutout covers; 0 where a distortion has no such thing.
        """
        row: list[float] = []
        for _ in range(self.layers):
            number, strength, x, y = int(rng.integers(len(DISTORTIONS))), self.magnitude / 10, 0, 0
            if DISTORTIONS[number] in MOVES:
                strength *= (-1, 1)[rng.integers(2)]
            elif DISTORTIONS[number] == "cutout":
                x, y = int(rng.integers(width)), int(rng.integers(height))
            row += (number, strength, x, y)
        return tuple(row)  # layers * 4

    def apply(self, image: Pixels, drawn: Drawn) -> Pixels:
        assert image.dtype == np.uint8
        picture: Bytes = image.view(np.uint8)
        for number, strength, x, y in np.reshape(drawn, (-1, 4)).tolist():
            picture = distorted(picture, DISTORTIONS[int(number)], strength, int(x), int(y), self.reach)
        return picture


def distorted(image: Bytes, how: str, strength: float, x: int = 0, y: int = 0, reach: float = 1.0) -> Bytes:
    """Return the image, bytes (H, W, 3), after that one of DISTORTIONS; strength 1 is magnitude 10."""
    height, width, _ = image.shape
    v, factor = np.arange(256, dtype=np.uint8), strength * 1.8 + 0.1
    match how:
        case "autocontrast" | "equalize":
            table = _stretched if how == "autocontrast" else _equalized
            channels = [table(np.bincount(c.ravel(), minlength=256))[c] for c in np.moveaxis(image, 2, 0)]
            return np.stack(channels, axis=-1)  # (H, W, 3)
        case "invert":
            return 255 - image
        case "posterize":
            lost_bits = np.uint8(min((8 - int(strength * 4)) % 256, 7))
            return (v >> lost_bits << lost_bits)[image]
        case "solarize":
            return np.where(v < int(strength * 256) % 256, v, 255 - v)[image]
        case "solarize_add":
            added = np.minimum(v + np.int64(strength * 110), 255)
            return np.where(v < 128, added, v).astype(np.uint8)[image]
        case "color":
            # Grey by TensorFlow's weights, and by its way to fractions and back.
            shares = image * np.float32(1 / 255) * np.array([0.2989, 0.587, 0.114], np.float32)  # (H, W, 3)
            share = shares[..., 0] + shares[..., 1] + shares[..., 2]
            grey = (share * np.float32(255.5)).astype(np.uint8)[..., None]  # (H, W, 1)
            return _blended(grey, image, factor)
        case "contrast":
            return _blended(np.uint8(min(height * width // 256, 255)), v, factor)[image]
        case "brightness":
            return _blended(np.uint8(0), v, factor)[image]
        case "sharpness":
            return _blended(_smooth(image), image, factor)
        case "cutout":  # a grey square around the pixel (x, y), cut off at the border
            side, covered = int(strength * 40 * reach), image.copy()
            covered[max(y - side, 0) : y + side, max(x - side, 0) : x + side] = GREY
            return covered
        case _:
            return _moved(image, how, strength, reach)


def _stretched(counts: NDArray[np.int64]) -> Bytes:
    """Stretch the darkest to the lightest value to 0 ... 255."""
    v = np.arange(256, dtype=np.float32)
    low, high = v[counts > 0][[0, -1]]
    if low == high:
        return v.astype(np.uint8)
    scale = np.float32(255) / (high - low)
    return (v * scale - low * scale).clip(0, 255).astype(np.uint8)


def _equalized(counts: NDArray[np.int64]) -> Bytes:
    """Map each value by how many pixels are below it; an image of few pixels besides its lightest stays as it is."""
    step = (counts.sum() - counts[counts > 0][-1]) // 255
    if step == 0:
        return np.arange(256, dtype=np.uint8)
    below = counts.cumsum() - counts
    return ((below + step // 2) // step).clip(0, 255).astype(np.uint8)


def _blended(plainer: Bytes | np.uint8, image: Bytes, factor: float) -> Bytes:
    """Blend; `factor` is the image's own share, and above 1 exaggerates its difference from the plainer one."""
    plain = np.float32(plainer)
    return (plain + np.float32(factor) * (image - plain)).clip(0, 255).astype(np.uint8)


def _smooth(image: Bytes) -> Bytes:
    """Average nine pixels, the middle one five times; the border stays as it is."""
    height, width, _ = image.shape
    smooth = image.copy()
    if height < 3 or width < 3:
        return smooth
    total = np.zeros((height - 2, width - 2, 3), np.float32)
    for top, left in np.ndindex(3, 3):
        weight = np.float32(5 if top == left == 1 else 1) / np.float32(13)
        part = image[top : height - 2 + top, left : width - 2 + left]
        # A product and a sum that are rounded once, as processors fuse them: exact in double precision.
        np.add(np.multiply(weight, part, dtype=np.float64), total, out=total, casting="same_kind")
    smooth[1:-1, 1:-1] = total.astype(np.uint8)
    return smooth


def _moved(image: Bytes, how: str, strength: float, reach: float) -> Bytes:
    """Take for each pixel the nearest one to where it comes from, grey where that is outside."""
    height, width, _ = image.shape
    shear, shift = 0.3 * strength, 100 * strength * reach
    turn = np.float32(30 * strength) * np.float32(math.pi / 180)
    cos, sin = np.float32(math.cos(turn)), np.float32(math.sin(turn))
    right, bottom = np.float32(width - 1), np.float32(height - 1)
    # So that the centre stays where it is.
    to_right = (right - (cos * right - sin * bottom)) / 2
    to_bottom = (bottom - (sin * right + cos * bottom)) / 2
    # The output pixel (x, y) comes from (a x + b y + c, d x + e y + f).
    source: dict[str, tuple[float | np.float32, ...]] = {
        "rotate": (cos, -sin, to_right, sin, cos, to_bottom),
        "shear_x": (1, shear, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, shear, 1, 0),
        "translate_x": (1, 0, shift, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, shift),
    }
    a, b, c, d, e, f = np.array(source[how], np.float32)
    x, y = np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)[:, None]
    from_x, from_y = a * x + b * y + c, d * x + e * y + f  # (H, W)
    inside = (from_x > -0.5) & (from_x < width - 0.5) & (from_y > -0.5) & (from_y < height - 0.5)
    # What is inside is rounded by adding a half, exactly, and cutting off.
    column, row = (np.add(at, 0.5, dtype=np.float64).astype(np.int64) for at in (from_x, from_y))
    moved = image.reshape(-1, 3).take(row * width + column, axis=0, mode="clip")  # (H, W, 3)
    moved[~inside] = GREY
    return moved
