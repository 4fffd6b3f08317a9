"""What is measured of one example, against plain sorting and sums in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.evaluators.outcomes import Predictions, joined, judged


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
    made = {name: t.tolist() for name, t in judged(torch.tensor(y, dtype=torch.float32), padded).items()}
    for e, (row, answers) in enumerate(zip(y, right, strict=True)):
        ranked = sorted(range(len(row)), key=lambda k: (-row[k], k))
        p = np.exp(np.array(row, np.float64))
        p /= p.sum()
        assert made["predicted"][e] == ranked[0]
        assert made["rank"][e] == min(ranked.index(k) for k in answers)
        assert made["confidence"][e] == pytest.approx(p.max(), rel=1e-5)
        assert made["loss"][e] == pytest.approx(-np.log(p[answers].sum()), rel=1e-5, abs=1e-5)


def test_large_logits_do_not_overflow():
    made = judged(torch.tensor([[1000.0, 0.0], [-1000.0, 0.0]]), torch.tensor([[1], [1]]))
    assert made["loss"].tolist() == [1000.0, 0.0]


def part(*index):
    zeros = np.zeros(len(index))
    return Predictions(np.array(index, np.int64), *[zeros] * 5)


def test_joining_puts_examples_in_order_and_takes_none_twice():
    assert joined([part(4, 5), part(), part(0, 3)]).index.tolist() == [0, 3, 4, 5]
    with pytest.raises(AssertionError, match="twice"):
        joined([part(4, 5), part(5)])
