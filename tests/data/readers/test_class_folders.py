"""The rules of finding images, case by case."""

from __future__ import annotations

import os
import shutil
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitrail.data.readers.folder_layout import find_classes, find_layout, list_images
from vitrail.errors import DataError


def put(path: Path, data: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


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
        put(tmp_path / name)
    put(tmp_path / "loose.jpg")
    put(tmp_path / ".hidden" / "x.jpg")
    images, skipped = found(tmp_path)
    assert images == ["cat/b.JPG", "cat/deep/er/a.Png", "dog/f.webp"]
    assert skipped == {
        "not an image by its extension (.txt)": 1,
        "not an image by its extension (no extension)": 1,
        "an image outside of the class folders (.jpg)": 1,
    }


def test_heic_is_named_with_what_to_do(tmp_path: Path) -> None:
    for name in ("cat/a.jpg", "cat/b.HEIC", "loose.heic", "loose.txt"):
        put(tmp_path / name)
    (reason, count), *others = found(tmp_path)[1].items()
    assert reason.startswith("HEIC is not supported: convert to JPEG or PNG first") and reason.endswith(
        "(.heic)"
    )
    assert (count, others) == (2, [])


def test_flat_and_empty_folders_say_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no class folders.*empty"):
        found(tmp_path)
    put(tmp_path / "a.jpg")
    with pytest.raises(DataError, match=r"one sub-folder per class \(1 images lie in the folder itself\)"):
        found(tmp_path)
    put(tmp_path / "dog" / "a.txt")
    with pytest.raises(DataError, match=r"no class folder has an image; image files end in \.avif, \.bmp"):
        found(tmp_path)


def test_links_to_files_are_followed_and_links_to_folders_are_not(tmp_path: Path) -> None:
    root, outside = tmp_path / "set", tmp_path / "outside"
    put(outside / "real.jpg")
    put(root / "cat/a.jpg")
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
    put(tmp_path / "outside" / "a.jpg")
    put(tmp_path / "set/cat/a.jpg")
    (tmp_path / "set/dog").symlink_to(tmp_path / "outside")
    for look in (find_layout, found):
        with pytest.raises(
            DataError, match=r"dog: a link to a folder outside of the data set is not followed"
        ):
            look(tmp_path / "set")


def test_names_of_all_kinds(tmp_path: Path) -> None:
    long = "x" * 251 + ".jpg"
    nfd = unicodedata.normalize("NFD", "Käfer")
    put(tmp_path / nfd / "日本語 ñ.jpg")
    put(tmp_path / nfd / long)
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
        put(tmp_path / unicodedata.normalize(form, "é") / "a.jpg")
    with pytest.raises(DataError, match="two Unicode forms"):
        find_classes(tmp_path, "", Counter())


@pytest.fixture
def open_folder() -> Iterator[Path]:
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


def test_a_folder_without_permission_is_an_error(open_folder: Path, request: pytest.FixtureRequest) -> None:
    put(open_folder / "cat/a.jpg")
    put(open_folder / "cat/closed/b.jpg")
    (open_folder / "cat/closed").chmod(0)
    request.getfixturevalue("as_nobody")
    with pytest.raises(DataError, match=r"closed: cannot be listed: Permission denied"):
        found(open_folder)
