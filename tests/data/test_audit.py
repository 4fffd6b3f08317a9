"""What is in a data set, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.audit import Report, inspect_data
from vitrail.errors import ConfigError


def photo(seed: int, width: int = 64, height: int = 64) -> Image.Image:
    """A picture with the spectrum of photographs, 1/f in amplitude."""
    rng = np.random.default_rng(seed)
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)
    amplitude = 1 / np.maximum(np.hypot(fy, fx), 1 / max(width, height))
    values = np.fft.ifft2(np.fft.fft2(rng.standard_normal((height, width))) * amplitude).real
    return Image.fromarray(np.clip(128 + 45 * values / values.std(), 0, 255).astype(np.uint8)).convert("RGB")


def save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Every fault once: see the tests."""
    root = tmp_path / "faulty"
    for seed in range(12):
        save(photo(seed), root / "train/cat" / f"{seed:02}.png")
    save(photo(50, 100, 40), root / "train/dog/wide.png")
    save(photo(51).convert("L"), root / "test/cat/grey.png")
    save(photo(52), root / "test/dog/52.png")
    save(photo(2), root / "test/cat/leaked.png")  # the bytes of train/cat/02.png
    save(photo(3).crop((3, 3, 61, 61)), root / "test/dog/relabelled.png")  # a crop of train/cat/03.png
    (root / "test/cat/cut.png").write_bytes((root / "test/cat/grey.png").read_bytes()[:500])
    return root


@pytest.fixture
def report(folder: Path) -> Report:
    return inspect_data(folder)


def test_counts_and_sizes(report: Report) -> None:
    train, test = report.splits
    assert (train.name, train.images, train.class_names, train.counts) == (
        "train",
        13,
        ("cat", "dog"),
        (12, 1),
    )
    assert (test.images, test.counts) == (5, (3, 2))
    assert train.balance == 12
    assert train.width is not None
    assert (train.width.least, train.width.median, train.width.most) == (64, 64, 100)
    assert train.height is not None
    assert train.height.least == 40
    assert train.aspect is not None
    assert train.aspect.most == 2.5
    assert test.modes == {"RGB": 3, "L": 1}


def test_unreadable_files_are_named_with_the_reason(report: Report) -> None:
    train, test = report.splits
    assert train.unreadable == ()
    (cut,) = test.unreadable
    assert cut.key.endswith("cut.png")
    assert cut.reason


