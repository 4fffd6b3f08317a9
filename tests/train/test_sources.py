"""Which parts of a data set a run uses."""

import numpy as np
import pytest

from vitrail.train.experiment import DataChoice
from vitrail.train.sources import Sources


@pytest.fixture
def two_splits(tmp_path):
    """Data that has train and validation, and no test."""
    x, y = np.zeros((20, 4, 4, 3), np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "two.npz", x_train=x, y_train=y, x_val=x, y_val=y)
    return str(tmp_path / "two.npz")


def test_by_itself_the_test_split_is_one_that_nothing_else_has_seen(two_splits):
    def tested(**parts):
        test = Sources.open(DataChoice(two_splits, **parts)).test
        return None if test is None else test.name

    assert tested() == "two:validation"
    assert tested(train="train[:50%]", val="train[50%:]") == "two:validation"
    assert tested(val="validation") is None
    assert tested(val="val[:50%]") is None
    assert tested(train="train+val", val="none") is None
    assert tested(val="validation", test="validation") == "two:validation"  # as it was asked for


def test_of_several_the_one_that_is_left():
    made = Sources.open(DataChoice("shapes?n=80&image_size=16", val="test"))
    assert made.test is not None and made.test.name == "shapes:shape:validation"
