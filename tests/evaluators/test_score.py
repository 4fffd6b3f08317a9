"""How accuracies are written, and their interval."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.evaluators.score import accuracy_interval, format_accuracy


def test_the_interval_of_a_published_table():
    """Newcombe 1998, Table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29; method 5."""
    for right, n, low, high in ((81, 263, 0.2527, 0.3676), (15, 148, 0.0578, 0.1617), (0, 20, 0, 0.1684), (1, 29, 0.0009, 0.1776)):  # fmt: skip  # noqa: E501
        assert accuracy_interval(right / n, n) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 10**7), st.floats(0, 1))
def test_the_interval_holds_the_accuracy_and_stays_a_share(n, accuracy):
    low, high = accuracy_interval(accuracy, n)
    assert 0 <= low <= accuracy + 1e-12 and accuracy - 1e-12 <= high <= 1
    assert math.isfinite(low) and low < high


def test_the_interval_holds_the_truth_in_at_least_95_percent_of_the_samples():
    for n, truth in ((20, 0.9), (50, 0.6), (50, 0.98), (200, 0.98)):
        mass = [math.comb(n, k) * truth**k * (1 - truth) ** (n - k) for k in range(n + 1)]
        held = [low <= truth <= high for low, high in (accuracy_interval(k / n, n) for k in range(n + 1))]
        assert 0.95 <= sum(m for m, inside in zip(mass, held, strict=True) if inside) < 0.99


def test_an_accuracy_that_is_a_mean_over_seeds_has_an_interval_between_those_beside_it():
    low, high = accuracy_interval(80.5 / 100, 100)
    assert accuracy_interval(0.80, 100)[0] < low < accuracy_interval(0.81, 100)[0]
    assert accuracy_interval(0.80, 100)[1] < high < accuracy_interval(0.81, 100)[1]


def test_as_people_read_it():
    assert format_accuracy(0.783) == "78.3%"
    assert format_accuracy(0.783, 0) == "78.3%"
    assert format_accuracy(0.783, 400) == "78.3% (73.9-82.2%, n = 400)"
    assert format_accuracy(-1, 400) == "-100.0%"  # as a damaged file may have it
    assert format_accuracy(1, 12_345) == "100.0% (100.0-100.0%, n = 12,345)"
