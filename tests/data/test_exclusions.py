"""Training images to leave out: the file, and a source without them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.dedup import read_exclusions, write_exclusions
from vitrail.data.sources import open_source, splits_of
from vitrail.errors import ConfigError, DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split in ("train", "test"):
        for name in ("cats", "dogs"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(4):
                Image.fromarray(np.full((8, 8, 3), 40 * i, np.uint8)).save(
                    tmp_path / split / name / f"{i}.png"
                )
    return tmp_path


def test_a_source_leaves_out_what_the_file_names(folder: Path) -> None:
    whole = open_source(folder, "train")
    keys = [whole.key(1), whole.key(6)]
    head = {"train": "x", "split": "train", "images": 8, "fingerprint": whole.fingerprint()}
    write_exclusions(folder / "exclude.jsonl", head, [{"train": key} for key in keys])
    rest = open_source(f"{folder}?exclude={folder / 'exclude.jsonl'}", "train")
    assert [rest.key(i) for i in range(len(rest))] == [whole.key(i) for i in (0, 2, 3, 4, 5, 7)]
    assert rest.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert rest.class_names == whole.class_names
    assert len(open_source(f"{folder}?exclude={folder / 'exclude.jsonl'}", "train[:4]")) == 4
    assert len(open_source(f"{folder}?exclude={folder / 'exclude.jsonl'}", "test")) == 8
    assert splits_of(f"{folder}?exclude={folder / 'exclude.jsonl'}") == ["train", "test"]


def test_a_file_made_for_other_data_is_refused(folder: Path) -> None:
    write_exclusions(folder / "exclude.jsonl", {"train": "x"}, [{"train": "no/such.png"}])
    with pytest.raises(DataError, match=r"names images that .* does not have"):
        open_source(f"{folder}?exclude={folder / 'exclude.jsonl'}", "train")
    write_exclusions(folder / "exclude.jsonl", {"train": "x", "split": "train", "images": 9}, [])
    with pytest.raises(DataError, match=r"was made for 9 images of x, .* 8"):
        open_source(f"{folder}?exclude={folder / 'exclude.jsonl'}", "train")


def test_other_dates_are_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_exclusions(folder / "exclude.jsonl", {"split": "train", "images": 8, "fingerprint": "00"}, [])
    open_source(f"{folder}?exclude={folder / 'exclude.jsonl'}", "train")
    assert "other files or dates" in caplog.text


def test_a_file_that_names_nothing_leaves_out_nothing(folder: Path) -> None:
    write_exclusions(folder / "exclude.jsonl", {"train": "x"}, [])
    assert read_exclusions(folder / "exclude.jsonl")[1] == set()
    assert len(open_source(f"{folder}?exclude={folder / 'exclude.jsonl'}", "train")) == 8


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "line 1"),
        ('{"train": "a.png"}\n', "not a file of exclusions"),
        ("[]\n", "line 1"),
        ('{"format": "vitrail exclusions 1"}\n{"train": 5}\n', "line 2"),
        ('{"format": "vitrail exclusions 1"}\n{"test": "a.png"}\n', "line 2"),
        ('{"format": "vitrail exclusions 1"}\n{"train": "a.png"}\n{"train": "b\n', "line 3"),
        ('{"format": "vitrail exclusions 1"}\n' + "[" * 100_000, "line 2"),
        ("\xff\xfe", "exclusions"),
    ],
)
def test_a_file_that_is_not_one_is_refused_in_words(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "exclude.jsonl"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=says):
        read_exclusions(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        read_exclusions(tmp_path / "nowhere.jsonl")


def test_only_a_list_of_exclusions_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "exclude.jsonl"
    for name in ("first", "second"):
        write_exclusions(path, {"train": name}, [{"train": f"{name}.png"}])
    assert read_exclusions(path)[1] == {"second.png"}
    path.write_text("mine\n")
    with pytest.raises(ConfigError, match=r"exclude\.jsonl exists and is no list of exclusions"):
        write_exclusions(path, {}, [])
    assert path.read_text() == "mine\n"
