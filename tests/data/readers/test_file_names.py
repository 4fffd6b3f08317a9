"""Names of shards and what they tell; a list of names in flat arrays behaves as the list."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.readers.file_names import Names, find_shards, find_split_shards, has_shards, printable
from vitrail.errors import DataError


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def names(folder: Path, suffix: str = ".parquet") -> dict[str, list[str]]:
    return {
        split: [file.relative_to(folder).as_posix() for file in shards.files]
        for split, shards in find_shards(folder, suffix).items()
    }


def test_hugging_face_layouts(tmp_path: Path) -> None:
    flat = touch(
        tmp_path / "flat",
        "test-00000-of-00001.parquet",
        "train-00001-of-00002.parquet",
        "train-00000-of-00002.parquet",
    )
    assert names(flat) == {
        "train": ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"],
        "test": ["test-00000-of-00001.parquet"],
    }
    data = touch(tmp_path / "data-below", "data/val-00000-of-00001-0a1b2c.parquet", "README.md")
    assert names(data) == {"validation": ["data/val-00000-of-00001-0a1b2c.parquet"]}
    bare = touch(tmp_path / "bare", "00000-of-00002.parquet", "00001-of-00002.parquet")
    assert names(bare) == {"train": ["00000-of-00002.parquet", "00001-of-00002.parquet"]}
    folders = touch(tmp_path / "folders", "train/0001.parquet", "train/0000.parquet", "test/0000.parquet")
    assert names(folders) == {
        "train": ["train/0000.parquet", "train/0001.parquet"],
        "test": ["test/0000.parquet"],
    }


def test_webdataset_names(tmp_path: Path) -> None:
    folder = touch(
        tmp_path, "imagenet-val-000000.tar", *(f"imagenet-train-{i:06d}.tar" for i in (10, 2, 0)), ".x.tar"
    )
    assert names(folder, ".tar") == {
        "train": [f"imagenet-train-{i:06d}.tar" for i in (0, 2, 10)],
        "validation": ["imagenet-val-000000.tar"],
    }
    assert names(touch(tmp_path / "plain", "00000.tar", "00001.tar"), ".tar") == {
        "train": ["00000.tar", "00001.tar"]
    }
    assert list(names(touch(tmp_path / "one", "photos-00.tar"), ".tar")) == ["train"]


def test_numbers_in_the_stem_and_asking_by_the_stem(tmp_path: Path) -> None:
    folder = touch(tmp_path, "train800.parquet", "val200.parquet", "test.parquet")
    assert list(names(folder)) == ["train", "validation", "test"]
    assert find_split_shards(folder, ".parquet", "train800")[0] == "train"
    with pytest.raises(DataError, match="no split 'train900'"):
        find_split_shards(folder, ".parquet", "train900")
    touch(tmp_path, "train.parquet")
    assert list(names(folder)) == [
        "train",
        "validation",
        "test",
        "train800",
    ]  # two stems for train: each its own name


def test_stems_without_a_word(tmp_path: Path) -> None:
    assert list(names(touch(tmp_path / "one", "photos.parquet"))) == ["train"]
    assert list(names(touch(tmp_path / "two", "photos.parquet", "sketches.parquet"))) == [
        "photos",
        "sketches",
    ]


def test_missing_shards_are_named(tmp_path: Path) -> None:
    many = touch(tmp_path / "many", "train-00000-of-99999999999.parquet")
    with pytest.raises(
        DataError, match=r"99999999999 shards .* 1 files; missing: \[1, 2, 3, 4, 5, 6, 7, 8\]"
    ):
        find_shards(many, ".parquet")
    touch(tmp_path, "train-00000-of-00003.parquet", "train-00002-of-00003.parquet")
    with pytest.raises(DataError, match=r"3 shards .*missing: \[1\]"):
        find_shards(tmp_path, ".parquet")
    assert list(find_shards(tmp_path / "train-00002-of-00003.parquet", ".parquet")) == [
        "train"
    ]  # one file by itself


def test_folders_without_shards(tmp_path: Path) -> None:
    touch(tmp_path, "cat/a.jpg", "train/cat/a.jpg", "data/notes.txt")
    (tmp_path / "folder.tar").mkdir()
    assert not has_shards(tmp_path, ".parquet")
    assert not has_shards(tmp_path, ".tar")


def test_a_folder_that_is_not_there_has_no_shards(tmp_path: Path) -> None:
    assert not has_shards(tmp_path / "gone", ".tar")
    (tmp_path / "circle.tar").symlink_to(tmp_path / "circle.tar")
    assert not has_shards(tmp_path, ".tar")


@given(st.lists(st.binary(max_size=10)))
def test_as_the_list(words: list[bytes]) -> None:
    names = Names(words)
    assert list(names) == words
    assert len(names) == len(words)
    assert list(pickle.loads(pickle.dumps(names))) == words
    assert list(Names.from_arrays(names.bytes, names.ends)) == words
    for index in (-1, len(words)):
        with pytest.raises(IndexError):
            names[index]


def test_arrays_that_are_not_names() -> None:
    for ends in ([0, 5], [1, 3], [0, 2, 1, 3], []):
        with pytest.raises(ValueError, match="not the arrays"):
            Names.from_arrays(np.zeros(3, np.uint8), np.array(ends, np.int64))


@given(st.binary())
def test_printable_is_always_utf8(name: bytes) -> None:
    printable(name).encode()
    assert printable("é".encode()) == "é"
    assert printable(b"\xff") == "\\xff"
