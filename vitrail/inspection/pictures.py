"""Arrays -> pictures, uint8 (H, W, 3): tiles, heat maps, light on an image. Made with numpy and Pillow."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageFilter

from vitrail.data.ops.resize import resize

# From nothing to all: dark blue, violet, red, yellow, each step brighter than the one before.
SCALE = np.array(
    [
        [8, 12, 38],
        [58, 24, 106],
        [126, 36, 116],
        [190, 54, 92],
        [236, 98, 56],
        [250, 165, 40],
        [252, 240, 150],
    ],
    np.float64,
)
PAPER = 255
GAP = 2  # pixels between tiles


def heat(values: np.ndarray) -> np.ndarray:
    """Return colours (..., H, W, 3) of values (..., H, W) in [0, 1]."""
    place = np.clip(values, 0, 1) * (len(SCALE) - 1)
    low = np.minimum(place.astype(int), len(SCALE) - 2)
    share = (place - low)[..., None]
    return np.round(SCALE[low] * (1 - share) + SCALE[low + 1] * share).astype(np.uint8)  # (..., H, W, 3)


def tiled(pictures: np.ndarray, side: int) -> np.ndarray:
    """Put pictures (rows, columns, h, w, 3) on one page, each enlarged by a whole number to about `side`."""
    rows, columns, h, w, _ = pictures.shape
    by = max(1, round(side / max(h, w)))
    large = pictures.repeat(by, axis=2).repeat(by, axis=3)  # (rows, columns, h*by, w*by, 3)
    large = np.pad(large, ((0, 0), (0, 0), (0, GAP), (0, GAP), (0, 0)), constant_values=PAPER)
    page = large.transpose(0, 2, 1, 3, 4).reshape(rows * (h * by + GAP), columns * (w * by + GAP), 3)
    return page[:-GAP, :-GAP]  # (height, width, 3)


def lit(image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Draw an image (H, W, 3) as bright as a map (rows, columns): w / max, enlarged, blurred by a patch, then spread
    over 0 to 1."""
    H, W = image.shape[:2]
    mask = Image.fromarray((weights / max(float(weights.max()), 1e-12)).astype(np.float32))
    light = spread(np.asarray(mask.resize((W, H), Image.Resampling.LANCZOS)), (0, 1))  # (H, W)
    # Pillow blurs bytes only: spread before, so that all 256 steps are used, and after.
    blurred = Image.fromarray(to_bytes(light)).filter(ImageFilter.GaussianBlur(H / weights.shape[0]))
    light = spread(np.asarray(blurred, np.float64), (0, 1))
    return np.round(image * light[..., None]).astype(np.uint8)  # (H, W, 3)


def heated(
    image: np.ndarray, values: np.ndarray, size: int, full: float, strength: float = 0.6
) -> np.ndarray:
    """Draw a map (rows, columns) in colours over a grey image (H, W, 3), from 0 to `full`; more has the last colour.

    `size`: pixels of a side of a cell; the last ones may reach over the edge, and are cut there.
    """
    H, W = image.shape[:2]
    large = (values / full).repeat(size, axis=0).repeat(size, axis=1)[:H, :W]  # (H, W)
    grey = image.mean(axis=2, keepdims=True)  # (H, W, 1)
    return np.round((1 - strength) * grey + strength * heat(large)).astype(np.uint8)  # (H, W, 3)


def gridded(image: np.ndarray, stride: int) -> np.ndarray:
    """Draw an image (H, W, 3), enlarged if it is small, cut into its patches by white lines."""
    H, W = image.shape[:2]
    by = max(1, round(224 / max(H, W)))
    large = image.repeat(by, axis=0).repeat(by, axis=1)  # (H*by, W*by, 3)
    large[stride * by :: stride * by] = PAPER
    large[:, stride * by :: stride * by] = PAPER
    return large


def shrink(image: np.ndarray, side: int) -> np.ndarray:
    """Shrink an image so that no side is longer than `side`."""
    H, W = image.shape[:2]
    by = min(1.0, side / max(H, W))
    size = max(1, round(H * by)), max(1, round(W * by))
    return np.asarray(resize(image, size, "pillow_bilinear"), np.uint8)


def spread(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Spread values from the least to the greatest over 0 to 1; all alike: 0."""
    low, high = values.min(axis=axes, keepdims=True), values.max(axis=axes, keepdims=True)
    return (values - low) / np.maximum(high - low, 1e-12)


def to_bytes(values: np.ndarray) -> np.ndarray:
    """Return 0 to 1 as bytes, 0 to 255."""
    return np.round(255 * np.clip(values, 0, 1)).astype(np.uint8)


def evenly(n: int, most: int) -> np.ndarray:
    """Return at most `most` of n places, evenly spaced."""
    return np.arange(n) if n <= most else np.linspace(0, n - 1, most).round().astype(np.int64)
