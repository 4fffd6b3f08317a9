"""models, cost, convert, predict: whatever is wrong is one line and exit code 2."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vitrail
from tests.randomise import randomise
from vitrail.checkpoints.formats import FORMATS

FIELDS = {"width": 24, "depth": 2, "mlp_dim": 40, "heads": 3, "image_size": 16, "classes": 5}
SUFFIXES = {"npz": ".npz", "torchvision": ".pth"}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    vitrail.save(randomise(vitrail.create("B/8", **FIELDS)), tmp_path / "bundle")
    return tmp_path / "bundle"


def one_line(answer: tuple[Any, str, str]) -> str:
    """What is said of a user's mistake."""
    code, _, err = answer
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1, err
    return err


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """As on a full disk: no file gets more bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("to", [*FORMATS, "torchvision, safetensors"])
def test_a_full_disk(to: str, bundle: Path, tmp_path: Path, vitrail_command: Any) -> None:
    format, _, suffix = to.partition(", ")
    place = tmp_path / "out" / f"m{'.' + suffix if suffix else SUFFIXES.get(format, '')}"
    for most in (0, 3000, 20_000):
        with small_files(most):
            said = one_line(vitrail_command("convert", bundle, place, "--to", format))
        assert "large" in said and place.name in said
        assert not list((tmp_path / "out").iterdir())


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has only UTF-8 names")
@pytest.mark.parametrize("to", FORMATS)
def test_paths_that_are_no_text(to: str, bundle: Path, tmp_path: Path, vitrail_command: Any) -> None:
    """Bytes that are no UTF-8 in the names of folders and files, as old systems left them."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    place = folder / os.fsdecode(b"mod\xe8le" + SUFFIXES.get(to, "").encode())
    for word in ([], ["--json"]):
        code, out, err = vitrail_command("convert", bundle, place, "--to", to, *word)
        if word:
            assert "exists" in one_line((code, out, err))
        else:
            assert code == 0, err
    assert vitrail.load(place, heads=3).config.width == 24
    again = tmp_path / f"again-{to}"
    code, _, err = vitrail_command("convert", place, again, "--heads", 3)
    assert code == 0, err
    assert "mod" in json.dumps(vitrail.load(again).provenance) or to == "bundle"
    Image.new("RGB", (20, 20)).save(folder / "photo.png")
    words = ["predict", place, folder / "photo.png", "--heads", 3, "--json", "--device", "cpu"]
    code, out, err = vitrail_command(*words)
    assert code == 0, err
    assert json.loads(out)["images"]
    code, _, err = vitrail_command("cost", bundle if to == "torchvision" else place)
    assert code in (0, 2) and err.count("error") == (code == 2)
    assert "no such file" in one_line(vitrail_command("predict", folder / "nothing", folder / "photo.png"))


def change(answer: tuple[Any, str, str]) -> Any:
    code, out, err = answer
    assert code == 0, err
    return json.loads(out).get("change")


@pytest.mark.parametrize("to", [to for to in FORMATS if to != "bundle"])
def test_convert_measures_what_other_preprocessing_does(
    to: str, bundle: Path, tmp_path: Path, vitrail_command: Any
) -> None:
    words = ["convert", bundle, "--to", to, "--device", "cpu", "--json"]
    found = change(vitrail_command(*words, tmp_path / f"a{SUFFIXES.get(to, '')}"))
    assert found["images"] == 16 and 0 < found["largest"] < 1 and 0 <= found["labels"] <= 16
    Image.new("RGB", (40, 30), (200, 30, 90)).save(tmp_path / "one.png")
    found = change(
        vitrail_command(*words, tmp_path / f"b{SUFFIXES.get(to, '')}", "--sample", tmp_path / "one.png")
    )
    assert found["images"] == 1 and found["largest"] < 1e-2  # one colour is one colour however it is resized
    code, out, _ = vitrail_command(*words[:-1], tmp_path / f"c{SUFFIXES.get(to, '')}")
    assert code == 0 and "a probability changes by up to 0." in out


def test_nothing_is_measured_where_nothing_differs(
    bundle: Path, tmp_path: Path, vitrail_command: Any
) -> None:
    words = ["convert", bundle, "--device", "cpu", "--json"]
    assert change(vitrail_command(*words, tmp_path / "a")) is None
    assert change(vitrail_command(*words, tmp_path / "b", "--to", "timm", "--classes", 0)) is None
    line = "resize(16, pillow_bilinear)|uint8|normalize(0.5, 0.5)"
    assert change(vitrail_command(*words, tmp_path / "c", "--to", "timm", "--preprocess", line)) is None


def test_samples_that_cannot_be_read(bundle: Path, tmp_path: Path, vitrail_command: Any) -> None:
    words = ["convert", bundle, tmp_path / "m", "--to", "timm", "--device", "cpu", "--sample"]
    assert "no images there" in one_line(vitrail_command(*words, tmp_path / "nothing*.png"))
    assert not (tmp_path / "m").exists()
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    Image.new("RGB", (20, 20)).save(tmp_path / "whole.png")
    code, out, err = vitrail_command(*words, tmp_path / "broken.jpg", tmp_path / "whole.png")
    assert code == 2 and "broken.jpg" in err and "0 of 1 images" in out
    assert (tmp_path / "m").exists()
    words[2] = tmp_path / "again"
    assert "broken.jpg" in one_line(vitrail_command(*words, tmp_path / "broken.jpg"))
