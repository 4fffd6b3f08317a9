"""`vitrail inspect` as a person uses it."""

import json
import os

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.inspection.looked_at import answering, bit, made, pictures
from vitrail.data.sources import open_source


@pytest.fixture
def run(vitrail_command, monkeypatch, tmp_path):
    """`vitrail inspect ...` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: vitrail_command("inspect", *words, "--device", "cpu")


@pytest.fixture
def photos(tmp_path):
    (tmp_path / "photos").mkdir()
    for i, picture in enumerate(pictures(3)):
        Image.fromarray(picture).save(tmp_path / "photos" / f"{i}.png")
    return tmp_path / "photos"


def test_figures_and_a_page(run, photos, tmp_path):
    vitrail.save(made("token"), tmp_path / "m")
    vitrail.save(made("hybrid"), tmp_path / "h")
    code, out, err = run("m", photos, "--out", "seen", "--beside", "h", "--closely", 1, "--json")
    assert code == 0, err
    result = json.loads(out)
    files = {p.name for p in (tmp_path / "seen").iterdir()}
    assert files == {
        "report.html",
        "filters.png",
        "positions.png",
        "attention_distance.png",
        "pca.png",
        "image-01.png",
        "image-01-heads.png",
    }
    assert set(result["attention_distance"]) == {"m", "h"}
    assert np.shape(result["attention_distance"]["m"]["pixels"]) == (1, 2)
    assert result["attention_distance"]["m"]["n"] == 3
    assert [len(one["top"]) for one in result["images"]] == [5]
    assert "seen/report.html" in run("m", photos, "--out", "seen")[1]  # again, to the same folder


def test_models_of_the_same_name_go_by_their_paths(run, photos, tmp_path):
    for folder in ("a", "b"):
        vitrail.save(made("token"), tmp_path / folder / "m")
    code, out, err = run("a/m", photos, "--beside", tmp_path / "b" / "m", "--closely", 0, "--json")
    assert code == 0, err
    assert set(json.loads(out)["attention_distance"]) == {"a/m", str(tmp_path / "b" / "m")}
    assert run("a/m", photos, "--beside", "a/m")[0] == 2


def test_a_model_beside_is_seen_at_the_same_size(run, photos, tmp_path):
    for name in ("a", "b"):
        vitrail.save(made("token"), tmp_path / name)
    code, out, err = run("a", photos, "--beside", "b", "--image-size", 64, "--closely", 0, "--json")
    assert code == 0, err
    seen = json.loads(out)["attention_distance"]
    assert seen["a"] == seen["b"]  # the same weights
    vitrail.save(made("hybrid"), tmp_path / "h")
    code, out, err = run("a", photos, "--beside", "h", "--image-size", 40)
    assert (code, out) == (2, "") and "--beside h: image_size 40x40 is not a multiple of 32" in err
    vitrail.save(vitrail.create("mu/8", image_size=32, heads=4, width=32), tmp_path / "c")
    assert run("a", photos, "--beside", "c", "--heads", 2)[0] == 0  # c says its own


def test_a_resnet_is_told_what_there_is_for_it(run, photos, tmp_path):
    vitrail.save(bit(), tmp_path / "m")
    code, out, err = run("m", photos / "0.png")
    assert code == 0, err
    assert "only the filters and the occlusion map exist." in out
    assert {p.name for p in (tmp_path / "inspection").iterdir()} == {
        "filters.png",
        "image-01.png",
        "report.html",
    }


def test_a_run_folder_and_a_data_set(run, tmp_path):
    source = open_source("shapes?n=40&image_size=32", "test")
    vitrail.save(answering(source), tmp_path / "run" / "model")
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "los')
    code, out, err = run("run", "--data", "shapes?n=40&image_size=32", "--closely", 3, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert {"training", "confusion", "right", "wrong", "attention_distance", "report"} <= set(result["files"])
    assert result["attention_distance"]["run"]["n"] == len(source)
    surest = result["images"][:2]
    assert all(one["true"] != one["top"][0]["name"] for one in surest)
    truths = {source.key(i): source.class_names[label] for i, label in enumerate(source.labels)}
    assert all(truths[one["name"]] == one["true"] for one in result["images"])
    assert len({one["name"] for one in result["images"]}) == 3


def test_images_are_seen_closely_evenly_and_go_by_their_paths(run, tmp_path):
    vitrail.save(made("token"), tmp_path / "m")
    for folder in ("ant", "bee", "cat"):
        (tmp_path / "photos" / folder).mkdir(parents=True)
        for i, picture in enumerate(pictures(3)):
            Image.fromarray(picture).save(tmp_path / "photos" / folder / f"{i}.png")
    code, out, err = run("m", tmp_path / "photos", "--closely", 3, "--json")
    assert code == 0, err
    assert [one["name"] for one in json.loads(out)["images"]] == ["ant/0.png", "bee/1.png", "cat/2.png"]
    assert json.loads(out)["attention_distance"]["m"]["n"] == 9


def test_a_run_within_a_fine_tuning_goes_by_both_names(run, tmp_path):
    vitrail.save(made("token"), tmp_path / "birds/seeds/0/model")
    (tmp_path / "birds/seeds/0/run.json").write_text("{}")
    for given in ("birds/seeds/0", "birds/seeds/0/model"):
        code, _, err = run(given)
        assert code == 0, err
        assert "<title>birds/seeds/0</title>" in (tmp_path / "inspection/report.html").read_text()


def test_other_classes_are_mapped(run, tmp_path):
    model = made("token")
    model.class_names = list("abcde")
    vitrail.save(model, tmp_path / "m")
    data = ("--data", "shapes?n=12&image_size=32", "--closely", 0)
    code, out, err = run("m", *data)
    assert (code, out) == (2, "") and "--mapping FILE" in err
    names = open_source("shapes?n=12&image_size=32", "test").class_names
    (tmp_path / "mapping.json").write_text(json.dumps({name: ["a", "b"] for name in names}))
    code, _, err = run("m", *data, "--mapping", "mapping.json")
    assert code == 0, err


def test_weights_alone(run, tmp_path):
    vitrail.save(made("token"), tmp_path / "m")
    code, out, _ = run("m")
    assert code == 0
    assert "need images" in out
    assert {p.name for p in (tmp_path / "inspection").iterdir()} == {
        "filters.png",
        "positions.png",
        "report.html",
    }


def test_a_broken_image_is_named_and_the_others_are_seen(run, photos, tmp_path):
    vitrail.save(made("token"), tmp_path / "m")
    (photos / "a.jpg").write_text("not an image")
    code, out, err = run("m", photos, "--closely", 1, "--json")
    assert code == 2
    assert "a.jpg" in err and err.count("\n") == 1
    assert json.loads(out)["attention_distance"]["m"]["n"] == 3
    code, out, err = run("m", photos / "a.jpg")
    assert (code, out) == (2, "") and "a.jpg" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "no such file"),
        (["B/16"], "name of an architecture"),
        (["m", "--closely", "-1"], "--closely must be at least 0"),
        (["m", "nowhere.png"], "nowhere.png"),
        (["nothing", "--out", "m/model.json"], "Not a directory"),  # said first: the rest takes long
    ],
)
def test_bad_words_are_one_line(run, tmp_path, words, said):
    vitrail.save(made("token"), tmp_path / "m")
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert said in err and err.count("\n") == 1


def test_pictures_of_the_users_are_not_replaced(run, photos, tmp_path):
    """Said before anything is loaded."""
    (photos / "0.png").rename(photos / "image-01.png")
    before = {p.name: p.read_bytes() for p in photos.iterdir()}
    code, out, err = run("nothing", photos / "image-01.png", "--out", photos)
    assert (code, out) == (2, "") and "image-01.png" in err
    assert {p.name: p.read_bytes() for p in photos.iterdir()} == before


def test_a_file_name_that_is_no_unicode(run, photos, tmp_path):
    name = os.fsdecode(b"caf\xe9\x1b[31m.png")
    (photos / "0.png").rename(photos / name)
    vitrail.save(made("token"), tmp_path / "m")
    code, out, err = run("m", photos / name, "--json")
    assert code == 0, err
    assert json.loads(out)["images"][0]["name"] == name
    assert r"caf\xe9\x1b[31m.png" in (tmp_path / "inspection" / "report.html").read_text()


def test_weights_that_are_no_numbers(run, vitrail_command, photos, tmp_path):
    model = made("token")
    model.head.classifier.bias.data[0] = float("nan")
    vitrail.save(model, tmp_path / "head")
    model.positions.table.data[...] = float("inf")
    vitrail.save(model, tmp_path / "all")
    for command in (["head", photos], ["all"]):
        code, out, err = run(*command)
        assert (code, out) == (2, "") and "not finite" in err and err.count("\n") == 1
    for more in ([], ["--json"]):
        code, out, err = vitrail_command("predict", "head", photos, "--device", "cpu", *more)
        assert (code, out) == (2, "") and "not finite" in err and err.count("\n") == 1
