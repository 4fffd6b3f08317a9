"""Which answers are right: by name, by order, by a file, by reassessed labels; and what is refused."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluators.split import Split, named, small_model
from vitrail.data.splits import Subset
from vitrail.errors import DataError
from vitrail.evaluators.right_answers import by_order, map_classes, real_sets

MODEL = small_model(4, ["ant", "bee", "cat", "dog"])
BARE = small_model(4)


def of(class_names, model=MODEL, mapping=None):
    """For each data class, the names of what it counts as and of the right answers."""
    made = map_classes(model, Split(len(class_names), class_names), mapping)
    found = {}
    for name, row in zip(class_names, made.row.tolist(), strict=True):
        answers = [made.model_class_names[k] for k in made.right[row].tolist() if k >= 0]
        found[name] = None if row < 0 else (made.class_names[row], answers)
    return found


@given(st.permutations(["ant", "bee", "cat", "dog"]), st.integers(1, 4))
def test_names_that_both_have_are_matched_in_any_order(names, k):
    assert of(names[:k]) == {name: (name, [name]) for name in names[:k]}


FULL = ["n01443537 goldfish", "n02012849 crane", "n03126707 crane"]


@pytest.mark.parametrize(
    "names", [["goldfish"], ["n01443537"], ["n01443537_goldfish"], [FULL[0], "n03126707"]]
)
def test_imagenets_names_are_known_with_and_without_their_numbers(names):
    answers = [FULL[0], FULL[2]]
    assert of(names, small_model(3, FULL)) == {n: (a, [a]) for n, a in zip(names, answers, strict=False)}
    bare = small_model(3, ["goldfish", "crane (n02012849)", "crane (n03126707)"])
    assert of(FULL, bare)["n03126707 crane"] == ("crane (n03126707)", ["crane (n03126707)"])
    with pytest.raises(DataError, match="'crane'"):
        of(["crane"], small_model(3, FULL))


def test_by_order_where_one_side_has_no_names():
    assert of(["w", "x", "y", "z"], BARE) == {name: (name, [name]) for name in "wxyz"}
    assert of(["0", "1", "2", "3"]) == {
        str(k): (name, [name]) for k, name in enumerate(["ant", "bee", "cat", "dog"])
    }


def test_by_order_where_it_is_asked_for():
    made = of(["dog", "n02", "n03", "n04"], mapping="order")
    assert made["dog"] == ("ant", ["ant"]) and made["n04"] == ("dog", ["dog"])


@pytest.mark.parametrize(
    ("model", "names", "mapping", "said"),
    [
        (MODEL, ["ant", "elk", "fox"], None, "2 of its 3 classes .'elk', 'fox'"),
        (MODEL, ["ant", "elk"], None, "--mapping FILE"),
        (BARE, ["ant", "bee"], None, "2 classes .*model 4"),
        (MODEL, ["0", "1"], None, "2 classes .*model 4"),
        (MODEL, ["ant", "bee", "cat"], "order", "3 classes .*model 4"),
        (small_model(3, ["crane", "owl", "crane"]), ["owl", "crane"], None, "'crane'"),
    ],
)
def test_what_is_not_known_is_refused(model, names, mapping, said):
    with pytest.raises(DataError, match=said):
        of(names, model, mapping)


def test_equal_lists_are_equal_even_if_a_name_comes_twice():
    names = ["crane", "owl", "crane"]
    made = map_classes(small_model(3, names), Split(3, list(names)))
    assert made.row.tolist() == [0, 1, 2]


def written(tmp_path, table):
    path = tmp_path / "mapping.json"
    path.write_text(table if isinstance(table, str) else json.dumps(table))
    return path


def test_a_file_names_classes_or_gives_their_indices(tmp_path):
    path = written(tmp_path, {"insect": ["bee", 0, "ant"], "pet": ["dog"]})
    assert of(["insect", "pet", "plant"], mapping=path) == {
        "insect": ("insect", ["ant", "bee"]), "pet": ("pet", ["dog"]), "plant": None,
    }  # fmt: skip
    assert of(["insect"], BARE, written(tmp_path, {"insect": [1, 1]})) == {"insect": ("insect", ["1"])}


def test_a_file_may_use_imagenets_names_for_a_model_of_1000_classes(tmp_path):
    made = of(["fish"], small_model(1000), written(tmp_path, {"fish": ["tench", 1]}))
    assert made == {"fish": ("fish", ["tench", "goldfish"])}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"insect": ["wasp"]}, "'insect': 'wasp' is not one of the model's 4 classes"),
        ({"insect": [4]}, "'4' is not one of the model's 4 classes"),
        ({"insect": [-1]}, "'-1' is not one"),
        ({"insect": [True]}, "'True' is not one"),
        ({"insect": "bee"}, "'insect': .* not 'bee'"),
        ({"insect": []}, r"'insect': .* not '\[\]'"),
        (
            {"insect": ["bee"], "inscet": ["ant"]},
            "1 of its 2 names are not classes of pictures:test: 'inscet'",
        ),
        ({}, "mapping.json: a class mapping"),
        (["bee"], "mapping.json: a class mapping"),
        ("{", "must be JSON"),
        ("[" * 100_000, "must be JSON"),
    ],
)
def test_a_file_that_makes_no_sense(tmp_path, table, said):
    with pytest.raises(DataError, match=said):
        of(["insect", "pet"], mapping=written(tmp_path, table))


def test_a_name_that_the_model_has_twice_needs_its_index(tmp_path):
    model = small_model(3, ["crane", "owl", "crane"])
    with pytest.raises(DataError, match=r"'crane' at \[0, 2\]"):
        of(["bird"], model, written(tmp_path, {"bird": ["crane"]}))
    assert of(["bird"], model, written(tmp_path, {"bird": [2]}))["bird"] == ("bird", ["crane"])


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"none\.json: .*No such file"):
        of(named(2), mapping=tmp_path / "none.json")


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
def test_a_file_of_labels_that_makes_no_sense(path, content, said):
    path.write_text(content)
    with pytest.raises(DataError, match=said):
        found(path, Split(2, named(5)))
