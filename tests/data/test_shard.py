"""Sharding: nothing lost, nothing changed, resumable to the byte, and only one data set per folder."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitrail.data import shard as module
from vitrail.data.decode import decode
from vitrail.data.shard import FORMAT, Manifest, shard
from vitrail.data.sources import Example, Source, open_source
from vitrail.errors import ConfigError, DataError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """12 noisy images of two classes, 8 of them for training."""
    rng = np.random.default_rng(0)
    for split, n in (("train", 8), ("test", 4)):
        for i in range(n):
            path = tmp_path / "photos" / split / ("cat", "dog")[i % 2] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (200, 300, 3), dtype=np.uint8)).save(
                path
            )  # (200, 300, 3), 180 KB
    return tmp_path / "photos"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_example_keeps_its_bytes_its_label_and_its_key(photos: Path, tmp_path: Path) -> None:
    report = shard(photos, tmp_path / "out", shard_mb=1)
    assert (report.shards, report.examples, report.broken, report.kept) == (1, 8, 0, 0)
    source, copy = open_source(photos), open_source(tmp_path / "out")
    assert copy.class_names == source.class_names
    assert np.array_equal(copy.labels, source.labels)
    assert [copy.read(i).image for i in range(8)] == [source.read(i).image for i in range(8)]
    rows = pq.read_table(tmp_path / "out" / "train-00000-of-00001.parquet").column("image").to_pylist()
    assert [row["path"] for row in rows] == [source.key(i) for i in range(8)]
    assert sorted(files(tmp_path / "out")) == [".shard-train.json", "train-00000-of-00001.parquet"]


def test_arrays_become_png_without_loss(tmp_path: Path) -> None:
    shard("shapes:count?n=40&image_size=32", tmp_path / "out")
    drawn, copy = open_source("shapes:count?n=40&image_size=32"), open_source(tmp_path / "out")
    for i in range(40):
        stored = copy.read(i).image
        assert isinstance(stored, bytes)
        assert stored.startswith(b"\x89PNG")
        assert np.array_equal(decode(stored), drawn.read(i).image)


def test_shards_and_row_groups_are_about_as_large_as_asked(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROW_GROUP_BYTES", 300_000)
    report = shard(photos, tmp_path / "out", split="train+test", shard_mb=1)
    assert (report.shards, report.examples) == (2, 12)
    for path in sorted((tmp_path / "out").glob("*.parquet")):
        assert 0.5e6 < path.stat().st_size < 1.5e6
        footer = pq.read_metadata(path)
        assert [footer.row_group(g).num_rows for g in range(footer.num_row_groups)] == [2, 2, 2]
    assert len(open_source(tmp_path / "out")) == 12


def test_broken_examples_are_left_out_and_listed(photos: Path, tmp_path: Path) -> None:
    (photos / "train/cat/empty.png").write_bytes(b"")
    (photos / "train/cat/gone.png").symlink_to("nowhere")
    whole = (photos / "train/cat/0.png").read_bytes()
    (photos / "train/dog/half.png").write_bytes(whole[: len(whole) // 2])
    (photos / "test/dog/text.jpg").write_text("not an image")
    report = shard(photos, tmp_path / "out")
    assert (report.examples, report.broken) == (8, 3)
    report = shard(photos, tmp_path / "out", split="test")
    assert (report.examples, report.broken) == (4, 1)
    listed = [json.loads(line) for line in (tmp_path / "out/bad_files.jsonl").read_text().splitlines()]
    assert [open_source(photos, entry["split"]).key(entry["index"]) for entry in listed] == [
        e["key"] for e in listed
    ]
    assert [(entry["split"], entry["key"]) for entry in listed] == [
        ("test", "test/dog/text.jpg"),
        ("train", "train/cat/empty.png"),
        ("train", "train/cat/gone.png"),
        ("train", "train/dog/half.png"),
    ]
    assert all(entry["key"] in entry["reason"] for entry in listed)
    assert len(open_source(tmp_path / "out", "train+test")) == 12
    unchecked = shard(photos, tmp_path / "unchecked", check=False)
    assert (unchecked.examples, unchecked.broken) == (9, 2)  # half an image is found only by decoding it


class Interrupted:
    """A source that stops the run when an example is read for the last time."""

    def __init__(self, base: Source, at: int) -> None:
        self.base, self.at, self.reads = base, at, 0
        self.name, self.class_names, self.labels = base.name, base.class_names, base.labels

    def __len__(self) -> int:
        return len(self.base)

    def key(self, index: int) -> str:
        return self.base.key(index)

    def read(self, index: int) -> Example:
        self.reads += 1
        if self.reads == self.at:
            raise KeyboardInterrupt
        return self.base.read(index)

    def fingerprint(self) -> str:
        return self.base.fingerprint()


@pytest.mark.parametrize("at", [13, 14, 18, 24])  # the first 12 reads plan the shards
def test_a_stopped_run_goes_on_and_ends_with_the_same_bytes(photos: Path, tmp_path: Path, at: int) -> None:
    (photos / "train/cat/empty.png").write_bytes(b"")
    source = open_source(photos, "train+test[:3]")
    assert len(source) == 12
    shard(source, tmp_path / "straight", shard_mb=1)
    with pytest.raises(KeyboardInterrupt):
        shard(Interrupted(source, at), tmp_path / "stopped", shard_mb=1)
    whole = [path for path in (tmp_path / "stopped").glob("*.parquet") if not path.name.startswith(".")]
    assert all(pq.read_metadata(path).num_rows in (5, 6) for path in whole)  # what has its name is whole
    report = shard(source, tmp_path / "stopped", shard_mb=1)
    assert report.kept == len(whole) < 2
    assert files(tmp_path / "stopped") == files(tmp_path / "straight")
    again = shard(source, tmp_path / "stopped", shard_mb=1)
    assert (again.kept, again.examples, again.broken) == (2, 11, 1)


def test_what_kills_left_goes_when_it_is_old(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("train-00000-of-00002.parquet", ".shard-train.json", "bad_files.jsonl", "holiday")
    folder = tmp_path / "out"
    folder.mkdir()
    for name in names:
        (folder / f".{name}.a1b2c3d4").touch()
    shard(photos, folder, shard_mb=1)
    assert all((folder / f".{name}.a1b2c3d4").exists() for name in names)  # they may still be written
    now = time.time()
    monkeypatch.setattr("vitrail.runtime.files.time.time", lambda: now + 3601)
    shard(photos, folder, shard_mb=1)
    assert [name for name in names if (folder / f".{name}.a1b2c3d4").exists()] == ["holiday"]


def test_a_shard_that_was_lost_or_cut_is_written_again(photos: Path, tmp_path: Path) -> None:
    shard(photos, tmp_path / "out", split="train+test", shard_mb=1)
    before = files(tmp_path / "out")
    (tmp_path / "out/train-00000-of-00002.parquet").unlink()
    (tmp_path / "out/train-00001-of-00002.parquet").write_bytes(b"cut")
    assert shard(photos, tmp_path / "out", split="train+test", shard_mb=1).kept == 0
    assert files(tmp_path / "out") == before


def test_a_folder_of_other_data_or_settings_is_refused(photos: Path, tmp_path: Path) -> None:
    shard(photos, tmp_path / "out")
    before = files(tmp_path / "out")
    with pytest.raises(
        DataError, match=r"'train' was made with other settings: photos:train, 8 examples, shard_mb 256"
    ):
        shard(photos, tmp_path / "out", shard_mb=1)
    os.utime(photos / "train/cat/0.png", ns=(1, 1))
    with pytest.raises(DataError, match="'train' was made from other data"):
        shard(photos, tmp_path / "out")
    with pytest.raises(DataError, match="its split 'train' has other classes than shapes"):
        shard("shapes?n=40&image_size=8", tmp_path / "out", split="test")
    assert files(tmp_path / "out") == before


def test_refused_before_anything_is_written(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is inside"):
        shard(photos, photos / "shards")
    with pytest.raises(ConfigError, match="shard_mb is 0"):
        shard(photos, tmp_path / "out", shard_mb=0)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/train-00000-of-00001.parquet").touch()
    with pytest.raises(DataError, match=r"train-00000-of-00001\.parquet was not written by this command"):
        shard(photos, tmp_path / "mine")
    for name in ("photo.jpg", "cat/photo.jpg"):
        theirs = tmp_path / f"theirs of {name.count('/')}"
        (theirs / name).parent.mkdir(parents=True)
        (theirs / name).touch()
        with pytest.raises(DataError, match=f"{name.split('/')[0]} was not written by this command"):
            shard(photos, theirs)
        assert sum(path.is_file() for path in theirs.rglob("*")) == 1
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/.shard-train.json").write_text("{}")
    with pytest.raises(DataError, match="not a manifest of shards"):
        shard(photos, tmp_path / "odd")
    assert not (photos / "shards").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content",
    [
        "mine\n",
        '{"index": 0, "key": "a", "reason": "b"}\n',
        '{"split": "t", "index": 0, "key": "a", "reason": ""}\n5',
    ],
)
def test_a_list_of_broken_files_that_is_not_ours_stays(photos: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/bad_files.jsonl").write_text(content)
    with pytest.raises(DataError, match=r"bad_files\.jsonl: line \d was not written by this command"):
        shard(photos, tmp_path / "out")
    assert {name: data.decode() for name, data in files(tmp_path / "out").items()} == {
        "bad_files.jsonl": content
    }


def test_all_broken_is_reported_not_raised(tmp_path: Path) -> None:
    (tmp_path / "set/train/cat").mkdir(parents=True)
    (tmp_path / "set/train/cat/a.jpg").write_bytes(b"")
    report = shard(tmp_path / "set", tmp_path / "out")
    assert (report.examples, report.broken) == (0, 1)
    with pytest.raises(DataError, match="no rows"):
        open_source(tmp_path / "out")


def test_names_that_are_not_utf8_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "set/train/cat"
    folder.mkdir(parents=True)
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.jpg")).write_bytes(b"")
    stream = BytesIO()
    Image.new("RGB", (2, 2)).save(stream, "PNG")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xfe.png")).write_bytes(stream.getvalue())
    assert shard(tmp_path / "set", tmp_path / "out").broken == 1
    assert json.loads((tmp_path / "out/bad_files.jsonl").read_text())["key"] == "train/cat/\\xff.jpg"


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
