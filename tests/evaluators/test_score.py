"""How accuracies are written, and their interval."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.evaluators.score import format_accuracy, wilson_interval


def test_the_interval_of_a_published_table():
    """Newcombe 1998, Table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29; method 3."""
    for right, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611), (1, 29, 0.0061, 0.1718)):  # fmt: skip  # noqa: E501
        assert wilson_interval(right / n, n) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 10**7), st.floats(0, 1))
def test_the_interval_holds_the_accuracy_and_stays_a_share(n, accuracy):
    low, high = wilson_interval(accuracy, n)
    assert 0 <= low <= accuracy + 1e-12 and accuracy - 1e-12 <= high <= 1
    assert math.isfinite(low) and low < high


def test_as_people_read_it():
    assert format_accuracy(0.783) == "78.3%"
    assert format_accuracy(0.783, 0) == "78.3%"
    assert format_accuracy(0.783, 400) == "78.3% (74.0-82.1%, n = 400)"
    assert format_accuracy(-1, 400) == "-100.0%"  # as a damaged file may have it
    assert format_accuracy(1, 12_345) == "100.0% (100.0-100.0%, n = 12,345)"
