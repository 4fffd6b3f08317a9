import json

import pytest

import vitrail
from tests.evaluators.split import named, small_model
from tests.inference.test_predict import broken_and_whole, saved_pictures


@pytest.fixture
def model(tmp_path):
    vitrail.save(small_model(class_names=named(7)), tmp_path / "model")
    return tmp_path / "model"


def test_predictions_are_written_and_counted(tmp_path, model, vitrail_command):
    broken_and_whole(tmp_path / "images")
    words = ["predict", model, tmp_path / "images", "--device", "cpu", "--out", tmp_path / "p.csv"]
    code, out, err = vitrail_command(*words, "--sort-into", tmp_path / "sorted", "--top", "2")
    assert (code, err) == (0, "") and "3 of 6" in out and "class " in out
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 7
    assert len(list((tmp_path / "sorted").glob("*/*.png"))) == 6
    code, out, _ = vitrail_command(*words, "--top", "2", "--json")
    result = json.loads(out)
    assert code == 0 and (result["rows"], result["unreadable"], result["done_before"]) == (6, 3, 6)
    assert sum(result["classes"].values()) == 3 and result["files"] == [str(tmp_path / "p.csv")]
    code, _, err = vitrail_command(*words, "--top", "3")
    assert code == 2 and "top" in err and "--out" in err


def test_images_of_which_none_can_be_read_have_rows_and_an_error(tmp_path, model, vitrail_command):
    paths = saved_pictures(tmp_path / "images", 2)
    for path in paths:
        path.write_bytes(b"scribbled over")
    code, _, err = vitrail_command("predict", model, *paths, "--out", tmp_path / "p.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert code == 2 and "2 of 2" in err and all("0" in row["error"] for row in rows)


def test_flags_without_out_are_refused(tmp_path, model, vitrail_command, monkeypatch):
    (picture,) = saved_pictures(tmp_path / "images", 1)
    for flags in (["--features"], ["--sort-into", tmp_path / "s"], ["--min-confidence", "0.5"]):
        code, _, err = vitrail_command("predict", model, picture, *flags)
        assert code == 2 and str(flags[0]) in err and "--out" in err
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = vitrail_command("predict", model, picture)
    assert code == 2 and "--out" in err
