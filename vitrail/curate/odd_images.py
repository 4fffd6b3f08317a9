"""Odd images, by their pixels and by their features: blurred, dark, washed out, of odd sizes, unlike all others.

Each function returns {index: (score, reason)}; the score is 0 to 1, higher is worse. Blur, sizes and outliers are
judged beside the other images of the data set: what all of them have is no oddity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vitrail.curate.measures import Measures

DARK, BRIGHT = 0.25, 0.8  # 95% of the pixels are darker; 95% are brighter
BLURRED = (
    0.6  # a Gaussian blur of 1% of the longer side gives 0.55 to 0.85; sharp photographs have up to 0.53
)
UNUSUAL = 3.5  # robust standard deviations from the median
SMALL, LONG = 4.0, 3.0  # times smaller than the median side; times wider or higher than the median shape
APART, SHARE = (
    2.0,
    0.01,
)  # robust standard deviations of an outlier; of the images are listed as such, at most
LEAST = 20  # images that an oddity is judged beside
Odd = dict[int, tuple[float, str]]


def find_blurred(measures: Sequence[Measures | None]) -> Odd:
    """Find images without detail that are less sharp than the others."""
    blur = np.array([np.nan if one is None or one.blur is None else one.blur for one in measures])
    usual = max(BLURRED, unusual_from(blur))
    return {
        int(i): (
            float(blur[i]),
            f"It has little detail: blur {blur[i]:.2f} (median {np.nanmedian(blur):.2f})",
        )
        for i in np.flatnonzero(blur > usual)
    }


def find_dark(measures: Sequence[Measures | None]) -> Odd:
    return {
        i: (
            1 - one.brightest,
            f"It is dark: 95% of its pixels are below {one.brightest:.0%} of full brightness",
        )
        for i, one in enumerate(measures)
        if one is not None and one.brightest < DARK
    }


def find_bright(measures: Sequence[Measures | None]) -> Odd:
    return {
        i: (
            one.darkest,
            f"It is washed out: 95% of its pixels are above {one.darkest:.0%} of full brightness",
        )
        for i, one in enumerate(measures)
        if one is not None and one.darkest > BRIGHT
    }


def find_odd_sizes(sizes: np.ndarray) -> Odd:
    """Find images much smaller than the others, or of another shape; `sizes` (n, 2), 0 where unknown."""
    odd: Odd = {}
    known = np.flatnonzero(sizes.min(axis=1) > 0)
    if len(known) < LEAST:
        return odd
    height, width = sizes[known].T.astype(np.float64)
    short, shape = np.minimum(height, width), np.log(width / height)
    times_smaller = np.median(short) / short  # (m,)
    times_longer = np.exp(np.abs(shape - np.median(shape)))  # (m,)
    for at, i in enumerate(known.tolist()):
        size = f"It has {int(width[at])} x {int(height[at])} pixels"
        if times_smaller[at] >= SMALL:
            odd[i] = (
                float(1 - 1 / times_smaller[at]),
                f"{size}: its short side is {times_smaller[at]:.1f} times smaller than usual",
            )
        elif times_longer[at] >= LONG:
            odd[i] = (
                float(1 - 1 / times_longer[at]),
                f"{size}: its shape is {times_longer[at]:.1f} times longer than usual",
            )
    return odd


def find_outliers(similarity: np.ndarray) -> Odd:
    """Find the few images farthest from all others; `similarity` (n,): the mean cosine to the nearest, or NaN.

    Distances have no long tail: photographs of something else are among the farthest, hardly ever beyond them
    (docs/results/label_errors.md).
    """
    distance = 1 - similarity
    beyond = np.flatnonzero(distance > unusual_from(distance, APART))
    most = math.ceil(SHARE * len(similarity))
    return {
        int(i): (
            float(np.clip(distance[i], 0, 1)),
            f"It is among the least like all others: similarity {similarity[i]:.2f} to its nearest images "
            f"(median {np.nanmedian(similarity):.2f})",
        )
        for i in beyond[np.argsort(-distance[beyond], kind="stable")][:most]
    }


def unusual_from(values: np.ndarray, deviations: float = UNUSUAL) -> float:
    """Return the value above which one is unusual: the median and some deviations; infinity for few values."""
    known = values[~np.isnan(values)]
    if len(known) < LEAST:
        return np.inf
    median = np.median(known)
    return float(median + deviations * 1.4826 * np.median(np.abs(known - median)) + 1e-9)
