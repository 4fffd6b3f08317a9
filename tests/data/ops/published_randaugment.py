"""The published arithmetic of RandAugment, written out in numpy; what TensorFlow made of one image shows that it is.

After big_vision's pp/autoaugment.py and the TensorFlow ops that it calls: `level` is the magnitude, `sign` what its
coin decided. The published code, run in TensorFlow 2.14 (with tensorflow_addons) and 2.21 as tf.data runs it (a
graph, on x86-64), has the same bytes in 29,808 of 29,808 cases: 84 images of 14 sizes, 16 ops, up to 20 levels.
"""

from __future__ import annotations

import math

import numpy as np

f32 = np.float32
LEVELS = (0, 0.5, 1.25, 10, 15, 20, 25)
# The first digits of SHA-256 over the bytes that TensorFlow made of `sample()` at LEVELS, with sign -1 and a cutout
# around column 3, row 11.
DIGESTS = {
    "autocontrast": "fe5b8e32 fe5b8e32 fe5b8e32 fe5b8e32 fe5b8e32 fe5b8e32 fe5b8e32",
    "equalize": "aa592c53 aa592c53 aa592c53 aa592c53 aa592c53 aa592c53 aa592c53",
    "invert": "8c2bcc54 8c2bcc54 8c2bcc54 8c2bcc54 8c2bcc54 8c2bcc54 8c2bcc54",
    "rotate": "27af88f5 27af88f5 f01ac3dc 3ad2ca40 d53e61cd 49c96b9e 0ca3bfac",
    "posterize": "62aa026a 62aa026a 62aa026a d8237388 be4ac06b 27af88f5 62aa026a",
    "solarize": "8c2bcc54 6cc176b0 bd26ab08 8c2bcc54 1dfdd0b9 8c2bcc54 1dfdd0b9",
    "color": "1f45da9e eaea8551 6b83562d 60c581c2 908bc601 fa300081 50279268",
    "contrast": "4fe94388 6b15973a e38afd48 f521932d b813afaa c3c032aa 9f6a68ec",
    "brightness": "1f82a018 94520e22 2ba4f405 27177756 7ffafa6d 23fd8ca9 58386803",
    "sharpness": "546030c8 e6b0c3cf e400dcd4 3bb5e83d a505d0a9 eaa4bf90 d2bd2167",
    "shear_x": "27af88f5 27af88f5 d6e40cee 1710b41a d8f12c6a 1fc45b8b 29816d4f",
    "shear_y": "27af88f5 27af88f5 edc72db8 50c39c9f 1047bbaa aebe3349 1c825a22",
    "translate_x": "27af88f5 38211fe8 70cce5b3 b25a7e46 b25a7e46 b25a7e46 b25a7e46",
    "translate_y": "27af88f5 796447f7 e652a48f b25a7e46 b25a7e46 b25a7e46 b25a7e46",
    "cutout": "27af88f5 d5b6cbf7 754bcb37 b25a7e46 b25a7e46 b25a7e46 b25a7e46",
    "solarize_add": "27af88f5 5f88f879 bcf5257f 8d8c2a19 71e8b79d 7f389323 58fe4fc7",
}


def sample() -> np.ndarray:
    row, column, channel = np.indices((33, 20, 3))
    return ((row * row * 3 + column * 17 + row * column * channel + 60 * channel) % 231).astype(np.uint8)


