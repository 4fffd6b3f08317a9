"""Image folders as sources: the layouts in which people keep images, how each is understood, and what is read."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.data.decode import decode
from vitrail.data.readers.folder import (
    FolderSource,
    find_classes,
    find_folder,
    find_layout,
    ignored_files,
    list_images,
)
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


def plant(root: Path, *names: str) -> Path:
    """Files, of which nobody looks at the bytes here; a name that ends in a slash is an empty folder."""
    for name in names:
        path = root / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()
    return root


TWO = ("cat/1.jpg", "cat/2.jpg", "dog/3.jpg")


def each(*folders: str) -> list[str]:
    return [f"{folder}{name}" for folder in folders for name in TWO]


SPLIT = {  # layout -> {split: the folder that holds its classes}; the classes are always cat and dog
    "as torchvision has it": (each("train/", "val/", "test/"), "train=train validation=val test=test"),
    "other words, other cases": (each("Training/", "VALID/", "Testing/"),
                                 "train=Training validation=VALID test=Testing"),
    "train alone": (each("train/"), "train=train"),
    "Kaggle's doubled folders": (each("seg_train/seg_train/", "seg_test/seg_test/"),
                                 "train=seg_train/seg_train test=seg_test/seg_test"),
    "and one without labels": ([*each("seg_train/seg_train/", "seg_test/seg_test/"), "seg_pred/seg_pred/9.jpg"],
                               "train=seg_train/seg_train test=seg_test/seg_test"),
    "and one without labels, flat": ([*each("seg_train/", "seg_test/"), "seg_pred/9.jpg"],
                                     "train=seg_train test=seg_test"),
    "half of them doubled": (each("train/", "test/test/"), "train=train test=test/test"),
    "three times": (each("train/train/train/", "val/"), "train=train/train/train validation=val"),
    "doubled, in another case": (each("Train/train/", "Val/"), "train=Train/train validation=Val"),
    "sets": (each("training_set/training_set/", "test_set/test_set/"),
             "train=training_set/training_set test=test_set/test_set"),
    "words within words": (each("TrainImages/", "ValImages/", "testset/"),
                           "train=TrainImages validation=ValImages test=testset"),
    "years": (each("train2017/", "val2017/"), "train=train2017 validation=val2017"),
    "one word whole, one within": (each("train/", "test_images/"), "train=train test=test_images"),
    "wrapped": (each("dataset/train/", "dataset/test/"), "train=dataset/train test=dataset/test"),
    "wrapped twice, with what archives leave": (
        [*each("archive/data/train/", "archive/data/val/"), "__MACOSX/archive/train/cat/1.jpg", "archive/README.md"],
        "train=archive/data/train validation=archive/data/val"),
    "wrapped by a name with a word in it": (each("my_train_data/train/", "my_train_data/test/"),
                                            "train=my_train_data/train test=my_train_data/test"),
    "wrapped within the splits": (each("train/images/", "test/images/"), "train=train/images test=test/images"),
    "whole words beside others": ([*each("train/", "val/", "train_aug/"), "extra/4.jpg"],
                                  "train=train validation=val"),
    "chest X-rays, which hold a second copy": (
        each("xray/train/", "xray/test/", "xray/val/", "xray/xray/train/", "xray/xray/test/"),
        "train=xray/train test=xray/test validation=xray/val"),
    "hidden and empty folders": ([*each("train/", "test/"), ".cache/x/1.jpg", "val/", "notes/"],
                                 "train=train test=test"),
    "test images without classes": ([*each("train/"), "test/9.jpg"], "train=train"),
    "test images without classes, doubled": ([*each("train/train/"), "test/test/9.jpg"], "train=train/train"),
}  # fmt: skip


@pytest.mark.parametrize("layout", SPLIT)
def test_layouts_with_splits(tmp_path: Path, layout: str) -> None:
    names, expected = SPLIT[layout]
    root = plant(tmp_path / "photos", *names)
    splits = dict(pair.split("=") for pair in expected.split())
    assert find_layout(root).splits == splits
    assert set(list_splits(root)) == set(splits)
    for split, folder in splits.items():
        source = open_folder(root, split, {})
        assert source.class_names == ["cat", "dog"]
        assert [source.key(i) for i in range(3)] == [f"{folder}/{name}" for name in TWO]
        assert folder in str(find_layout(root))


CLASSES = {  # layout -> the folder that holds the classes
    "one folder per class": (each(""), ""),
    "wrapped": (each("animals/"), "animals"),
    "wrapped in its own name": (each("photos/"), "photos"),
    "wrapped in its own name twice": (each("photos/photos/"), "photos/photos"),
    "a folder for the images of each class": (["cat/images/1.jpg", "cat/images/2.jpg", "dog/images/3.jpg"], ""),
    "each class doubled": (["cat/cat/1.jpg", "cat/cat/2.jpg", "dog/dog/3.jpg"], ""),
    "images and more of them in folders": (["cat/1.jpg", "cat/more/2.jpg", "dog/3.jpg"], ""),
    "annotations beside": (["cat/images/1.jpg", "cat/images/2.jpg", "cat/boxes/1.xml", "dog/images/3.jpg"], ""),
    "mixed with files, hidden folders and __MACOSX": (
        [*each(""), "readme.txt", "loose.jpg", ".git/x.jpg", "__MACOSX/cat/1.jpg"], ""),
}  # fmt: skip


@pytest.mark.parametrize("layout", CLASSES)
def test_layouts_without_splits(tmp_path: Path, layout: str) -> None:
    names, base = CLASSES[layout]
    found = find_layout(plant(tmp_path / "photos", *names))
    assert (found.base, found.splits) == (base, {})
    source = open_folder(tmp_path / "photos", "train", {"validation": "0", "test": "0"})
    assert (source.class_names, source.labels.tolist()) == (["cat", "dog"], [0, 0, 1])
    assert "2 class folders" in str(found)


def test_a_class_may_be_called_like_a_split(tmp_path: Path) -> None:
    for names in (
        ["train/1.jpg", "car/2.jpg"],
        ["train_station/1.jpg", "test_tube/2.jpg", "cat/3.jpg"],
        ["test_tube/1.jpg", "test_bench/2.jpg"],
        ["train_station/day/1.jpg", "train_station/2.jpg", "test_tube/3.jpg", "cat/4.jpg"],
    ):
        root = plant(tmp_path / str(len(names)) / names[0][:5], *names)
        assert find_layout(root).splits == {}
        classes = sorted({name.split("/")[0] for name in names})
        assert open_folder(root, "train", {"validation": "0", "test": "0"}).class_names == classes


QUESTIONS = {
    "breeds in species": ["dog/poodle/1.jpg", "dog/beagle/2.jpg", "cat/siamese/3.jpg", "cat/manx/4.jpg"],
    "one of them": ["dog/poodle/1.jpg", "dog/beagle/2.jpg", "cat/3.jpg"],
    "folds": each("fold1/", "fold2/"),
    "two folders for one split": each("a_train/", "b_train/"),
    "a part whose name says nothing": each("seg_train/", "seg_other/"),
    "three deep": ["a/x/cat/1.jpg", "a/x/dog/1.jpg", "a/y/cat/1.jpg", "b/x/cat/1.jpg", "b/y/cat/1.jpg"],
    "within a split": ["train/dog/poodle/1.jpg", "train/dog/beagle/2.jpg", "train/cat/3.jpg"],
    "one nested class called like a split": [
        "test_tube/a/1.jpg",
        "test_tube/b/2.jpg",
        "cat/3.jpg",
        "dog/4.jpg",
    ],
}


@pytest.mark.parametrize("layout", QUESTIONS)
def test_folders_that_hold_only_folders_are_a_question(tmp_path: Path, layout: str) -> None:
    root = plant(tmp_path / "photos", *QUESTIONS[layout])
    with pytest.raises(DataError, match=r"no images but \d folders of them .*\?classes=outer"):
        open_folder(root, "train", {})
    answered = open_folder(root, "train", {"classes": "outer"})
    inside = find_layout(root).splits.get("train", "")
    assert answered.class_names == sorted(path.name for path in (root / inside).iterdir())


@pytest.mark.parametrize(
    "names",
    [
        ["train/1.jpg", "test/2.jpg"],
        ["train/train/1.jpg", "test1/test1/2.jpg"],
        ["train_images/1.jpg", "test_images/2.jpg"],
        ["train/1.jpg"],
    ],
)
def test_splits_without_class_folders_say_what_is_missing(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(DataError, match=r"no class folders.*1 images lie in the folder itself"):
        open_folder(plant(tmp_path, *names), "train", {})


def test_folders_called_like_images(tmp_path: Path) -> None:
    root = plant(tmp_path, *each("set.jpg/train.png/", "set.jpg/test.png/"))
    assert find_layout(root).splits == {"train": "set.jpg/train.png", "test": "set.jpg/test.png"}


def test_two_folders_for_one_split(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="two folders for one split among"):
        find_layout(plant(tmp_path, *each("val/", "dev/")))


def test_what_lies_beside_the_splits_is_counted_at_any_depth(tmp_path: Path) -> None:
    root = plant(
        tmp_path, *each("train/", "test/"), "pred/pred/1.jpg", "pred/2.jpg", "extra/a/3.jpg", "notes/x.txt"
    )
    assert ignored_files(find_layout(root)) == Counter(
        {
            "an image in pred, a folder beside train, test": 2,
            "an image in extra, a folder beside train, test": 1,
        }
    )


def test_very_deep_folders_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="folders in folders"):
        find_layout(plant(tmp_path, "a/" * 300 + "b/1.jpg"))


def test_options(tmp_path: Path) -> None:
    root = plant(tmp_path, *each("train/", "test/"))
    assert len(open_folder(root, "train", {"classes": "outer"})) == 3
    with pytest.raises(ConfigError, match="has its own splits"):
        open_folder(root, "train", {"classes": "outer", "seed": "1"})
    with pytest.raises(ConfigError, match="classes=inner"):
        open_folder(root, "train", {"classes": "inner"})
    with pytest.raises(ConfigError, match="its options are: seed, validation, test, classes"):
        open_folder(root, "train", {"class": "outer"})


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")


def found(root: Path) -> tuple[list[str], Counter[str]]:
    skipped: Counter[str] = Counter()
    classes = find_classes(root, "", skipped)
    names, _ = list_images(root, enumerate(classes.values()), skipped)
    return list(map(os.fsdecode, names)), skipped


def test_any_depth_any_case_hidden_and_other_files(tmp_path: Path) -> None:
    for name in (
        "cat/b.JPG",
        "cat/deep/er/a.Png",
        "cat/.c.jpg",
        "cat/.git/d.jpg",
        "cat/e.txt",
        "cat/jpg",
        "dog/f.webp",
    ):
        write(tmp_path / name)
    write(tmp_path / "loose.jpg")
    write(tmp_path / ".hidden" / "x.jpg")
    images, skipped = found(tmp_path)
    assert images == ["cat/b.JPG", "cat/deep/er/a.Png", "dog/f.webp"]
    assert skipped == {
        "not an image by its extension (.txt)": 1,
        "not an image by its extension (no extension)": 1,
        "an image outside of the class folders (.jpg)": 1,
    }


def test_heic_is_named_with_what_to_do(tmp_path: Path, without_heif: None) -> None:
    for name in ("cat/a.jpg", "cat/b.HEIC", "loose.heic", "loose.txt"):
        write(tmp_path / name)
    (reason, count), *others = found(tmp_path)[1].items()
    assert reason.startswith("HEIC is not supported: convert to JPEG or PNG first") and reason.endswith(
        "(.heic)"
    )
    assert (count, others) == (2, [])


def test_flat_and_empty_folders_say_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no class folders.*empty"):
        found(tmp_path)
    write(tmp_path / "a.jpg")
    with pytest.raises(DataError, match=r"one sub-folder per class \(1 images lie in the folder itself\)"):
        found(tmp_path)
    write(tmp_path / "dog" / "a.txt")
    with pytest.raises(DataError, match=r"no class folder has an image; image files end in \.avif, \.bmp"):
        found(tmp_path)


def test_links_to_files_are_followed_and_links_to_folders_are_not(tmp_path: Path) -> None:
    root, outside = tmp_path / "set", tmp_path / "outside"
    write(outside / "real.jpg")
    write(root / "cat/a.jpg")
    (root / "cat/link.jpg").symlink_to(outside / "real.jpg")
    (root / "cat/nowhere.jpg").symlink_to(outside / "gone.jpg")
    (root / "cat/circle.jpg").symlink_to(root / "cat/circle.jpg")
    (root / "cat/up").symlink_to(root)
    (root / "cat/out").symlink_to(outside)
    (root / "cat/folder.jpg").symlink_to(outside)
    (root / "loop").symlink_to(root)
    os.mkfifo(root / "cat/pipe.jpg")
    images, skipped = found(root)
    assert images == ["cat/a.jpg", "cat/circle.jpg", "cat/link.jpg", "cat/nowhere.jpg"]
    assert skipped == {
        f"a link to a folder is not followed: {name}": 1
        for name in ("cat/up", "cat/out", "cat/folder.jpg", "loop")
    } | {"neither a file nor a folder: cat/pipe.jpg": 1}


def test_a_link_out_of_the_set_in_the_place_of_a_class_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "outside" / "a.jpg")
    write(tmp_path / "set/cat/a.jpg")
    (tmp_path / "set/dog").symlink_to(tmp_path / "outside")
    for look in (find_layout, found):
        with pytest.raises(
            DataError, match=r"dog: a link to a folder outside of the data set is not followed"
        ):
            look(tmp_path / "set")


def test_names_of_all_kinds(tmp_path: Path) -> None:
    long = "x" * 251 + ".jpg"
    nfd = unicodedata.normalize("NFD", "Käfer")
    write(tmp_path / nfd / "日本語 ñ.jpg")
    write(tmp_path / nfd / long)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")).mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9/\xff.jpg")).write_bytes(b"x")
    skipped: Counter[str] = Counter()
    classes = find_classes(tmp_path, "", skipped)
    assert list(classes) == ["Käfer", "caf\\xe9"]
    names, labels = list_images(tmp_path, enumerate(classes.values()), skipped)
    assert labels.tolist() == [0, 0, 1]
    assert names[2] == b"caf\xe9/\xff.jpg"


def test_one_class_in_two_unicode_forms(tmp_path: Path) -> None:
    for form in ("NFC", "NFD"):
        write(tmp_path / unicodedata.normalize(form, "é") / "a.jpg")
    with pytest.raises(DataError, match="two Unicode forms"):
        find_classes(tmp_path, "", Counter())


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users may enter, for tests that give up the rights of the super-user."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def as_nobody() -> Iterator[None]:
    """The super-user may read everything: step down for the time of the test."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_without_permission_is_an_error(public_folder: Path, request: pytest.FixtureRequest) -> None:
    write(public_folder / "cat/a.jpg")
    write(public_folder / "cat/closed/b.jpg")
    (public_folder / "cat/closed").chmod(0)
    request.getfixturevalue("as_nobody")
    with pytest.raises(DataError, match=r"closed: cannot be listed: Permission denied"):
        found(public_folder)
