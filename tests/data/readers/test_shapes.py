"""The procedural data set as a source."""

from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest

from vitrail.data.readers.scenes import QUESTIONS
from vitrail.data.readers.shapes import ShapesSource, open_shapes
from vitrail.data.sources import list_splits, open_source
from vitrail.errors import ConfigError, DataError


def picture(where: str, split: str, index: int) -> bytes:
    image = open_source(where, split).read(index).image
    assert isinstance(image, np.ndarray)
    return image.tobytes()


@pytest.mark.parametrize("question", sorted(QUESTIONS))
def test_sizes_classes_and_balance(question: str) -> None:
    source = open_source(f"shapes:{question}?n=400&image_size=24")
    assert len(source) == len(source.labels) == 400
    assert source.class_names == list(QUESTIONS[question])
    classes = len(source.class_names)
    for first in range(0, 400 - classes, classes):
        assert sorted(source.labels[first : first + classes]) == list(range(classes))
    example = source.read(7)
    assert (np.shape(example.image), example.label, example.key) == ((24, 24, 3), source.labels[7], "train:7")


def test_names_and_splits() -> None:
    assert list_splits("shapes") == ["train", "validation", "test"]
    default = open_source("shapes", "val")
    assert (len(default), default.class_names) == (1000, list(QUESTIONS["shape"]))
    assert np.shape(default.read(0).image) == (64, 64, 3)
    assert len(open_source("shapes:count", "train[:10 per class]")) == 80


def test_an_example_depends_on_question_seed_split_and_index_alone() -> None:
    one = picture("shapes:count?n=40&image_size=16", "train", 5)
    assert one == picture("shapes:count?n=4000&image_size=16", "train", 5)
    others = [
        picture("shapes:count?n=40&image_size=16&seed=1", "train", 5),
        picture("shapes:shape?n=40&image_size=16", "train", 5),
        picture("shapes:count?n=40&image_size=16", "train", 6),
        picture("shapes:count?n=40&image_size=16", "test", 5),
    ]
    assert one not in others
    small, large = (open_shapes("shapes", "train", {"image_size": size}) for size in ("16", "64"))
    assert small.scene(3) == large.scene(3)


def test_no_picture_is_in_two_splits() -> None:
    digests = {
        split: {hashlib.sha256(picture("shapes?n=800&image_size=16", split, i)).digest() for i in range(200)}
        for split in ("train", "validation", "test")
    }
    assert len(set.union(*digests.values())) == 600


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("shapes:size", "no question 'size' about shapes; there are: shape, colour, count"),
        ("shapes?m=3", "has no option m: its options are: n, image_size, seed"),
        ("shapes?n=3", "n=3; a whole number from 4"),
        ("shapes?image_size=-5", "image_size=-5"),
        ("shapes?image_size=100000", "from 8 to 2048"),
        ("shapes?seed=x", "seed=x"),
        ("shapes?seed", "cannot be read"),
        ("shapes?seed=1&seed=2", "set the same name twice"),
    ],
)
def test_refused(where: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_source(where)


def test_missing_split_and_index() -> None:
    with pytest.raises(DataError, match="no split 'extra'"):
        open_source("shapes", "extra")
    with pytest.raises(IndexError):
        open_source("shapes?n=40").read(40)


def test_pickles_and_fingerprint() -> None:
    source = ShapesSource("count", "train", 40, 16, 0)
    again = pickle.loads(pickle.dumps(source))
    assert np.array_equal(again.read(3).image, source.read(3).image)
    others = [
        ShapesSource("count", "test", 40, 16, 0),
        ShapesSource("count", "train", 41, 16, 0),
        ShapesSource("shape", "train", 40, 16, 0),
        ShapesSource("count", "train", 40, 17, 0),
        ShapesSource("count", "train", 40, 16, 1),
    ]
    assert len({source.fingerprint() for source in [source, again, *others]}) == 6
