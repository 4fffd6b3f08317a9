"""The record of a sharding: ranges, and files that others changed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.shard import FORMAT, Manifest
from vitrail.errors import DataError


def manifest(examples: int, shards: int) -> Manifest:
    return Manifest(FORMAT, "train", "photos", "f00", "c1a55", examples, 256, True, [None] * shards)


@given(st.integers(1, 10**7), st.integers(1, 100))
def test_ranges_partition_the_examples_evenly(examples: int, shards: int) -> None:
    ranges = manifest(examples, shards).ranges()
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == examples
    sizes = [stop - start for start, stop in ranges]
    assert max(sizes) - min(sizes) <= 1


def test_saved_and_loaded(tmp_path: Path) -> None:
    saved = manifest(10, 3)
    saved.done[1] = {"rows": 3, "bytes": 5, "broken": [{"key": "é", "reason": "?"}]}
    saved.save(tmp_path)
    assert Manifest.read_all(tmp_path) == [saved]
    assert [path.name for path in tmp_path.iterdir()] == [".shard-train.json"]


DONE = {"rows": 3, "bytes": 5, "broken": []}


@pytest.mark.parametrize(
    "changed",
    [
        {"done": "abc"}, {"done": [5]}, {"done": [{}]}, {"done": 5}, {"done": []}, {"done": [None] * 11},
        {"done": [{**DONE, "broken": 5}]}, {"done": [{**DONE, "broken": ["x"]}]}, {"done": [{**DONE, "bytes": "5"}]},
        {"split": "../../evil"}, {"split": 5}, {"examples": "10"}, {"examples": True}, {"more": 1},
    ],
    ids=repr,
)  # fmt: skip
def test_a_manifest_that_others_changed(tmp_path: Path, changed: dict[str, object]) -> None:
    file = tmp_path / ".shard-train.json"
    file.write_text(json.dumps({**asdict(manifest(10, 3)), **changed}))
    with pytest.raises(DataError, match=r"\.shard-train\.json: .*manifest of"):
        Manifest.read_all(tmp_path)


@pytest.mark.parametrize("content", [b"[]", b"5", b"{}", b"[" * 100_000, b"\xff"])
def test_a_manifest_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".shard-train.json").write_bytes(content)
    with pytest.raises(DataError, match=r"\.shard-train\.json: .*manifest of shards"):
        Manifest.read_all(tmp_path)
