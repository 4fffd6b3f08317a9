"""How names of folders and files say which split they are."""

from __future__ import annotations

import pytest

from vitrail.data.readers.split_names import canonical, find_split, in_order, split_in_stem
from vitrail.errors import DataError


@pytest.mark.parametrize(
    ("stem", "split"),
    [
        ("train", "train"),
        ("cifar10-train", "train"),
        ("imagenet_val", "validation"),
        ("val200", "validation"),
        ("train800", "train"),
        ("Test.images", "test"),
        ("trains", None),
        ("latest", None),
        ("train-val", None),
        ("photos", None),
    ],
)
def test_split_in_stem(stem: str, split: str | None) -> None:
    assert split_in_stem(stem) == split


def test_canonical_and_order() -> None:
    assert [canonical(name) for name in ("VAL", "dev", "testing", "extra")] == [
        "validation",
        "validation",
        "test",
        "extra",
    ]
    assert in_order(["zoo", "test", "extra", "train"]) == ["train", "test", "extra", "zoo"]


def test_find_split_lists_what_there_is() -> None:
    assert find_split("val", ["train", "validation"], "here") == "validation"
    with pytest.raises(DataError, match="here has no split 'extra'; it has: train, test"):
        find_split("extra", ["train", "test"], "here")
