"""The statistics of a study: what is claimed of numbers that are known."""

import math

import numpy as np
import pytest

from vitrail.studies.claims import (
    Answer,
    PointResult,
    best,
    cheaper,
    equal,
    first,
    fit_power_law,
    helps_more,
    higher,
    last,
    verdict,
)


def points(*given, tuned=True):
    made = [
        PointResult(name, family, values, sum(values) / len(values), tuned) for name, family, values in given
    ]
    return {point.name: point for point in made}


TWO = points(("a", "A", (0.50, 0.52, 0.54)), ("b", "B", (0.40, 0.41, 0.42)))


def test_mean_and_standard_error():
    point = TWO["a"]
    assert point.mean == pytest.approx(0.52)
    assert point.se == pytest.approx(0.02 / math.sqrt(3))
    assert math.isnan(points(("a", "", (0.5,)))["a"].se)


def test_a_difference_of_more_than_two_standard_errors():
    assert higher("a", "b")(TWO).holds is True
    assert higher("b", "a")(TWO).holds is False
    assert "+11.0 ± 1.3 points" in higher("a", "b")(TWO).why


def test_a_smaller_difference_is_none():
    close = points(("a", "A", (0.50, 0.52, 0.54)), ("b", "B", (0.50, 0.51, 0.53)))
    answer = higher("a", "b")(close)
    assert answer.holds is None and "no difference" in answer.why


@pytest.mark.parametrize(
    ("b", "holds"), [((0.521, 0.522, 0.523), True), ((0.40, 0.41, 0.42), False), ((0.47, 0.52, 0.57), None)]
)
def test_equal_is_more_than_no_difference_found(b, holds):
    results = points(("a", "", (0.520, 0.521, 0.522)), ("b", "", b))
    assert equal("a", "b", 0.01)(results).holds is holds


@pytest.mark.parametrize(
    "results",
    [
        points(("a", "", (0.9, 0.9)), ("b", "", (0.1, 0.1))),  # two seeds
        points(("a", "", (0.9, 0.9, 0.9))),  # b is missing
        points(("a", "A", (0.9, 0.9, 0.9)), ("b", "B", (0.1, 0.1, 0.1)), tuned=False),
    ],
)
def test_what_cannot_be_told(results):
    for test in (higher("a", "b"), equal("a", "b", 0.01)):
        assert test(results).holds is None


def test_a_point_is_not_better_than_itself():
    assert higher(best("A"), first("A"))(TWO).holds is None


def test_picks_of_a_family():
    results = points(
        ("a", "A", (0.3,) * 3), ("b", "A", (0.6,) * 3), ("c", "A", (0.5,) * 3), ("d", "D", (0.9,) * 3)
    )
    assert (first("A")(results).name, last("A")(results).name, best("A")(results).name) == ("a", "c", "b")
    assert best("Z")(results) is None


def test_helping_more_compares_two_gains():
    results = points(
        ("a", "", (0.60, 0.61, 0.62)), ("a0", "", (0.50, 0.51, 0.52)),
        ("b", "", (0.80, 0.81, 0.82)), ("b0", "", (0.79, 0.80, 0.81)),
    )  # fmt: skip
    assert helps_more(("a", "a0"), ("b", "b0"))(results).holds is True
    assert helps_more(("b", "b0"), ("a", "a0"))(results).holds is False
    assert helps_more(("a", "a0"), ("a", "a0"))(results).holds is None


def along(law, family, noise=0.002, seed=0):
    rng = np.random.default_rng(seed)
    return {
        f"{family} {C}": PointResult(
            f"{family} {C}", family, tuple(1 - law(C) * (1 + noise * rng.standard_normal(3))), 0.5, True, C
        )
        for C in (1.0, 3.0, 10.0)
    }


def test_a_power_law_is_found_again():
    law = fit_power_law(list(along(lambda C: 0.6 * C**-0.25, "A").values()))
    assert law.a == pytest.approx(0.6, rel=0.01) and law.b == pytest.approx(0.25, abs=0.01)
    assert law.low < law.b < law.high
    assert law.error(3.0) == pytest.approx(0.6 * 3**-0.25, rel=0.01)
    assert fit_power_law(list(along(lambda C: 0.6, "A").values())[:1]) is None


def test_the_family_with_the_lower_error_is_cheaper():
    results = along(lambda C: 0.5 * C**-0.2, "A") | along(lambda C: 0.6 * C**-0.2, "B", seed=1)
    assert cheaper("A", "B")(results).holds is True
    assert cheaper("B", "A")(results).holds is False
    assert cheaper("A", "C")(results).holds is None
    assert cheaper("A", "A")(results).holds is None


def test_the_verdict_needs_all_claims():
    yes, no, unknown = Answer(True, ""), Answer(False, ""), Answer(None, "")
    assert verdict([yes, yes])[1] is True
    assert verdict([yes, unknown])[1] is None
    assert verdict([unknown, no])[1] is False
    assert verdict([])[1] is None
