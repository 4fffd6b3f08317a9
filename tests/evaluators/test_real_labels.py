"""Reassessed labels find their images, by the number in a name or by order, and nothing else passes."""

import json

import numpy as np
import pytest

from tests.evaluators.split import Split, named
from vitrail.data.splits import Subset
from vitrail.errors import DataError
from vitrail.evaluators.class_mapping import by_order
from vitrail.evaluators.outcomes import Predictions
from vitrail.evaluators.real_labels import real_accuracy, real_sets

SETS = [[0], [1, 2], [], [3], [0, 4], [0], [1], [2]]
IMAGENET = "n02110341/ILSVRC2012_val_{:08}.JPEG"


@pytest.fixture
def path(tmp_path):
    (tmp_path / "real.json").write_text(json.dumps(SETS))
    return tmp_path / "real.json"


def found(path, source):
    return real_sets(path, source, by_order(source.class_names))


def test_images_are_found_by_the_number_in_their_name(path):
    source = Subset(Split(8, named(5), keys=IMAGENET), np.array([6, 1, 2]))
    assert found(path, source) == [{1}, {1, 2}, set()]


def test_without_numbers_the_order_counts(path):
    assert found(path, Split(8, named(5))) == [set(row) for row in SETS]


def test_without_numbers_there_have_to_be_as_many(path):
    with pytest.raises(DataError, match=r"8 images.* pictures:test 7 images"):
        found(path, Split(7, named(5)))


def test_an_order_that_is_another_is_noticed(path):
    with pytest.raises(DataError, match="not in the order of pictures:test: only 0 of 7 labels agree"):
        found(path, Split(8, named(5), labels=[4, 4, 4, 4, 3, 4, 4, 4]))


def test_a_number_that_the_file_does_not_have(path):
    with pytest.raises(
        DataError, match=r"val_00000009\.JPEG' has no number from val_00000001 to val_00000008"
    ):
        found(path, Split(9, named(5), keys=IMAGENET))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[[0], [7]]", "image 2: .7. are not all of the model's 5"),
        ('[["0"]]', "image 1"),
        ("[0, 1]", "a list of lists"),
        ("[]", "a list of lists"),
        ('{"a": [0]}', "a list of lists"),
        ("real", "must be JSON"),
    ],
)
def test_a_file_that_makes_no_sense(path, content, said):
    path.write_text(content)
    with pytest.raises(DataError, match=said):
        found(path, Split(2, named(5)))


def answers(index, predicted):
    zeros = np.zeros(len(index))
    return Predictions(np.array(index), zeros, np.array(predicted), zeros, zeros, zeros)


def test_images_without_a_label_are_left_out_of_the_score():
    sets = [set(row) for row in SETS]
    assert real_accuracy(answers([0, 1, 2, 4], [0, 2, 0, 1]), sets) == (2 / 3, 3)
    with pytest.raises(DataError, match="every set is empty"):
        real_accuracy(answers([2], [0]), sets)