def published(
    name: str, image: np.ndarray, level: float, sign: int = 1, x: int = 0, y: int = 0
) -> np.ndarray:
    share = level / 10
    factor = share * 1.8 + 0.1
    height, width, _ = image.shape
    match name:
        case "autocontrast":
            return np.stack([autocontrast(image[..., c]) for c in range(3)], -1)
        case "equalize":
            return np.stack([equalize(image[..., c]) for c in range(3)], -1)
        case "invert":
            return 255 - image
        case "posterize":
            shift = as_byte(8 - int(share * 4))
            shift = min(shift, 7)  # TensorFlow shifts by no more than a type has bits, less one
            return np.left_shift(np.right_shift(image, shift), shift)
        case "solarize":
            return np.where(image < as_byte(int(share * 256)), image, 255 - image)
        case "solarize_add":
            brighter = np.clip(image.astype(np.int64) + int(share * 110), 0, 255).astype(np.uint8)
            return np.where(image < 128, brighter, image)
        case "color":
            return blend(np.repeat(grayscale(image), 3, axis=-1), image, factor)
        case "contrast":
            histogram = np.bincount(grayscale(image).ravel(), minlength=256)
            mean = f32(histogram.sum()) / f32(256)  # of the counts
            return blend(np.full_like(image, np.clip(mean, 0, 255)), image, factor)
        case "brightness":
            return blend(np.zeros_like(image), image, factor)
        case "sharpness":
            return blend(smooth(image), image, factor)
        case "cutout":
            pad = int(share * 40)
            rows, columns = np.indices((height, width))
            kept = (rows < y - pad) | (rows >= y + pad) | (columns < x - pad) | (columns >= x + pad)
            return np.where(kept[..., None], image, np.uint8(128))
        case "shear_x":
            return transform(image, 1, f32(sign * share * 0.3), 0, 0, 1, 0)
        case "shear_y":
            return transform(image, 1, 0, 0, f32(sign * share * 0.3), 1, 0)
        case "translate_x":
            return transform(image, 1, 0, f32(sign * share * 100), 0, 1, 0)
        case "translate_y":
            return transform(image, 1, 0, 0, 0, 1, f32(sign * share * 100))
        case "rotate":
            angle = f32(sign * share * 30) * f32(math.pi / 180)
            cos, sin, w, h = f32(math.cos(angle)), f32(math.sin(angle)), f32(width - 1), f32(height - 1)
            to_right = (w - (cos * w - sin * h)) / f32(2)
            to_bottom = (h - (sin * w + cos * h)) / f32(2)
            return transform(image, cos, -sin, to_right, sin, cos, to_bottom)
    raise KeyError(name)


def as_byte(number: int) -> int:
    """What becomes of a Python number beside a tensor of uint8."""
    return number % 256


def blend(degenerate: np.ndarray, image: np.ndarray, factor: float) -> np.ndarray:
    if factor == 1:
        return image
    one, other = degenerate.astype(f32), image.astype(f32)
    return np.clip(one + f32(factor) * (other - one), 0, 255).astype(np.uint8)


def grayscale(image: np.ndarray) -> np.ndarray:
    """tf.image.rgb_to_grayscale, which goes by fractions: (H, W, 1)."""
    fraction = image.astype(f32) * f32(1 / 255)
    red, green, blue = (fraction[..., c] * f32(weight) for c, weight in enumerate((0.2989, 0.587, 0.114)))
    return ((red + green + blue) * f32(255.5)).astype(np.uint8)[..., None]


def smooth(image: np.ndarray) -> np.ndarray:
    """A convolution without padding, in the order of the taps, with fused multiply-adds; then the border is put back.
    TensorFlow has none for images of less than three pixels: they stay as they are."""
    height, width, _ = image.shape
    result = image.copy()
    for row in range(1, height - 1):
        for column in range(1, width - 1):
            total = np.zeros(3, f32)
            for down in (-1, 0, 1):
                for right in (-1, 0, 1):
                    weight = float(f32(5 if down == right == 0 else 1) / f32(13))
                    exact = weight * image[row + down, column + right].astype(np.float64) + total
                    total = exact.astype(f32)
            result[row, column] = total.astype(np.uint8)
    return result


def autocontrast(channel: np.ndarray) -> np.ndarray:
    low, high = f32(channel.min()), f32(channel.max())
    if high == low:
        return channel
    scale = f32(255) / (high - low)
    offset = -low * scale
    return np.clip(channel.astype(f32) * scale + offset, 0, 255).astype(np.uint8)


def equalize(channel: np.ndarray) -> np.ndarray:
    histogram = np.bincount(channel.ravel(), minlength=256)
    step = (histogram.sum() - histogram[channel.max()]) // 255
    if step == 0:
        return channel
    shifted = (np.cumsum(histogram) + step // 2) // step
    return np.clip([0, *shifted[:-1]], 0, 255).astype(np.uint8)[channel]


def transform(image: np.ndarray, *projection: float) -> np.ndarray:
    """TensorFlow's projective transform to the nearest pixel; what comes from outside is grey."""
    height, width, _ = image.shape
    a, b, c, d, e, f = map(f32, projection)
    result = np.full_like(image, 128)
    for row in range(height):
        column = np.arange(width, dtype=f32)
        source_x = half_away(a * column + b * f32(row) + c)
        source_y = half_away(d * column + e * f32(row) + f)
        inside = (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)
        result[row, inside] = image[source_y[inside], source_x[inside]]
    return result


def half_away(value: np.ndarray) -> np.ndarray:
    """C's round()."""
    wide = value.astype(np.float64)
    return (np.sign(wide) * np.floor(np.abs(wide) + 0.5)).astype(np.int64)
