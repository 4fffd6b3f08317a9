import os
from pathlib import Path

import pytest

from tests.evaluators.split import named, small_model
from tests.inference.test_predict import broken_and_whole, saved_pictures
from vitrail.errors import ConfigError, DataError
from vitrail.inference.bulk import predict_to
from vitrail.inference.predict import predict_each
from vitrail.inference.sort_images import folder_names, sort_images

HOSTILE = [
    "../../etc", "..", ".", "", "/abs", "a/b", "a\\b", "a\x00b", "new\nline", "~", "C:", "con", "CON.txt", "x" * 400,
    "Cat", "cat", "CAT", "cat ", "unsure", "unreadable", ".hidden", "caf\udce9", "e\u0301", "\u00e9", "-rf", "*",
    "\u202egnp", "é" * 200, "cat (15)", ".vitrail-sorted",
]  # fmt: skip


def test_no_class_name_leads_out_of_the_folder(tmp_path):
    inside = tmp_path / "in"
    inside.mkdir()
    folders = folder_names(HOSTILE)
    names = list(folders.values())
    assert len(folders) == len(HOSTILE)  # "unsure" is there anyway
    assert len({name.casefold() for name in names}) == len(names)
    for name in names:
        place = inside / name
        place.mkdir()
        assert place.resolve().parent == inside.resolve() and len(os.fsencode(name)) < 200
        assert name == name.strip(" .") and name.isprintable() and not name.startswith(".")
    assert sorted(path.name for path in inside.iterdir()) == sorted(names)
    assert list(tmp_path.iterdir()) == [inside]
    assert folder_names(["tabby cat", "n02123045 tabby"])["tabby cat"] == "tabby cat"


def links(folder):
    return {path.relative_to(folder).as_posix(): path.readlink() for path in folder.glob("*/*")}


def test_images_are_linked_by_class(tmp_path):
    model, paths = small_model(class_names=["../../out", *named(6)]), broken_and_whole(tmp_path / "images")
    sorted_into = tmp_path / "deep" / "sorted"
    predict_to(model, tmp_path / "images", tmp_path / "p.csv", sort_into=sorted_into)
    folders = folder_names(model.class_names)
    expected = {}
    for path, top in zip(paths, predict_each(model, paths, 1), strict=True):
        expected[f"{folders[top[0][0]] if isinstance(top, list) else 'unreadable'}/{path.name}"] = path
    assert links(sorted_into) == expected
    # A second call adds nothing; another job does not mix its images in.
    predict_to(model, tmp_path / "images", tmp_path / "p.csv", sort_into=sorted_into)
    assert links(sorted_into) == expected
    with pytest.raises(ConfigError, match="other files"):
        predict_to(model, paths[:1], tmp_path / "q.csv", sort_into=sorted_into)
    assert not (tmp_path / "q.csv").exists()


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_copies_are_made_from_every_format(tmp_path, kind):
    model = small_model(class_names=["two\nlines", 'a "quoted", name', *named(5)])
    paths = saved_pictures(tmp_path / "a", 6) + saved_pictures(tmp_path / "b", 6)
    paths[0].write_bytes(b"scribbled over")
    predict_to(
        model, paths, tmp_path / f"p.{kind}", sort_into=tmp_path / "s", sort_by="copy", rows_per_file=5
    )
    copies = [path for path in (tmp_path / "s").glob("*/*") if not path.name.startswith(".")]
    assert len(copies) == 12 and not any(path.is_symlink() for path in copies)
    assert sorted(path.read_bytes() for path in copies) == sorted(path.read_bytes() for path in paths)
    assert (tmp_path / "s" / "unreadable" / "00.png").read_bytes() == b"scribbled over"


def test_files_of_one_name_stay_apart_and_a_kill_is_completed(tmp_path):
    paths = []
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
        for name in ("1.png", "1 (1).png", "I.PNG"):
            paths.append(tmp_path / folder / name)
            paths[-1].write_text(str(paths[-1]))
    for by in ("link", "copy"):
        into = tmp_path / by
        with pytest.raises(ZeroDivisionError):  # killed after a few
            sort_images(
                [*map(str, paths)], (1 / 0 if i == 5 else "cat" for i in range(9)), into, ["cat"], by=by
            )
        for _ in range(2):
            sort_images([*map(str, paths)], ["cat"] * 9, into, ["cat"], by=by)
            assert sorted(one.read_text() for one in (into / "cat").iterdir()) == sorted(map(str, paths))


def test_nothing_is_written_through_a_link_or_over_a_file(tmp_path):
    (picture,) = saved_pictures(tmp_path / "images", 1)
    outside = tmp_path / "outside"
    outside.mkdir()
    sort_images([], [], tmp_path / "s", ["cat"])
    (tmp_path / "s" / "cat").symlink_to(outside)
    with pytest.raises(DataError, match="link"):
        sort_images([str(picture)], ["cat"], tmp_path / "s", ["cat"])
    assert not list(outside.iterdir())
    (tmp_path / "s" / "cat").unlink()
    (tmp_path / "s" / "cat").mkdir()
    (tmp_path / "s" / "cat" / picture.name).write_text("mine")
    for by in ("link", "copy"):
        with pytest.raises(FileExistsError):
            sort_images([str(picture)], ["cat"], tmp_path / "s", ["cat"], by=by)
    for place in (tmp_path / "images", picture):
        with pytest.raises(ConfigError, match="sort-into"):
            sort_images([str(picture)], ["cat"], Path(place), ["cat"])
