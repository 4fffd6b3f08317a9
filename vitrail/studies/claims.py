"""Claims of a study, as tests of its results; and the statistics that they rest on.

A point's result is the mean over its seeds with its standard error, s / sqrt(n). Two points differ if their means are
more than two standard errors of the difference apart, sqrt(se_a^2 + se_b^2); otherwise no difference was found. That
two points are equal is more than that: the difference and two standard errors together must be within a margin.

An answer is True (holds), False (does not hold) or None (cannot be told), with the numbers it rests on. Fewer than
three seeds cannot tell anything, nor can families that were compared without tuning the learning rate of each.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEAST_SEEDS = 3
ERRORS = 2.0  # standard errors
RESAMPLED = 1000  # times, for the interval of a fit


@dataclass(frozen=True)
class PointResult:
    """The runs of one point."""

    name: str
    family: str
    values: tuple[float, ...]  # of the first score, for each seed
    val: float  # mean of the same on held-out train: what choices are made by; NaN if unknown
    tuned: bool  # lr was chosen for its family, or is a setting of the point
    exaflops: float = math.nan  # of one run

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def se(self) -> float:
        """Standard error of the mean; NaN for one value."""
        return (
            statistics.stdev(self.values) / math.sqrt(len(self.values)) if len(self.values) > 1 else math.nan
        )


Results = Mapping[str, PointResult]  # finished points by name, in the order of the study
Pick = str | Callable[[Results], PointResult | None]


@dataclass(frozen=True)
class Answer:
    holds: bool | None  # None: cannot be told
    why: str


@dataclass(frozen=True)
class Claim:
    """A sentence, and how the results answer it."""

    text: str
    test: Callable[[Results], Answer]


def first(family: str) -> Pick:
    return lambda results: next((p for p in results.values() if p.family == family), None)


def last(family: str) -> Pick:
    return lambda results: next((p for p in reversed(list(results.values())) if p.family == family), None)


def best(family: str) -> Pick:
    """Pick the point of a family that is best on held-out train."""

    def choose(results: Results) -> PointResult | None:
        points = [p for p in results.values() if p.family == family and not math.isnan(p.val)]
        return max(points, key=lambda p: p.val, default=None)

    return choose


def higher(a: Pick, b: Pick) -> Callable[[Results], Answer]:
    """Return the test that a is better than b."""

    def test(results: Results) -> Answer:
        pair = compare(a, b, results)
        if isinstance(pair, Answer):
            return pair
        difference, error, why = pair
        if abs(difference) <= ERRORS * error:
            return Answer(None, f"{why}: no difference")
        return Answer(difference > 0, why)

    return test


def equal(a: Pick, b: Pick, margin: float) -> Callable[[Results], Answer]:
    """Return the test that a and b are equal up to a margin."""
    margin_text = f"{100 * margin:g} point{'s' * (margin != 0.01)}"

    def test(results: Results) -> Answer:
        pair = compare(a, b, results)
        if isinstance(pair, Answer):
            return pair
        difference, error, why = pair
        if abs(difference) + ERRORS * error <= margin:
            return Answer(True, f"{why}: within {margin_text}")
        if abs(difference) - ERRORS * error > margin:
            return Answer(False, why)
        return Answer(None, f"{why}: neither shown to be within {margin_text} nor beyond")

    return test


def helps_more(a: tuple[Pick, Pick], b: tuple[Pick, Pick]) -> Callable[[Results], Answer]:
    """Return the test that the step from the second to the first of a gains more than that of b."""

    def test(results: Results) -> Answer:
        pairs = [compare(*pair, results) for pair in (a, b)]
        if isinstance(pairs[0], Answer):
            return pairs[0]
        if isinstance(pairs[1], Answer):
            return pairs[1]
        difference, error = pairs[0][0] - pairs[1][0], math.hypot(pairs[0][1], pairs[1][1])
        why = f"{pairs[0][2]}; {pairs[1][2]}"
        if abs(difference) <= ERRORS * error:
            return Answer(None, f"{why}: no difference between the two")
        return Answer(difference > 0, why)

    return test


def compare(a: Pick, b: Pick, results: Results) -> tuple[float, float, str] | Answer:
    """Return mean(a) - mean(b), its standard error, and both in words; an answer if they cannot be compared."""
    one, other = (results.get(p) if isinstance(p, str) else p(results) for p in (a, b))
    if one is None or other is None:
        missing = ", ".join(p for p in (a, b) if isinstance(p, str) and p not in results)
        return Answer(None, f"not finished{f': {missing}' if missing else ''}")
    if refused := cannot_tell([one, other]):
        return refused
    if one is other:
        return Answer(None, f"both are {one.name}")
    difference, error = one.mean - other.mean, math.hypot(one.se, other.se)
    why = f"{one.name} {100 * one.mean:.1f}%, {other.name} {100 * other.mean:.1f}%"
    return difference, error, f"{why}, difference {100 * difference:+.1f} ± {100 * error:.1f} points"


def cannot_tell(points: Sequence[PointResult]) -> Answer | None:
    """Return the answer for points that have too few seeds, or were not tuned alike."""
    few = min(len(p.values) for p in points)
    if few < LEAST_SEEDS:
        return Answer(None, f"{few} seed{'s' * (few != 1)}; at least {LEAST_SEEDS} are needed")
    if len({p.family for p in points}) > 1 and not all(p.tuned for p in points):
        return Answer(None, "the learning rate of each family was not tuned")
    return None


@dataclass(frozen=True)
class PowerLaw:
    """error = a C^-b, fitted to the runs of a family; C in exaFLOPs. With 95% intervals over the seeds."""

    a: float
    b: float
    low: float  # of b
    high: float
    draws: np.ndarray  # (RESAMPLED, 2): log a, b of each resample

    def error(self, C: float) -> float:
        return self.a * float(C) ** -self.b


def fit_power_law(points: Sequence[PointResult], seed: int = 0) -> PowerLaw | None:
    """Fit log error = log a - b log C by least squares; resample the runs of each point for the interval. None for
    fewer than two amounts of compute."""
    points = [p for p in points if p.exaflops > 0]
    if len({p.exaflops for p in points}) < 2:
        return None
    rng, draws = np.random.default_rng(seed), []

    def fit(samples: list[np.ndarray]) -> tuple[float, float]:
        x = np.concatenate(
            [np.full(len(v), math.log(p.exaflops)) for p, v in zip(points, samples, strict=True)]
        )
        y = np.log(np.maximum(1 - np.concatenate(samples), 1e-3))
        slope, log_a = np.polyfit(x, y, 1)
        return float(log_a), float(-slope)

    values = [np.array(p.values) for p in points]
    for _ in range(RESAMPLED):
        draws.append(fit([rng.choice(v, len(v)) for v in values]))
    log_a, b = fit(values)
    low, high = np.percentile(np.array(draws)[:, 1], [2.5, 97.5])
    return PowerLaw(math.exp(log_a), b, float(low), float(high), np.array(draws))


def cheaper(family: str, than: str, times: float = 1.0) -> Callable[[Results], Answer]:
    """Return the test that a family needs so many times less compute than another for the same error, by the fitted
    power laws, in the middle of the compute that both have."""

    def test(results: Results) -> Answer:
        groups = [[p for p in results.values() if p.family == name] for name in (family, than)]
        if not all(groups):
            return Answer(None, "not finished")
        if refused := cannot_tell([p for group in groups for p in group]):
            return refused
        own, other = (fit_power_law(group) for group in groups)
        if own is None or other is None:
            return Answer(None, "a power law needs at least two amounts of compute of each family")
        low = max(min(p.exaflops for p in group) for group in groups)
        high = min(max(p.exaflops for p in group) for group in groups)
        if low > high or min(own.low, other.low) <= 0:
            return Answer(None, "the families share no range of compute in which both improve")
        C = math.sqrt(low * high)
        # log error of the other family at C, and the compute with which this one has it
        error = other.draws[:, 0] - other.draws[:, 1] * math.log(C)
        less = np.exp(math.log(C) - (own.draws[:, 0] - error) / own.draws[:, 1])
        ends = np.percentile(less, [2.5, 97.5])
        why = (
            f"for the error that {than} has at {C:.3g} exaFLOPs, {100 * other.error(C):.1f}%, {family} needs "
            f"{ends[0]:.2g} to {ends[1]:.2g} times less compute (95%)"
        )
        return Answer(True if ends[0] >= times else False if ends[1] < times else None, why)

    return test


def verdict(answers: Sequence[Answer]) -> tuple[str, bool | None]:
    """Return one sentence on all claims together."""
    if any(a.holds is False for a in answers):
        return "The paper's statement does not hold at this scale.", False
    if answers and all(a.holds for a in answers):
        return "The paper's statement holds at this scale.", True
    return "Whether the paper's statement holds cannot be told at this scale.", None