def test_files_are_decoded_to_their_last_row(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg", reason="without it, damage in the codes of a JPEG is not seen")
    for seed in range(4):
        save(photo(seed, 320, 320), tmp_path / "set/train/cat" / f"{seed}.jpg")
        save(photo(9 + seed, 320, 320), tmp_path / "set/train/dog" / f"{seed}.jpg")
    whole = (tmp_path / "set/train/cat/0.jpg").read_bytes()
    (tmp_path / "set/train/cat/0.jpg").write_bytes(whole[:-2000] + b"\xff\xd9")
    (tmp_path / "set/train/cat/1.jpg").write_bytes(whole[:5000] + whole[9096:])
    (tmp_path / "set/train/cat/2.jpg").write_bytes(whole[:5000] + bytes(4096) + whole[9096:])
    (split,) = inspect_data(tmp_path / "set").splits
    assert [file.key for file in split.unreadable] == [f"train/cat/{i}.jpg" for i in range(3)]
    assert all("damaged" in file.reason for file in split.unreadable)


def test_copies_across_splits_and_their_labels(report: Report) -> None:
    leaked, relabelled = report.copies
    assert (leaked.split, leaked.other_split, leaked.how, leaked.score) == ("train", "test", "bytes", 1)
    assert (Path(leaked.key).name, Path(leaked.other_key).name) == ("02.png", "leaked.png")
    assert not leaked.conflict
    assert relabelled.how == "near"
    assert (relabelled.class_name, relabelled.other_class_name) == ("cat", "dog")
    assert report.conflicts == (relabelled,)


def test_problems_are_said_in_words(report: Report) -> None:
    problems = "\n".join(report.problems)
    for part in (
        "2 of 5 images of test are also in train; pairs: 2",
        "pairs of copies with different labels: 1",
        "unreadable files in test: 1",
        "12.0 times the smallest",
    ):
        assert part in problems


def test_a_class_without_images_is_reported(folder: Path) -> None:
    (folder / "train/owl").mkdir()
    train, test = inspect_data(folder).splits
    assert train.class_names == test.class_names == ("cat", "dog", "owl")
    assert (train.counts, test.counts) == ((12, 1, 0), (3, 2, 0))
    report = inspect_data(folder)
    assert "classes without images in train: 1 (owl)" in report.problems


def test_copies_inside_a_split(folder: Path) -> None:
    save(photo(4).transpose(Image.Transpose.FLIP_LEFT_RIGHT), folder / "train/dog/again.png")
    inside = inspect_data(folder, splits=["train"]).copies
    assert [(Path(copy.key).name, Path(copy.other_key).name, copy.how) for copy in inside] == [
        ("04.png", "again.png", "mirrored")
    ]


def test_nothing_wrong_is_said_too(tmp_path: Path) -> None:
    for seed in range(6):
        save(photo(seed), tmp_path / "fine/train" / ("cat" if seed % 2 else "dog") / f"{seed}.png")
    report = inspect_data(tmp_path / "fine")
    assert report.problems == []
    assert report.copies == ()


def test_the_report_is_json(folder: Path, tmp_path: Path) -> None:
    report = inspect_data(folder, sheet=tmp_path / "sheet.png")
    again = json.loads(json.dumps(report.as_json()))
    assert again["splits"][0]["counts"] == [12, 1]
    assert again["problems"] == report.problems
    with Image.open(report.sheet or "") as sheet:
        assert sheet.width > 100


def test_something_must_be_inspected(folder: Path) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        inspect_data(folder, splits=[])


def test_a_picture_in_the_place_of_the_sheet_is_found_before_the_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.data.audit.scan", lambda *_, **__: pytest.fail("the data was read"))
    with pytest.raises(ConfigError, match=r"00\.png exists and is not a contact sheet"):
        inspect_data(folder, sheet=folder / "train/cat/00.png")


def test_images_that_leak_are_counted_and_not_pairs(folder: Path) -> None:
    """Of two pictures there are two in test, and of each three in train."""
    for seed in (60, 61):
        for place in ("train/dog/a", "train/dog/b", "train/dog/c", "test/dog/d"):
            save(photo(seed, 64 + seed % 2), folder / f"{place} {seed}.png")
    first = inspect_data(folder).problems[0]
    assert first.startswith("4 of 7 images of test are also in train; pairs: ")


def test_ignored_files_and_a_single_class_are_problems(tmp_path: Path) -> None:
    for seed in range(6):
        save(photo(seed), tmp_path / "set/cat" / f"{seed}.png")
    save(photo(7), tmp_path / "set/loose.png")
    report = inspect_data(tmp_path / "set", splits=["train"])
    ignored = "1 (1 x an image outside of the class folders (.png))"
    assert report.problems == [
        f"ignored files: {ignored}",
        "only one class (cat): there is nothing to classify",
    ]
    assert json.loads(json.dumps(report.as_json()))["ignored"] == {
        "an image outside of the class folders (.png)": 1
    }


def test_how_the_folder_was_understood_is_said(tmp_path: Path) -> None:
    for seed, name in enumerate(
        ("seg_train/seg_train/cat", "seg_train/seg_train/dog", "seg_test/seg_test/cat")
    ):
        save(photo(seed), tmp_path / name / "0.png")
    save(photo(9), tmp_path / "seg_pred/seg_pred/9.png")
    report = inspect_data(tmp_path)
    assert [(split.name, split.class_names) for split in report.splits] == [
        ("train", ("cat", "dog")),
        ("test", ("cat", "dog")),
    ]
    assert report.layout is not None
    for words in (
        "train is seg_train/seg_train, 2 class folders",
        "test is seg_test/seg_test, 1 class folder",
    ):
        assert words in report.layout
    assert report.as_json()["layout"] == report.layout
    assert any("an image in seg_pred, a folder beside" in problem for problem in report.problems)
    assert inspect_data("shapes?n=20", splits=["test"]).layout is None
