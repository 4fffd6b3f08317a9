"""What is measured of one example, against plain sorting and sums in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.evaluators.outcomes import (
    BINS,
    Predictions,
    expected_calibration_error,
    join,
    score_logits,
)


@st.composite
def examples(draw):
    """Logits with many ties, and for each example some right answers."""
    K, B = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    y = draw(st.lists(st.lists(st.integers(-6, 6), min_size=K, max_size=K), min_size=B, max_size=B))
    right = [sorted(draw(st.sets(st.integers(0, K - 1), min_size=1))) for _ in range(B)]
    return y, right


@given(examples())
def test_against_sorting_and_sums(given_):
    y, right = given_
    m = max(map(len, right)) + 1
    padded = torch.tensor([row + [-1] * (m - len(row)) for row in right])
    made = {
        name: t.tolist() for name, t in score_logits(torch.tensor(y, dtype=torch.float32), padded).items()
    }
    for e, (row, answers) in enumerate(zip(y, right, strict=True)):
        ranked = sorted(range(len(row)), key=lambda k: (-row[k], k))
        p = np.exp(np.array(row, np.float64))
        p /= p.sum()
        assert made["predicted"][e] == ranked[0]
        assert made["rank"][e] == min(ranked.index(k) for k in answers)
        assert made["confidence"][e] == pytest.approx(p.max(), rel=1e-5)
        assert made["loss"][e] == pytest.approx(-np.log(p[answers].sum()), rel=1e-5, abs=1e-5)


def test_large_logits_do_not_overflow():
    made = score_logits(torch.tensor([[1000.0, 0.0], [-1000.0, 0.0]]), torch.tensor([[1], [1]]))
    assert made["loss"].tolist() == [1000.0, 0.0]


def part(*index):
    zeros = np.zeros(len(index))
    return Predictions(np.array(index, np.int64), *[zeros] * 5)


def test_joining_puts_examples_in_order_and_takes_none_twice():
    assert join([part(4, 5), part(), part(0, 3)]).index.tolist() == [0, 3, 4, 5]
    with pytest.raises(AssertionError, match="twice"):
        join([part(4, 5), part(5)])


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
