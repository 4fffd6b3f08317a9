"""Tar shards as sources."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.readers import tar
from vitrail.data.readers.tar import build_index, open_tar, read_index
from vitrail.data.sources import list_splits, open_source
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
    assert list_splits(shards) == ["train", "validation"]
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


def put_members(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def test_members_become_examples(tmp_path: Path) -> None:
    long = "deep/" * 40 + "x"  # beyond the 100 characters of the oldest format
    shard = put_members(
        tmp_path / "a.tar",
        {
            "0.cls": b"3\n", "0.jpg": b"zero", "1.JPG": b"one", "1.json": b'{"label": 4}', "notes.txt": b"?",
            "d/2.png": b"two", "d/2.json": b'{"caption": "?", "cls": "cat"}', "3.cls": b"5", f"{long}.webp": b"long",
            f"{long}.cls": b"6", "4.left.png": b"four", "4.cls": b"7", ".hidden": b"",
        },
    )  # fmt: skip
    index = build_index(shard)
    assert list(index.keys) == [b"0", b"1", b"d/2", b"3", long.encode(), b"4"]
    assert list(index.labels) == [b"3", b"4", b"cat", b"5", b"6", b"7"]
    data = shard.read_bytes()
    found = [data[o : o + s] if o >= 0 else None for o, s in zip(index.offsets, index.sizes, strict=True)]
    assert found == [b"zero", b"one", b"two", None, b"long", b"four"]


def test_links_and_folders_are_passed_over(tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    with tarfile.open(shard, "w") as archive:
        for name, kind in (
            ("0.jpg", tarfile.SYMTYPE),
            ("1.jpg", tarfile.LNKTYPE),
            ("2.jpg", tarfile.DIRTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/hostname"
            archive.addfile(member)
    assert list(build_index(shard).keys) == []


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"0.jpg": b"", "1.jpg": b"", "1.cls": b"1"}, "1 of 2 examples have no label, first '0'"),
        ({"0.jpg": b"", "0.png": b"", "0.cls": b"1"}, "two images for '0'"),
        ({"0.jpg": b"", "0.json": b'{"label": 2}', "0.cls": b"1"}, "two labels for '0': '2' and '1'"),
        ({"0.jpg": b"", "0.json": b"{"}, "the label in '0.json' cannot be read"),
        ({"0.jpg": b"", "0.cls": b"\xff"}, "the label in '0.cls' cannot be read"),
        ({"0.jpg": b"", "0.json": b"[" * 100_000}, "the label in '0.json' cannot be read"),
        ({"0.jpg": b"", "0.cls": b" " * (1 << 21)}, "too many for a label"),
    ],
)
def test_examples_that_are_not_whole(tmp_path: Path, members: dict[str, bytes], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        build_index(put_members(tmp_path / "a.tar", members))


def test_a_file_that_ends_early_or_is_compressed(tmp_path: Path) -> None:
    shard = put_members(tmp_path / "a.tar", {"0.cls": b"1", "0.jpg": b"x" * 5000})
    whole = shard.read_bytes()
    shard.write_bytes(whole[:2500])
    with pytest.raises(DataError, match="not a whole, uncompressed tar file"):
        build_index(shard)
    with tarfile.open(shard, "w:gz"):
        pass
    with pytest.raises(DataError, match="not a whole, uncompressed tar file"):
        build_index(shard)


def test_the_index_is_kept_beside_and_built_again_when_the_shard_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shard = put_members(tmp_path / "a.tar", {"0.jpg": b"x", "0.cls": b"1"})
    assert list(read_index(shard).keys) == [b"0"]
    assert (tmp_path / "a.tar.index.npz").exists()
    built: list[Path] = []
    monkeypatch.setattr(tar, "build_index", lambda shard: built.append(shard) or build_index(shard))
    assert list(read_index(shard).labels) == [b"1"]
    assert built == []
    put_members(shard, {"9.jpg": b"x", "9.cls": b"2"})
    os.utime(shard, ns=(7, 7))
    assert list(read_index(shard).keys) == [b"9"]
    assert built == [shard]
    (tmp_path / "a.tar.index.npz").write_bytes(b"broken")
    assert list(read_index(shard).keys) == [b"9"]
    assert built == [shard, shard]
    assert not (tmp_path / "cache").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "a.tar.index.npz"]


def test_the_index_goes_to_the_cache_where_the_folder_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shard = put_members(tmp_path / "a.tar", {"0.jpg": b"x", "0.cls": b"1"})
    plain_open = Path.open

    def read_only(path: Path, mode: str = "r", *args: object, **options: object) -> object:
        if "w" in mode and path.parent == tmp_path:
            raise OSError(30, "Read-only file system")
        return plain_open(path, mode, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", read_only)
    assert list(read_index(shard).keys) == [b"0"]
    assert [path.suffix for path in (tmp_path / "cache/vitrail/tar").iterdir()] == [".npz"]
    monkeypatch.setattr(tar, "build_index", lambda shard: pytest.fail("the cached index was not used"))
    assert list(read_index(shard).keys) == [b"0"]


@pytest.mark.parametrize(
    "changed",
    [
        {"labels": np.frombuffer(b"\xff\xfe", np.uint8)},
        {"labels": np.frombuffer("é".encode(), np.uint8)},  # a character of two labels
        {"key_ends": np.array([0.0, 1, 2])},
        {"key_ends": np.zeros((2, 2), np.int64)},
        {"label_ends": np.array(0)},
        {"keys": np.array(5, np.uint8)},
        {"offsets": np.zeros((2, 2), np.int64)},
        {"offsets": np.array(["a", "b"])},
        {"offsets": np.array([np.nan, 1])},
        {"offsets": np.array([1e30, 1])},
        {"offsets": np.array([-5, 0])},
        {"offsets": np.array([0, 2**62])},
        {"sizes": np.array([2**62, 1])},
        {"sizes": np.array([1])},
        {"stamp": np.array([object()], dtype=object)},
        {"more": np.zeros(1 << 20, np.uint8)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_an_index_that_is_not_sound_is_built_again(tmp_path: Path, changed: dict[str, np.ndarray]) -> None:
    shard = put_members(tmp_path / "a.tar", {"0.jpg": b"x", "0.cls": b"1", "1.jpg": b"x", "1.cls": b"2"})
    whole = read_index(shard)
    with np.load(tmp_path / "a.tar.index.npz") as stored:
        arrays = {**stored, **changed}
    np.savez_compressed(tmp_path / "a.tar.index.npz", **arrays)
    again = read_index(shard)
    assert (list(again.labels), again.offsets.tolist()) == ([b"1", b"2"], whole.offsets.tolist())
    with np.load(tmp_path / "a.tar.index.npz") as stored:
        assert sorted(stored) == sorted(tar.ARRAYS)


@pytest.mark.parametrize("damage", ["header", "deflate", "pipe"])
def test_an_index_file_that_is_broken_is_built_again(tmp_path: Path, damage: str) -> None:
    shard = put_members(tmp_path / "a.tar", {"0.jpg": b"x", "0.cls": b"1"})
    index = tmp_path / "a.tar.index.npz"
    if damage == "pipe":
        os.mkfifo(index)
    else:
        header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,)}".ljust(117) + b"\n"
        with zipfile.ZipFile(index, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("stamp.npy", b"\x93NUMPY\x01\x00\x76\x00" + header)
        if damage == "deflate":
            index.write_bytes(index.read_bytes()[:45] + b"\xff" * 15 + index.read_bytes()[60:])
    assert list(read_index(shard).labels) == [b"1"]
    assert zipfile.is_zipfile(index)
