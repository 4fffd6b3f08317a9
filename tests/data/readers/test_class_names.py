"""Names of classes from files beside the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitrail.data.readers.class_names import (
    check_labels,
    number_labels,
    number_names,
    read_class_names,
    readable,
    with_titles,
)
from vitrail.errors import DataError


def test_text_json_list_and_json_object(tmp_path: Path) -> None:
    assert read_class_names(tmp_path) is None
    (tmp_path / "classes.json").write_text('{"1": "dog", "0": "cat"}')
    assert read_class_names(tmp_path) == ["cat", "dog"]
    (tmp_path / "classes.json").write_text('["cat", "dog"]')
    assert read_class_names(tmp_path) == ["cat", "dog"]
    (tmp_path / "classes.txt").write_text("\ufeffn01\tcat\nn02\tdog\n\n", encoding="utf-8")
    assert read_class_names(tmp_path) == ["n01 cat", "n02 dog"]


@pytest.mark.parametrize(
    "text", ["{", '{"a": "b"}', '{"0": "a", "2": "b"}', "[1, 2]", '"name"', '["\\ud800"]']
)
def test_json_that_names_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "classes.json").write_text(text)
    with pytest.raises(DataError, match=r"classes\.json"):
        read_class_names(tmp_path)


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="UTF-8"):
        read_class_names(tmp_path)


def test_titles_for_ids_and_two_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("n1\tcrane\nn2\tcrane\nn3\tgoose\n")
    assert with_titles(["n1", "n2", "n3", "n4"], tmp_path) == ["crane (n1)", "crane (n2)", "goose", "n4"]
    assert with_titles(["n1"], tmp_path / "elsewhere") == ["n1"]


def test_numbers_over_all_splits() -> None:
    assert number_names([np.array([0, 2]), np.array([4]), np.array([], int)]) == ["0", "1", "2", "3", "4"]


def test_labels_have_to_be_classes() -> None:
    check_labels(np.array([0, 1]), ["a", "b"], "here")
    for labels in ([0, 2], [-1, 0]):
        with pytest.raises(DataError, match="1 of 2 labels are not among the 2 classes"):
            check_labels(np.array(labels), ["a", "b"], "here")
    assert number_labels(["b", "a", "b"], ["a", "b"], "here").tolist() == [1, 0, 1]
    with pytest.raises(DataError, match="not among the 1 classes: x, y"):
        number_labels(["y", "x"], ["a"], "here")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("n02123394 Persian cat", "Persian cat"),
        ("n02123394_Persian_cat", "Persian_cat"),
        ("n02123394", "n02123394"),  # nothing else is known
        ("night owl", "night owl"),
        ("no. n02123394 cat", "no. n02123394 cat"),
    ],
)
def test_people_see_no_wordnet_numbers(name: str, said: str) -> None:
    assert readable(name) == said
