"""The layouts in which people keep images in folders: how each is understood, and which files are its images."""

from __future__ import annotations

import os
import shutil
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.readers.test_folder import open_folder
from vitrail.data.readers.layout import find_classes, find_layout, ignored_files, list_images
from vitrail.data.sources import list_splits
from vitrail.errors import DataError


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
    write(tmp_path / "a.txt")
    with pytest.raises(DataError, match=r"no class folders.*\(no images\)"):
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
