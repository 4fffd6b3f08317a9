"""Pages of images: the right ones, in their places, and no file that stops it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.contact_sheet import MISSING, TILE, check_sheet, class_sheet, pair_sheet
from vitrail.data.sources import Source, open_source
from vitrail.errors import ConfigError

COLOURS = {"red": (250, 10, 10), "green": (10, 250, 10), "blue": (10, 10, 250)}


def save(colour: tuple[int, int, int], path: Path, size: tuple[int, int] = (40, 40)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    for name, colour in COLOURS.items():
        for number in range(6):
            save(colour, tmp_path / "set/train" / name / f"{number}.png")
    return open_source(tmp_path / "set", "train")


def pixels_of(path: Path, colour: tuple[int, int, int]) -> int:
    with Image.open(path) as page:
        return int((np.asarray(page) == colour).all(-1).sum())


def test_each_class_has_its_images(source: Source, tmp_path: Path) -> None:
    path = class_sheet(source, tmp_path / "new/sheet.png", per_class=4)
    for colour in COLOURS.values():
        assert pixels_of(path, colour) == 4 * TILE * TILE


def test_of_many_classes_some_are_shown(source: Source, tmp_path: Path) -> None:
    path = class_sheet(source, tmp_path / "sheet.png", classes=2, per_class=1)
    assert sorted(pixels_of(path, colour) for colour in COLOURS.values()) == [0, TILE * TILE, TILE * TILE]


def test_an_oblong_image_keeps_its_shape(tmp_path: Path) -> None:
    save(COLOURS["red"], tmp_path / "set/train/wide/0.png", size=(80, 40))
    path = class_sheet(open_source(tmp_path / "set", "train"), tmp_path / "sheet.png")
    assert pixels_of(path, COLOURS["red"]) == TILE * TILE // 2


def test_an_unreadable_image_is_a_grey_square(tmp_path: Path) -> None:
    save(COLOURS["red"], tmp_path / "set/train/red/0.png")
    (tmp_path / "set/train/red/1.png").write_bytes(b"not an image")
    path = class_sheet(open_source(tmp_path / "set", "train"), tmp_path / "sheet.png")
    assert pixels_of(path, COLOURS["red"]) == TILE * TILE
    assert TILE * TILE * 0.8 < pixels_of(path, MISSING) < TILE * TILE  # less the word that says so


def test_pairs_stand_beside_each_other(source: Source, tmp_path: Path) -> None:
    red, blue = (source.class_names.index(name) for name in ("red", "blue"))
    i, j = (int(np.flatnonzero(source.labels == label)[0]) for label in (red, blue))
    path = pair_sheet("pairs", [("a very long caption " * 20, source, i, source, j)], tmp_path / "pairs.png")
    with Image.open(path) as page:
        array = np.asarray(page)
    left = np.argwhere((array == COLOURS["red"]).all(-1))
    right = np.argwhere((array == COLOURS["blue"]).all(-1))
    assert left[:, 0].min() == right[:, 0].min()
    assert left[:, 1].max() < right[:, 1].min()


def test_a_page_without_pairs_can_be_drawn(tmp_path: Path) -> None:
    with Image.open(pair_sheet("nothing was found", [], tmp_path / "pairs.png")) as page:
        assert page.height > 0


def test_only_a_sheet_is_replaced(source: Source, tmp_path: Path) -> None:
    path = class_sheet(source, tmp_path / "sheet.png")
    first = path.read_bytes()
    assert class_sheet(source, path, per_class=1).read_bytes() != first
    save(COLOURS["red"], tmp_path / "photo.png")
    photo = (tmp_path / "photo.png").read_bytes()
    for draw in (
        lambda path: class_sheet(source, path),
        lambda path: pair_sheet("pairs", [], path),
        check_sheet,
    ):
        with pytest.raises(ConfigError, match=r"photo\.png exists and is not a contact sheet"):
            draw(tmp_path / "photo.png")
    assert (tmp_path / "photo.png").read_bytes() == photo
    assert sorted(file.name for file in tmp_path.iterdir()) == ["photo.png", "set", "sheet.png"]


def test_names_with_accents_are_no_boxes(tmp_path: Path) -> None:
    """A letter that the font lacks looks as every other one that it lacks."""
    drawn = set()
    for letter in "éñü":
        save(COLOURS["red"], tmp_path / f"set of {ord(letter)}" / "train" / letter / "0.png")
        path = class_sheet(open_source(tmp_path / f"set of {ord(letter)}", "train"), tmp_path / "sheet.png")
        with Image.open(path) as page:
            drawn.add(page.crop((0, 44, page.width, 64)).tobytes())
    assert len(drawn) == 3
