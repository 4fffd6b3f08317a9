"""The pictures that the demo renders."""

import numpy as np
import pytest

import vitrail
from vitrail.demo.drawings import DRAWINGS, SIDE, draw
from vitrail.demo.summary import captions, readable


@pytest.fixture(scope="module")
def made():
    return {name: draw(name) for name in DRAWINGS}


def test_they_are_pictures_and_differ(made):
    assert all(x.shape == (SIDE, SIDE, 3) and x.dtype == np.uint8 and x.std() > 20 for x in made.values())
    assert len({x.tobytes() for x in made.values()}) == len(made) == 8


def test_each_is_the_same_every_time(made):
    assert np.array_equal(draw("basketball"), made["basketball"])


def test_the_model_in_the_box_knows_their_classes_and_names_most_of_them(made):
    model = vitrail.load("ti8-64")
    assert set(made) <= {readable(name) for name in model.class_names}
    answers = vitrail.predict(model, list(made.values()), top=1)
    right = [name for name, [(said, _)] in zip(made, answers, strict=True) if readable(said) == name]
    assert len(right) >= 6, right


def test_names_are_cut_to_the_width_of_a_picture():
    made = captions(["n02165456 ladybug", "x" * 40], [[("a" * 40, 0.5)], [("bee", 1.0)]], 3)
    assert made[0] == f"ladybug\n→ {'a' * 10}… 50%"
    assert [len(line) for line in made[1].split("\n")] == [18, 10] and made[1].endswith("→ bee 100%")
    assert made[2] == ""


def test_readable():
    assert readable("n01443537 goldfish") == "goldfish"
    assert readable("n1 goldfish") == "n1 goldfish" and readable("north sea") == "north sea"
