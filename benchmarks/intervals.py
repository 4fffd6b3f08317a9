"""How often the interval of an accuracy holds the truth: ours beside four others.

    python -m benchmarks.intervals --data TINY_IMAGENET

The included model is evaluated on the validation split once, and each image's outcome is stored, right or wrong. For
a truth of 60%, 90% and 98%, as many outcomes as possible that are right in this share make a population. From each,
5,000 samples of 50, 200 and 1,000 images are drawn with replacement, and each sample gives an interval. A cell is the
share of intervals that hold the population's accuracy; in brackets its exact value, from the binomial distribution.
Without --data there are 10,000 outcomes of each kind.

`possible` says for each cell whether any rule that gives one interval for each number of right answers can hold the
truth in 94 to 97.5% of the samples: the numbers whose intervals hold it are a set, and no set may be so probable.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from vitrail.evaluators.score import OUTSIDE, accuracy_interval, beta_below, beta_quantile

DRAWS = 5000
SIZES, TRUTHS = (50, 200, 1000), (0.6, 0.9, 0.98)
WANTED = (0.94, 0.975)
Z = 1.959964  # of the normal distribution, for 95%
Interval = Callable[[int, int], tuple[float, float]]


def wilson(k: int, n: int) -> tuple[float, float]:
    a = k / n
    half = Z * math.sqrt(a * (1 - a) / n + Z**2 / (4 * n**2))
    return (a + Z**2 / (2 * n) - half) / (1 + Z**2 / n), (a + Z**2 / (2 * n) + half) / (1 + Z**2 / n)


def agresti_coull(k: int, n: int) -> tuple[float, float]:
    a, m = (k + Z**2 / 2) / (n + Z**2), n + Z**2
    half = Z * math.sqrt(a * (1 - a) / m)
    return a - half, a + half


def jeffreys(k: int, n: int) -> tuple[float, float]:
    low = beta_quantile(OUTSIDE, k + 0.5, n - k + 0.5) if k else 0.0
    return low, beta_quantile(1 - OUTSIDE, k + 0.5, n - k + 0.5) if k < n else 1.0


def mid_p(k: int, n: int) -> tuple[float, float]:
    """Clopper and Pearson's, with half of the probability of k itself."""

    def at_least(p: float) -> float:
        own, more = (beta_below(p, i, n - i + 1) if 0 < i <= n else float(i <= 0) for i in (k, k + 1))
        return (own + more) / 2

    return solve(at_least, OUTSIDE) if k else 0.0, solve(at_least, 1 - OUTSIDE) if k < n else 1.0


def solve(rising: Callable[[float], float], value: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        x = (low + high) / 2
        low, high = (x, high) if rising(x) < value else (low, x)
    return (low + high) / 2


METHODS: dict[str, Interval] = {
    "Clopper-Pearson (ours)": lambda k, n: accuracy_interval(k / n, n),
    "mid-P": mid_p,
    "Jeffreys": jeffreys,
    "Wilson": wilson,
    "Agresti-Coull": agresti_coull,
}


def probabilities(n: int, truth: float) -> np.ndarray:
    """Return the probability of each number of right answers, (n + 1,)."""
    each = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        + k * math.log(truth) + (n - k) * math.log1p(-truth)
        for k in range(n + 1)
    ]  # fmt: skip
    return np.exp(each)


def nearest_possible(n: int, truth: float) -> tuple[float, float]:
    """Return the probabilities of sets of outcomes that are nearest to WANTED from below and from above; of one
    inside, itself twice.

    Sums are looked for among the outcomes that matter; others together have less than 0.01%.
    """
    mass = np.sort(probabilities(n, truth))[::-1]
    sums = np.zeros(1)
    for m in mass[: int(np.searchsorted(np.cumsum(mass), 0.9999)) + 1][:20]:
        sums = np.concatenate([sums, sums + m])
    rest = 1 - sums.max()
    sums = np.sort(np.concatenate([sums, sums + rest]))
    inside = sums[(sums >= WANTED[0]) & (sums <= WANTED[1])]
    if len(inside):
        return float(inside[0]), float(inside[0])
    return next(
        (float(low), float(high)) for low, high in pairwise(sums) if low < WANTED[0] and high > WANTED[1]
    )


def population(outcomes: np.ndarray, truth: float) -> np.ndarray:
    """Return the largest part of the outcomes, bool (m,), that is right in a share of `truth`; m in hundreds."""
    right, wrong = int(outcomes.sum()), int((~outcomes).sum())
    m = int(min(right / truth, wrong / (1 - truth))) // 100 * 100
    return np.repeat([True, False], [round(m * truth), round(m * (1 - truth))])


def main(data: str | None = None, split: str = "validation") -> None:
    outcomes = np.repeat([True, False], 10_000)
    if data is not None:
        from vitrail.evaluators.accuracy import evaluate

        outcomes = evaluate("ti8-64", data, split=split).predictions.right
        print(f"{len(outcomes):,} outcomes of ti8-64 on {data}:{split}, {outcomes.mean():.1%} right")
    rng = np.random.default_rng(0)
    print(f"| images | truth | {' | '.join(METHODS)} | possible |")
    print("|---" * (3 + len(METHODS)) + "|")
    for n in SIZES:
        for wanted in TRUTHS:
            right = population(outcomes, wanted)
            truth = float(right.mean())
            draws = right[rng.integers(0, len(right), (DRAWS, n))].sum(axis=1)  # (DRAWS,)
            mass, cells = probabilities(n, truth), []
            for interval in METHODS.values():
                ends = [interval(k, n) for k in range(n + 1)]
                held = np.array([low <= truth <= high for low, high in ends])  # (n + 1,)
                cells.append(f"{held[draws].mean():.1%} ({mass[held].sum():.2%})")
            low, high = nearest_possible(n, truth)
            verdict = "yes" if low == high else f"no: {low:.2%} or {high:.2%}"
            print(f"| {n:,} | {truth:.0%} | {' | '.join(cells)} | {verdict} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data")
    parser.add_argument("--split", default="validation")
    arguments = parser.parse_args()
    main(arguments.data, arguments.split)
