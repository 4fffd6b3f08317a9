"""Scores: `evaluator(model) -> Iterator[Score]` is the shape of every evaluator; and how accuracies are written.

format_accuracy(0.783)          78.3%
format_accuracy(0.783, 400)     78.3% (74.0-82.0%, n = 400)      with the 95% interval of Wilson (1927)

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

Z = 1.959964  # of the normal distribution, for 95%


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


def wilson_interval(accuracy: float, n: int) -> tuple[float, float]:
    """Return the ends of the 95% confidence interval of an accuracy over n independent examples."""
    centre = accuracy + Z**2 / (2 * n)
    half = Z * math.sqrt(accuracy * (1 - accuracy) / n + Z**2 / (4 * n**2))
    scale = 1 + Z**2 / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def format_accuracy(accuracy: float | None, n: int | None = None) -> str:
    """Return an accuracy as text, with its interval if n is known; "-" for None."""
    if accuracy is None:
        return "-"
    if not n or not 0 <= accuracy <= 1:  # outside only in a file that somebody edited
        return f"{accuracy:.1%}"
    low, high = wilson_interval(accuracy, n)
    return f"{accuracy:.1%} ({100 * low:.1f}-{high:.1%}, n = {n:,})"


def score_label(name: str) -> str:
    """Return the name of a score for display: top-1 for top1."""
    return {"top1": "top-1", "top5": "top-5", "ece": "ECE"}.get(name, name)


def format_score(name: str, value: float | None, n: int | None = None) -> str:
    """Return an accuracy as 78.3%, with its interval if n is known, any other score as a number; "-" for None."""
    if value is None or name.endswith(("top1", "top5", "shot", "real", "linear", "knn")):
        return format_accuracy(value, n)
    return f"{value:.4f}"
