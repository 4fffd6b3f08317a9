"""Image folders as sources: how they are split, what is read, and what is wrong with them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.data.decode import decode
from vitrail.data.readers.folder import FolderSource, find_folder
from vitrail.data.readers.layout import list_images
from vitrail.data.sources import DataSet, list_splits, open_source
from vitrail.errors import ConfigError, DataError, ImageError


def open_folder(root: Path, split: str, options: dict[str, str]) -> FolderSource:
    source = find_folder(root, options).open(split)
    assert isinstance(source, FolderSource)
    return source


def put(path: Path, level: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3), (level, 2 * level, 3 * level)).save(path)
    return path


@pytest.fixture
def three_classes(tmp_path: Path) -> Path:
    """20 images of ants, 10 of bees, 30 of cats, in one folder per class."""
    for name, n in (("cat", 30), ("ant", 20), ("bee", 10)):
        for i in range(n):
            put(tmp_path / "set" / name / f"{i}.png", i)
    return tmp_path / "set"


def keys(source: FolderSource) -> list[str]:
    return [source.key(i) for i in range(len(source))]


def test_one_folder_is_split_by_a_seed_class_by_class(three_classes: Path) -> None:
    assert list_splits(three_classes) == ["train", "validation", "test"]
    splits = {split: open_folder(three_classes, split, {}) for split in ("train", "validation", "test")}
    assert {split: np.bincount(source.labels).tolist() for split, source in splits.items()} == {
        "train": [16, 8, 24],
        "validation": [2, 1, 3],
        "test": [2, 1, 3],
    }
    assert len({key for source in splits.values() for key in keys(source)}) == 60
    assert all(source.class_names == ["ant", "bee", "cat"] for source in splits.values())
    other = open_source(f"{three_classes}?seed=1")
    assert keys(other) != keys(splits["train"])  # type: ignore[arg-type]
    assert len(open_source(f"{three_classes}?validation=0&test=0.5", "test")) == 30
    with pytest.raises(DataError, match=r"no images for 'validation': 60 images in 3 classes"):
        open_source(f"{three_classes}?validation=0", "validation")


def test_a_folder_without_splits_is_listed_once(three_classes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[Path] = []

    def count(root: Path, *args: Any, **options: Any) -> Any:
        listed.append(root)
        return list_images(root, *args, **options)

    monkeypatch.setattr("vitrail.data.readers.folder.list_images", count)
    data = DataSet(three_classes)
    assert sum(len(data.part(split)) for split in data.splits) == 60
    assert listed == [three_classes]


@pytest.mark.parametrize("place", ["{}", "train/{}"])
def test_a_class_without_images_is_opened_only_where_asked_for(tmp_path: Path, place: str) -> None:
    put(tmp_path / place.format("ant") / "1.png")
    put(tmp_path / place.format("bee") / "2.png")
    for name in ("cow", "doe"):
        (tmp_path / place.format(name)).mkdir()
    with pytest.raises(DataError, match=r"cow: a class without images \(and 1 more\); fill it or remove it"):
        open_source(tmp_path)
    source = open_source(tmp_path, empty_classes=True)
    assert source.class_names == ["ant", "bee", "cow", "doe"]
    assert source.labels.tolist() == [0, 1]


def test_splits_as_they_are_share_the_classes_of_train(tmp_path: Path) -> None:
    for name in (
        "train/a/1.png",
        "train/b/2.png",
        "train/c/3.png",
        "val/c/4.png",
        "val/a/5.png",
        "test/b/6.png",
    ):
        put(tmp_path / name)
    assert list_splits(tmp_path) == ["train", "validation", "test"]
    validation = open_folder(tmp_path, "validation", {})
    assert keys(validation) == ["val/a/5.png", "val/c/4.png"]
    assert validation.labels.tolist() == [0, 2]
    assert validation.class_names == ["a", "b", "c"]
    with pytest.raises(ConfigError, match="has its own splits"):
        open_folder(tmp_path, "train", {"seed": "1"})
    put(tmp_path / "val/new/7.png")
    with pytest.raises(DataError, match="val: classes that train does not have: new"):
        open_folder(tmp_path, "train", {})


def test_missing_split_and_bad_options(three_classes: Path) -> None:
    with pytest.raises(DataError, match="no split 'extra'; it has: train, validation, test"):
        open_source(three_classes, "extra")
    (three_classes / "empty").mkdir()  # whatever is wrong with the files, which are not listed for it
    for path in three_classes.rglob("*.png"):
        path.unlink()
    with pytest.raises(DataError, match="no split 'extra'"):
        open_source(three_classes, "extra")
    for options in ("sed=1", "seed=x", "seed=-1", "validation=0.6&test=0.6", "test=-0.1", "test=nan"):
        with pytest.raises(ConfigError):
            open_source(f"{three_classes}?{options}")


def test_read_gives_the_bytes_and_the_key(three_classes: Path) -> None:
    source = open_folder(three_classes, "train", {})
    for index in (0, len(source) - 1):
        example = source.read(index)
        assert example.image == (three_classes / example.key).read_bytes()
        assert example.key == source.key(index)
        assert source.class_names[example.label] == example.key.split("/")[0]
    with pytest.raises(IndexError):
        source.read(len(source))


def test_a_broken_file_is_an_error_when_it_is_read(tmp_path: Path) -> None:
    for i in range(10):
        put(tmp_path / "train/cat" / f"{i}.png")
    (tmp_path / "train/cat/empty.png").write_bytes(b"")
    (tmp_path / "train/cat/gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "train/cat/text.jpg").write_text("I am not an image")
    source = open_folder(tmp_path, "train", {})
    index = {key: i for i, key in enumerate(keys(source))}
    with pytest.raises(ImageError, match=r"train/cat/empty\.png: the file is empty"):
        source.read(index["train/cat/empty.png"])
    with pytest.raises(DataError, match=r"train/cat/gone\.png: cannot be read: No such file"):
        source.read(index["train/cat/gone.png"])
    text = source.read(index["train/cat/text.jpg"])
    assert isinstance(text.image, bytes)
    with pytest.raises(ImageError, match=r"train/cat/text\.jpg"):
        decode(text.image, name=text.key)


def test_a_file_without_permission_keeps_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "train/cat/a.png").chmod(0)
    source = open_folder(tmp_path, "train", {})
    if os.geteuid() == 0:  # the super-user reads everything: answer as the system would to others

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("vitrail.data.bounded_files.FileIO", refuse)
    with pytest.raises(DataError, match=r"train/cat/a\.png: cannot be read: Permission denied"):
        source.read(0)


def test_an_endless_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "train/cat/a.png")
    monkeypatch.setattr("vitrail.data.sources.MAX_FILE_BYTES", 10)
    with pytest.raises(ImageError, match="bytes; at most 10 are read as one image"):
        open_folder(tmp_path, "train", {}).read(0)


def test_titles_of_classes(tmp_path: Path) -> None:
    put(tmp_path / "train/n01/a.png")
    put(tmp_path / "train/n02/a.png")
    (tmp_path / "classes.txt").write_text("n02\tgoose\nn01\tcrane\n")
    assert open_folder(tmp_path, "train", {}).class_names == ["crane", "goose"]


def test_fingerprint_follows_the_files(three_classes: Path) -> None:
    first = open_folder(three_classes, "train", {})
    assert first.fingerprint() == open_folder(three_classes, "train", {}).fingerprint()
    assert first.fingerprint() != open_folder(three_classes, "test", {}).fingerprint()
    before = first.fingerprint()
    (first.root / first.key(0)).write_bytes(b"other")
    assert first.fingerprint() != before


def test_pickles(three_classes: Path) -> None:
    source = open_folder(three_classes, "train", {})
    again = pickle.loads(pickle.dumps(source))
    assert again.read(3) == source.read(3)
    assert again.fingerprint() == source.fingerprint()


def test_what_is_ignored_beside_the_splits_is_counted_once(tmp_path: Path) -> None:
    for name in ("train/ant/a.png", "test/ant/b.png", "bee/c.png", "bee/d.png", "loose.png"):
        put(tmp_path / "set" / name)
    for name in ("train/ant/e.txt", "test/ant/f.txt", "notes/g.txt", "notes.txt"):
        path = tmp_path / "set" / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert DataSet(tmp_path / "set").reader.ignored() == {
        "an image in bee, a folder beside train, test": 2,
        "not an image by its extension (.txt)": 2,
        "an image outside of the class folders (.png)": 1,
    }
    assert DataSet("shapes").reader.layout == ""


def test_ignored_files_are_noted_once_and_by_the_first_process(
    three_classes: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    open_source(three_classes, "train")
    assert caplog.messages == []
    for i in range(3):
        put(three_classes / f"{i}.png")
    monkeypatch.setenv("RANK", "1")
    open_source(three_classes, "train")
    assert caplog.messages == []
    monkeypatch.setenv("RANK", "0")
    for split in ("train", "test", "train[:50%]"):
        open_source(three_classes, split)
    (said,) = caplog.messages
    assert "3 files are ignored: 3 x an image outside of the class folders (.png)" in said


def test_options(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for name in ("cat/1.png", "cat/2.png", "dog/3.png"):
        put(root / "train" / name)
        put(root / "test" / name)
    assert len(open_folder(root, "train", {"classes": "outer"})) == 3
    with pytest.raises(ConfigError, match="has its own splits"):
        open_folder(root, "train", {"classes": "outer", "seed": "1"})
    with pytest.raises(ConfigError, match="classes=inner"):
        open_folder(root, "train", {"classes": "inner"})
    with pytest.raises(ConfigError, match="its options are: seed, validation, test, classes"):
        open_folder(root, "train", {"class": "outer"})
