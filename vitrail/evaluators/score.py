"""Scores: `evaluator(model) -> Iterator[Score]` is the shape of every evaluator; and how accuracies are written.

format_accuracy(0.783)          78.3%
format_accuracy(0.783, 400)     78.3% (73.9-82.2%, n = 400)      with the 95% interval of Clopper and Pearson (1934)

The interval holds the true accuracy in at least 95% of the samples, whatever it is and however few the examples;
others are narrower, and hold it less often near 100% (docs/results/intervals.md).

An evaluator of a training run may also yield galleries, which the caller draws, and name its scores in `names`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

OUTSIDE = 0.025  # probability on each side of an interval of 95%
STEPS = 50  # halvings that find an end of an interval
LARGEST = 10_000  # steps of the continued fraction; it ends after about the square root of the examples


@dataclass(frozen=True)
class Score:
    """A number with its evidence."""

    name: str  # top1, loss, 5-shot, ...
    value: float
    n: int  # examples (or runs) that it stands on
    std: float | None = None  # over seeds, where there are several


@dataclass(frozen=True)
class Gallery:
    """Pictures of a few examples, to be drawn by the caller."""

    name: str
    rows: dict[str, np.ndarray]  # caption: uint8 (n, H, W, 3)


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean of some runs, and their sample standard deviation (n - 1), None if there is only one."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


Evaluator = Callable[["nn.Module"], "Iterator[Score | Gallery]"]


def accuracy_interval(accuracy: float, n: int) -> tuple[float, float]:
    """Return the ends of the 95% confidence interval of an accuracy over n independent examples.

    With k right answers they are the accuracies at which k or more, and k or fewer, would have probability 2.5%.
    """
    right = round(accuracy * n, 6)  # whole, but for a mean over seeds
    low = 0.0 if right == 0 else beta_quantile(OUTSIDE, right, n - right + 1)
    high = 1.0 if right == n else beta_quantile(1 - OUTSIDE, right + 1, n - right)
    return low, high


def beta_quantile(q: float, a: float, b: float) -> float:
    """Return x such that a number from Beta(a, b) is below it with probability q."""
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        x = (low + high) / 2
        low, high = (x, high) if beta_below(x, a, b) < q else (low, x)
    return (low + high) / 2


def beta_below(x: float, a: float, b: float) -> float:
    """Return the probability that a number from Beta(a, b) is below x, in (0, 1).

    By its continued fraction 1 / (1 + d_1 / (1 + d_2 / ...)) (Abramowitz and Stegun 26.5.8), by Lentz's method.
    """
    if x > (a + 1) / (a + b + 2):  # there the fraction of the other side is short
        return 1 - beta_below(1 - x, b, a)
    log_front = a * math.log(x) + b * math.log1p(-x) - math.log(a)
    log_front += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    tiny = 1e-300
    value = c = 1.0
    d = 0.0
    for i in range(1, LARGEST):
        m = i // 2
        over = -(a + m) * (a + b + m) / (a + 2 * m + 1) if i % 2 else m * (b - m) / (a + 2 * m - 1)
        step = over * x / (a + 2 * m)
        d = 1 / (1 + step * d or tiny)
        c = 1 + step / c or tiny
        value *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return math.exp(log_front) / value


def format_accuracy(accuracy: float | None, n: int | None = None) -> str:
    """Return an accuracy as text, with its interval if n is known; "-" for None."""
    if accuracy is None:
        return "-"
    if not n or not 0 <= accuracy <= 1:  # outside only in a file that somebody edited
        return f"{accuracy:.1%}"
    low, high = accuracy_interval(accuracy, n)
    return f"{accuracy:.1%} ({100 * low:.1f}-{high:.1%}, n = {n:,})"


def score_label(name: str) -> str:
    """Return the name of a score for display: top-1 for top1."""
    return {"top1": "top-1", "top5": "top-5", "ece": "ECE"}.get(name, name)


def format_score(name: str, value: float | None, n: int | None = None) -> str:
    """Return an accuracy as 78.3%, with its interval if n is known, any other score as a number; "-" for None."""
    if value is None or name.endswith(("top1", "top5", "shot", "real", "linear", "knn")):
        return format_accuracy(value, n)
    return f"{value:.4f}"
