import numpy as np
import pytest

from tests.curate.clusters import clusters
from vitrail.curate.learning_curve import gain, learning_curve, resampled


def test_accuracy_rises_with_the_images():
    x, labels, _ = clusters(n=240, width=30, wrong=0)
    curve = learning_curve(x, labels, np.arange(240), list("abcd"), 0.5)
    assert curve["images_per_class"] == pytest.approx([6, 12, 24, 48])
    assert curve["accuracy"][-1] > curve["accuracy"][0]
    for low, accuracy, high in zip(curve["low"], curve["accuracy"], curve["high"], strict=True):
        assert 0 <= low <= accuracy <= high <= 1
    assert curve["more"].startswith("Twice the images would bring about")


def test_few_images_have_no_curve():
    x, labels, _ = clusters(n=40)
    assert learning_curve(x, labels, np.arange(40), list("abcd"), 0.5) is None


def test_an_error_that_halves_with_each_doubling_goes_on_so():
    assert gain(np.array([0.2, 0.6, 0.8, 0.9])) == pytest.approx(0.05)
    assert gain(np.array([0.9, 0.8, 0.7, 0.6])) == 0  # more images do no harm


def test_intervals_are_wider_where_copies_count_once():
    right = (np.random.default_rng(0).random((1, 400)) < 0.7).astype(float).repeat(4, axis=1)
    alone = resampled(right, np.arange(1600)).std()
    together = resampled(right, np.arange(400).repeat(4)).std()
    assert alone == pytest.approx(np.sqrt(0.21 / 1600), rel=0.15)
    assert together == pytest.approx(2 * alone, rel=0.2)
