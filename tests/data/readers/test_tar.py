"""Tar shards as sources."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path

import pytest

from vitrail.data.readers import tar
from vitrail.data.readers.tar import open_tar
from vitrail.data.sources import open_source, splits_of
from vitrail.errors import ConfigError, DataError, ImageError


def put(path: Path, labels: list[object], first: int = 0) -> Path:
    """A shard whose images are the bytes of `image 0`, `image 1`, ... from `first` on; None: no image."""
    with tarfile.open(path, "w") as archive:
        for i, label in enumerate(labels, first):
            for extension, text in (("jpg", f"image {i}"), ("cls", str(label))):
                member = tarfile.TarInfo(f"{i:06d}.{extension}")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    put(tmp_path / "train-000000.tar", [0, 1, 2])
    put(tmp_path / "train-000001.tar", [1, 1], first=3)
    put(tmp_path / "val-000000.tar", [4])
    return tmp_path


def test_every_example_of_every_shard_in_order(shards: Path) -> None:
    assert splits_of(shards) == ["train", "validation"]
    source = open_tar(shards, "train")
    assert [source.read(i).image for i in range(5)] == [f"image {i}".encode() for i in range(5)]
    assert source.labels.tolist() == [0, 1, 2, 1, 1] == [source.read(i).label for i in range(5)]
    assert source.class_names == ["0", "1", "2", "3", "4"]  # numbers count over all splits
    assert (source.key(2), source.key(3)) == ("train-000000.tar:000002", "train-000001.tar:000003")
    with pytest.raises(IndexError):
        source.read(5)


def test_one_shard_by_itself(shards: Path) -> None:
    assert len(open_source(shards / "train-000001.tar")) == 2


def test_names_beside_and_names_as_labels(shards: Path, tmp_path: Path) -> None:
    (shards / "classes.txt").write_text("a\nb\nc\nd\ne\n")
    assert open_tar(shards, "train").class_names == ["a", "b", "c", "d", "e"]
    words = tmp_path / "words"
    words.mkdir()
    put(words / "train.tar", ["dog", "cat"])
    put(words / "test.tar", ["dog"])
    source = open_tar(words, "test")
    assert (source.class_names, source.labels.tolist()) == (["cat", "dog"], [1])
    put(words / "test.tar", ["cow"])
    with pytest.raises(DataError, match="none of the 2 classes: cow"):
        open_tar(words, "test")


def test_a_name_that_is_a_number_stays_a_name(tmp_path: Path) -> None:
    put(tmp_path / "train.tar", ["cat", "0", "2"])
    put(tmp_path / "test.tar", ["2", "0"])
    source = open_tar(tmp_path, "test")
    assert (source.class_names, source.labels.tolist()) == (["0", "2", "cat"], [1, 0])


def test_labels_beyond_the_names(shards: Path) -> None:
    (shards / "classes.txt").write_text("a\nb\n")
    with pytest.raises(DataError, match="1 of 5 labels are none of the 2 classes"):
        open_tar(shards, "train")


def test_an_empty_shard(tmp_path: Path) -> None:
    put(tmp_path / "train.tar", [])
    with pytest.raises(DataError, match="no examples"):
        open_tar(tmp_path, "train")


def test_broken_examples_keep_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = tmp_path / "train.tar"
    with tarfile.open(shard, "w") as archive:
        for name, data in {
            "0.cls": b"0",
            "1.cls": b"0",
            "1.jpg": b"",
            "2.cls": b"0",
            "2.jpg": b"x" * 100,
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    source = open_tar(tmp_path, "train")
    with pytest.raises(DataError, match=r"train\.tar:0: the example has a label but no image"):
        source.read(0)
    with pytest.raises(ImageError, match=r"train\.tar:1: an image of 0 bytes"):
        source.read(1)
    assert source.read(2).image == b"x" * 100
    monkeypatch.setattr(tar, "MAX_FILE_BYTES", 99)
    with pytest.raises(ImageError, match="an image of 100 bytes; 1 to 99 are read"):
        source.read(2)
    monkeypatch.undo()
    shard.write_bytes(shard.read_bytes()[: int(source.indexes[0].offsets[2]) + 50])  # cut after it was opened
    with pytest.raises(DataError, match=r"train\.tar:2: the shard was changed since it was opened"):
        source.read(2)
    shard.unlink()
    with pytest.raises(DataError, match="cannot be read: No such file"):
        source.read(2)


def test_compressed_shards_and_options_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train-0.tar.gz").touch()
    with pytest.raises(DataError, match="compressed tar shards have no random access"):
        open_source(tmp_path)
    with pytest.raises(ConfigError, match="has no option seed: it takes no options"):
        open_source(f"{put(tmp_path / 'a.tar', [0])}?seed=1")


def test_pickles_and_fingerprint(shards: Path) -> None:
    source = open_tar(shards, "train")
    again = pickle.loads(pickle.dumps(source))
    assert again.read(4) == source.read(4)
    before = source.fingerprint()
    assert again.fingerprint() == before
    put(shards / "train-000001.tar", [1, 1, 1], first=3)
    assert open_tar(shards, "train").fingerprint() != before
