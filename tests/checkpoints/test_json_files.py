import json
import os
from dataclasses import dataclass
from typing import Any, Required, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.checkpoints.json_files import (
    Count,
    Number,
    check_entries,
    check_kind,
    list_class_names,
    misfit,
    parse_object,
    read_object,
)
from vitrail.errors import CheckpointError


class Inner(TypedDict):
    name: str
    share: float | None


class Outer(TypedDict, total=False):
    n: Required[Count]
    done: bool
    inner: list[Inner]
    shapes: dict[str, tuple[str, list[int]]]


@dataclass
class Fields:
    n: int = 0
    scores: dict[str, float] | None = None


GOOD = {
    "n": 3,
    "done": False,
    "inner": [{"name": "a", "share": 0.5}, {"name": "b", "share": None}],
    "shapes": {"w": ["float32", [3, 4]]},
    "other": {"any": ["thing"]},
}


def test_what_fits_comes_back_as_it_is():
    assert parse_object(json.dumps(GOOD).encode(), Outer, "here") == GOOD
    check_kind({"n": 1, "scores": {"a": 2}}, Fields, "here")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"n": -1}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.0}, "n"),
        ({"n": None}, "n"),
        ({"done": 0}, "done"),
        ({"inner": {}}, "inner"),
        ({"inner": [{"name": "a"}]}, "inner: 0: share"),
        ({"inner": [GOOD["inner"][0], {"name": "a", "share": "x"}]}, "inner: 1: share"),
        ({"shapes": {"w": ["float32"]}}, "shapes: w"),
        ({"shapes": {"w": ["float32", [1.5]]}}, "shapes: w: 1: 0"),
    ],
)
def test_what_does_not_fit_is_named(change, name):
    with pytest.raises(CheckpointError, match=f"here: {name} is missing"):
        check_kind(GOOD | change, Outer, "here")


def test_what_is_missing_is_named_and_a_dataclass_has_no_other_fields():
    with pytest.raises(CheckpointError, match="here: n is missing"):
        check_kind({"done": True}, Outer, "here")
    for value in ({"m": 1}, {"m": None}, {"n": "1"}):
        with pytest.raises(CheckpointError, match=r"here: [mn] is"):
            check_kind(value, Fields, "here")


BAD = {
    "no JSON": b"{",
    "nothing": b"",
    "not UTF-8": b'{"a": "\xff"}',
    "a list": b"[]",
    "a number": b"5",
    "a name twice": b'{"a": 1, "a": 2}',
    "a name twice, inside": b'{"b": [{"a": 1, "a": 2}]}',
    "many digits": b'{"a": 1' + b"0" * 400 + b"}",
    "far too many digits": b'{"a": 1' + b"0" * 5000 + b"}",
    "deep lists": b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}",
    "deep objects": b'{"a": ' * 900 + b"1" + b"}" * 900,
    "too deep to parse": b'{"a": ' + b"[" * 200_000,
    "half a surrogate": b'{"a": "\\ud800"}',
    "half a surrogate for a name": b'{"\\udfff": 1}',
    "a long text": b'{"a": "' + b"x" * (2 << 20) + b'"}',
}


@pytest.mark.parametrize("name", BAD)
def test_what_a_run_does_not_write_is_an_error_in_words(name):
    with pytest.raises(CheckpointError, match="here") as said:
        parse_object(BAD[name], dict[str, Any], "here")
    assert len(str(said.value)) < 300


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, "x"]), inner, max_size=4)
), max_leaves=12))  # fmt: skip
def test_any_value_fits_or_does_not(value):
    for kind in (
        Outer,
        Fields,
        Inner,
        dict[str, Any],
        list[Inner],
        tuple[str, int],
        Count,
        float,
        int | None,
    ):
        assert misfit(value, kind, "here") is None or misfit(value, kind, "here").startswith("here")


def test_a_file_is_read_within_bounds_and_never_through_a_link(tmp_path):
    (tmp_path / "file").write_text('{"n": 1}')
    assert read_object(tmp_path / "file", Outer) == {"n": 1}
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "link", "device", "missing", "."):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_object(tmp_path / name, Outer)
    with pytest.raises(CheckpointError, match="more than 7 bytes"):
        read_object(tmp_path / "file", Outer, most=7)


def test_links_are_followed_where_it_is_asked_for(tmp_path):
    """The cache of the Hugging Face hub is made of them."""
    (tmp_path / "file").write_text('{"n": 1}')
    (tmp_path / "link").symlink_to("file")
    assert read_object(tmp_path / "link", Outer, follow_links=True) == {"n": 1}
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device", "missing", "."):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_object(tmp_path / name, Outer, follow_links=True)


ENTRIES = {
    "flag": bool,
    "count": int,
    "number": Number,
    "numbers": list[Number] | Number,
    "sides": int | tuple[int, int],
    "sizes": int | dict[str, int | None],
    "texts": list[str] | dict[str, str],
}


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ("flag", [True, False], [0, "true"]),
        ("count", [0, 12], [True, 1.0, "1"]),
        ("number", [0.5, 3], [float("nan"), float("inf"), False, "0.5", 10**400]),
        ("numbers", [[0.1, 2], [], 0.5], [["a"], "0.5", [True]]),
        ("sides", [224, [224, 384]], [[1], [1, 2, 3], [1.5, 2], "224"]),
        ("sizes", [224, {"height": 3, "width": None}], [{"height": "a"}, [1, 2], 1.5]),
        ("texts", [[], ["a", "b"], {}, {"0": "a"}], ["a", [1], {"0": 3}]),
    ],
)
def test_entries_of_a_config_file(key, right, wrong):
    for value in right:
        assert check_entries({key: value}, ENTRIES, "a.json") == {key: value}
    for value in wrong:
        with pytest.raises(CheckpointError, match=rf"a\.json: {key} is .*; expected"):
            check_entries({key: value}, ENTRIES, "a.json")


def test_null_is_nothing_and_others_pass():
    assert check_entries({"flag": None, "other": object}, ENTRIES, "a.json") == {"other": object}


def test_class_names():
    assert list_class_names({"1": "b", "0": "a"}, "labels", 2, "a.json") == ["a", "b"]
    assert list_class_names(["b", "a"], "labels", 2, "a.json") == ["b", "a"]
    for texts in ({"1": "a"}, {"a": "b"}, {"00": "a"}):
        with pytest.raises(CheckpointError, match=r"a\.json: the keys of labels are not the numbers"):
            list_class_names(texts, "labels", 1, "a.json")
    with pytest.raises(CheckpointError, match=r"a\.json: 1 names in labels for 2 classes"):
        list_class_names(["a"], "labels", 2, "a.json")
