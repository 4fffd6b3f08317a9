"""Whose few-shot examples are drawn: big_vision's and scenic's as their code reads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.evaluators.draws import ordered_classes


def as_big_vision_does(labels, classes, seed):
    rng = np.random.default_rng(seed)
    return [rng.permutation(np.where(labels == c)[0]) for c in range(classes)]


@given(st.integers(0, 5), st.integers(1, 7), st.integers(0, 200), st.integers(0, 2**31))
def test_the_published_orders(seed, classes, n, data):
    """Classes of any size, of none too: they leave the generator where it is."""
    labels = np.random.default_rng(data).integers(0, classes, n)
    theirs = as_big_vision_does(labels, classes, seed)
    for ours, published in zip(ordered_classes(labels, classes, seed, "big_vision"), theirs, strict=True):
        np.testing.assert_array_equal(ours, published)
    for c, ours in enumerate(ordered_classes(labels, classes, seed, "scenic")):
        np.testing.assert_array_equal(ours, np.where(labels == c)[0])


def test_what_big_visions_seeds_draw():
    """In numpy 1.26 and 2.4: should a release shuffle otherwise, this says so."""
    labels = np.array([0, 1, 2] * 4)
    drawn = [[m[:2].tolist() for m in ordered_classes(labels, 3, seed, "big_vision")] for seed in (0, 1)]
    assert drawn == [[[6, 0], [10, 7], [5, 11]], [[0, 3], [10, 1], [11, 2]]]


@pytest.mark.parametrize("draws", ["vitrail", "big_vision", "scenic"])
def test_every_order_is_of_all_examples_and_of_the_seed_alone(draws):
    labels = np.random.default_rng(0).integers(0, 4, 60)
    first, again, other = (ordered_classes(labels, 4, seed, draws) for seed in (0, 0, 1))
    assert sorted(np.concatenate(first).tolist()) == list(range(60))
    assert all((labels[members] == c).all() for c, members in enumerate(first))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert all((a == b).all() for a, b in zip(first, other, strict=True)) == (draws == "scenic")
