from __future__ import annotations

import pytest

from vitrail.checkpoints.json_kinds import KINDS, checked
from vitrail.errors import CheckpointError

EXAMPLES = {
    "true or false": [True, False],
    "a whole number": [0, 12],
    "a number": [0.5, 3],
    "a list of numbers": [[0.1, 2], []],
    "one whole number or two": [224, [224, 384]],
    "three whole numbers": [[3, 224, 224]],
    "a whole number or an object of them": [224, {"height": 3, "width": None}],
    "text": ["", "vit"],
    "a list of texts": [[], ["a", "b"]],
    "texts by number": [{}, {"0": "a", "1": "b"}],
    "texts by name": [{"n01": "tench"}],
    "an object": [{}, {"a": [1]}],
}
NOT = {
    "true or false": [0, "true"],
    "a whole number": [True, 1.0, "1"],
    "a number": [float("nan"), float("inf"), False, "0.5", 10**400],
    "a list of numbers": [["a"], 0.5, [True]],
    "one whole number or two": [[1], [1, 2, 3], [1.5, 2], "224"],
    "three whole numbers": [[1, 2], 3, [1, 2, 0.5]],
    "a whole number or an object of them": [{"height": "a"}, [1, 2], 1.5],
    "text": [3, ["a"]],
    "a list of texts": ["a", [1], {"0": "a"}],
    "texts by number": [{"1": "a"}, {"a": "b"}, {"0": 3}, ["a"]],
    "texts by name": [{"a": 3}, ["a"]],
    "an object": [[], "a"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind):
    for value in EXAMPLES[kind]:
        assert checked({"key": value}, {"key": (kind,)}, "a.json") == {"key": value}
    for value in NOT[kind]:
        with pytest.raises(
            CheckpointError, match=rf"a\.json: key is .* in its config file; it must be {kind}"
        ):
            checked({"key": value}, {"key": (kind,)}, "a.json")


def test_null_is_nothing_and_others_pass():
    assert checked({"key": None, "other": object}, {"key": ("text",)}, "a.json") == {"other": object}
