"""Which parts of a data set a run uses."""

import json

import numpy as np
import pytest

from tests.data.test_decisions import decisions_for
from vitrail.data.settings import DataSettings
from vitrail.errors import ConfigError
from vitrail.train.data_splits import Sources


@pytest.fixture
def two_splits(tmp_path):
    """Data that has train and validation, and no test."""
    x, y = np.zeros((20, 4, 4, 3), np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "two.npz", x_train=x, y_train=y, x_val=x, y_val=y)
    return str(tmp_path / "two.npz")


def test_by_itself_the_test_split_is_one_that_nothing_else_has_seen(two_splits):
    def tested(**parts):
        test = Sources.open(DataSettings(two_splits, **parts)).test
        return None if test is None else test.name

    assert tested() == "two:validation"
    assert tested(train="train[:50%]", val="train[50%:]") == "two:validation"
    assert tested(val="validation") is None
    assert tested(val="val[:50%]") is None
    assert tested(train="train+val", val="none") is None
    assert tested(val="validation", test="validation") == "two:validation"  # as it was asked for


def test_decisions_about_images_are_a_part_of_what_the_data_is(two_splits, tmp_path):
    found = set()
    for number, index in enumerate((0, 1)):
        decisions = decisions_for(two_splits, {index: ("drop", None)})
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(decisions))
        sources = Sources.open(DataSettings(f"{two_splits}?decisions={path}", val="none"))
        assert (len(sources.train), len(sources.test)) == (19, 20)
        found.add(sources.fingerprint()[0])
    found.add(Sources.open(DataSettings(two_splits, val="none")).fingerprint()[0])
    assert len(found) == 3


def test_of_several_the_one_that_is_left():
    made = Sources.open(DataSettings("shapes?n=80&image_size=16", val="test"))
    assert made.test is not None and made.test.name == "shapes:shape:validation"


@pytest.mark.parametrize(
    ("val", "left"),
    [
        ("train[90%:]", 72),
        ("train[:10%]", 72),
        ("train[20%:30%]", 72),
        ("train[80%: per class]", 60),
        ("train[2:4 per class, seed 3]", 60),
        ("none", 80),
        ("test", 80),
    ],
)
def test_what_is_held_out_of_train_is_not_trained_on(val, left):
    made = Sources.open(DataSettings("shapes?n=80&image_size=16", val=val, test="none"))
    assert len(made.train) == left
    if made.val is not None:
        keys = {made.train.key(i) for i in range(left)}
        assert not keys & {made.val.key(i) for i in range(len(made.val))}


@pytest.mark.parametrize("parts", [{"val": "train[90%:]"}, {"test": "train[:5]"}, {"test": "train+test"}])
def test_parts_that_meet_are_refused(parts):
    with pytest.raises(ConfigError, match=r"are in shapes:shape:train.* too"):
        Sources.open(DataSettings("shapes?n=100&image_size=16", **{"train": "train", "val": "none", **parts}))


def test_slices_of_data_ordered_by_class_are_refused_where_no_class_is_in_both(tmp_path):
    x, y = np.zeros((20, 4, 4, 3), np.uint8), np.arange(20) // 5
    np.savez(tmp_path / "ordered.npz", x_train=x, y_train=y)
    choice = DataSettings(str(tmp_path / "ordered.npz"), train="train[:75%]", val="train[75%:]", test="none")
    with pytest.raises(ConfigError, match=r"have no class in common, .* class by class"):
        Sources.open(choice)
