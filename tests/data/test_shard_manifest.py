"""The record of a sharding: ranges, what has changed, and files that appear whole."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.shard_manifest import FORMAT, Manifest, write_whole


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
    made = manifest(10, 3)
    made.done[1] = {"rows": 3, "bytes": 5, "broken": [{"key": "é", "reason": "?"}]}
    made.save(tmp_path)
    assert Manifest.all_in(tmp_path) == [made]
    assert [path.name for path in tmp_path.iterdir()] == [".shard-train.json"]


def test_shards_of_another_size_count_as_not_done(tmp_path: Path) -> None:
    made = manifest(10, 3)
    made.done = [{"rows": 3, "bytes": 5, "broken": []} for _ in range(3)]
    (tmp_path / made.file_name(0)).write_bytes(b"12345")
    (tmp_path / made.file_name(1)).write_bytes(b"1234")
    made.forget_changed(tmp_path)
    assert [done is not None for done in made.done] == [True, False, False]


def test_written_whole(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"old")
    write_whole(tmp_path / "a", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"new"}
