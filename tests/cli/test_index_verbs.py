"""`vitrail index` and `vitrail search` as a person uses them."""

import json

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.evaluators.split import small_model


@pytest.fixture
def run(vitrail_command, monkeypatch, tmp_path):
    """Commands in a folder with a model and pictures in classes."""
    monkeypatch.chdir(tmp_path)
    vitrail.save(small_model(), "m")
    rng = np.random.default_rng(0)
    for name in ("[red]", "blue"):
        for i in range(12):
            (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 255, (20, 20, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return lambda *words: vitrail_command(*words, "--device", "cpu")


def test_an_index_is_made_and_searched(run, tmp_path):
    code, out, err = run("index", "photos", "--out", "i", "--model", "m", "--precision", "int8", "--json")
    assert code == 0, err
    assert json.loads(out)["images"] == 20
    query = tmp_path / "photos" / "[red]" / "3.png"
    code, out, err = run(
        "search", "i", query, "photos/blue", "--model", "m", "--top", 2, "--sheet", "s.png", "--json"
    )
    assert code == 0, err
    result = json.loads(out)
    assert [len(one["neighbours"]) for one in result["images"]] == [2] * 13
    assert {"key", "label_name", "similarity", "path", "row"} == set(result["images"][0]["neighbours"][0])
    with Image.open("s.png") as sheet:
        assert sheet.width > 3 * 96
    code, out, err = run("search", "i", query, "--model", "m")
    assert code == 0 and "[red]" in out, err


def test_images_that_cannot_be_read_are_named_at_the_end(run, tmp_path):
    run("index", "photos", "--out", "i", "--model", "m")
    (tmp_path / "broken.png").write_bytes(b"scribbled over")
    code, out, err = run("search", "i", "photos/blue/1.png", "broken.png", "--model", "m", "--json")
    assert code == 2 and "broken.png" in err
    assert len(json.loads(out)["images"]) == 1
    code, out, err = run("search", "i", "broken.png", "--model", "m")
    assert code == 2 and "broken.png" in err and not out


def test_the_model_has_to_be_that_of_the_index(run):
    run("index", "photos", "--out", "i", "--model", "m")
    code, _, err = run("search", "i", "photos/blue/1.png")
    assert code == 2 and "--model" in err  # a path in an index is not opened
    code, _, err = run("search", "i", "photos/blue/1.png", "--model", "ti8-64")
    assert code == 2 and "another model" in err


def test_the_included_model_needs_no_flag(run):
    run("index", "photos", "--out", "i", "--unlabelled", "--thumbnails", 0)
    code, out, err = run("search", "i", "photos/blue/1.png", "--top", 1, "--sheet", "s.png", "--json")
    assert code == 0, err
    (found,) = json.loads(out)["images"][0]["neighbours"]
    assert found["path"] == "photos/blue/1.png" and found["label_name"] is None


def test_a_sheet_replaces_no_other_picture(run, tmp_path):
    run("index", "photos", "--out", "i", "--model", "m")
    picture = tmp_path / "photos" / "blue" / "2.png"
    before = picture.read_bytes()
    code, _, err = run("search", "i", "photos/blue/1.png", "--model", "m", "--sheet", "photos/blue/2.png")
    assert code == 2 and "2.png" in err
    assert picture.read_bytes() == before
