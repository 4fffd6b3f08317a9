"""The expected calibration error, on cases that can be worked out on paper, and against a plain loop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.evaluators.calibration import BINS, expected_calibration_error


def test_two_bins_on_paper():
    """Ten answers at 0.75, six right; ten at 0.35, five right: (|6 - 7.5| + |5 - 3.5|) / 20."""
    confidence = np.array([0.75] * 10 + [0.35] * 10)
    right = np.array([True] * 6 + [False] * 4 + [True] * 5 + [False] * 5)
    assert expected_calibration_error(confidence, right) == pytest.approx(0.15)


def test_gaps_of_one_bin_cancel_and_those_of_two_do_not():
    right = np.array([True, False])
    assert expected_calibration_error(np.array([0.5, 0.5]), right) == pytest.approx(0)
    assert expected_calibration_error(np.array([0.1, 0.9]), right) == pytest.approx(0.9)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    """1.0 is in the last bin, 1/3 in the fifth with 0.3."""
    assert expected_calibration_error(np.array([1.0, 0.95]), np.array([True, False])) == pytest.approx(0.475)
    edge, inside = np.float64(5 / 15), 0.3
    assert expected_calibration_error(np.array([edge, inside]), np.array([True, False])) == pytest.approx(
        abs(1 - edge - inside) / 2
    )


@given(st.lists(st.tuples(st.integers(1, 10_000), st.booleans()), min_size=1, max_size=60))
def test_against_a_loop(answers):
    # (k - 1/2) / 10,000 is never an edge, where rounding would decide.
    answers = [((k - 0.5) / 10_000, right) for k, right in answers]
    expected = 0.0
    for b in range(BINS):
        inside = [(c, r) for c, r in answers if b / BINS < c <= (b + 1) / BINS]
        if inside:
            accuracy = sum(r for _, r in inside) / len(inside)
            mean = sum(c for c, _ in inside) / len(inside)
            expected += len(inside) / len(answers) * abs(accuracy - mean)
    made = expected_calibration_error(np.array([c for c, _ in answers]), np.array([r for _, r in answers]))
    assert made == pytest.approx(expected, abs=1e-12)
    assert 0 <= made <= 1
