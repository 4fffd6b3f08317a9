"""The name of an included model, wherever the command line takes a model; nothing says where it is installed."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.checkpoints.included import ASSETS

DATA = "shapes?image_size=16&n=40"
TRAIN = ("--data", DATA, "--model", "ti8-64", "--image-size", 16, "--batch-size", 4, "--steps", 2)


@pytest.fixture
def run(vitrail_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))

    def succeed(*words):
        code, out, err = vitrail_command(*words, "--json", "--device", "cpu")
        assert code == 0, err
        return json.loads(out)

    return succeed


@pytest.fixture
def photo(tmp_path):
    return picture(tmp_path / "photo.png")


def picture(path, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (70, 90, 3), np.uint8)).save(path)
    return path


def written(folder):
    """Everything that can be read as text, below a folder."""
    kinds = {".json", ".jsonl", ".md", ".csv", ".html"}
    return "\n".join(p.read_text(encoding="utf-8") for p in folder.rglob("*") if p.suffix in kinds)


def test_models_lists_the_included_model(run, vitrail_command):
    (one,) = run("models")["included"]
    assert (one["name"], one["metrics"]) == ("ti8-64", vitrail.load("ti8-64").metrics)
    code, out, _ = vitrail_command("models")
    assert code == 0
    assert f"ti8-64, {one['about']}" in out
    assert "top-1 59.0% (58.0-60.0%, n = 10,000)" in out


def test_cost(run):
    made = run("cost", "ti8-64")
    assert made["parameters"] == sum(p.numel() for p in vitrail.load("ti8-64").parameters())
    assert (made["model"], made["image_size"]) == ("ti8-64", [64, 64])
    assert run("cost", "ti8-64", "--image-size", 96)["model"] == "ti8-64@96"


def test_predict(run, photo):
    made = run("predict", "ti8-64", photo, "--top", 3)
    assert made["model"] == "ti8-64"
    (image,) = made["images"]
    expected = vitrail.predict(vitrail.load("ti8-64"), photo, top=3)[0]
    assert [row["name"] for row in image["top"]] == [name for name, _ in expected]
    assert [row["probability"] for row in image["top"]] == pytest.approx([p for _, p in expected], rel=1e-4)


def test_evaluate_by_the_names_of_classes(run, tmp_path):
    names = vitrail.load("ti8-64").class_names[5:8]
    for i, name in enumerate(names * 2):
        picture(tmp_path / "photos" / "test" / name / f"{i}.png", i)
    made = run("evaluate", "ti8-64", "photos")
    assert (made["model"], made["n"], [one["name"] for one in made["per_class"]]) == ("ti8-64", 6, names)


def test_finetune_and_what_it_records(run, tmp_path):
    made = run("finetune", *TRAIN)
    assert made["folder"] == "runs/shapes-ti8-64"
    model = vitrail.load(tmp_path / made["folder"] / "model")
    assert (model.config.width, model.config.image_size, model.config.classes) == (192, (16, 16), 10)
    assert model.provenance["experiment"]["model"]["model"] == "ti8-64"
    assert model.provenance["start"] == vitrail.load("ti8-64").provenance
    assert '"ti8-64"' in written(tmp_path)
    assert str(ASSETS.parent) not in written(tmp_path)


def test_finetune_begins_with_its_weights(run, tmp_path):
    run("finetune", *TRAIN, "--tune", "head", "--out", "tuned")
    tuned, included = (vitrail.load(m).encoder.state_dict() for m in (tmp_path / "tuned/model", "ti8-64"))
    assert all(torch.equal(w, included[name]) for name, w in tuned.items())


def test_pretrain_goes_on_from_its_weights(run, tmp_path):
    made = run(
        "pretrain", *TRAIN, "--test", "none", "--val", "none", "--warmup", 0, "--lr", 1e-9, "--out", "more"
    )
    assert made["results"]["steps"] == 2
    more, included = vitrail.load(tmp_path / "more/model"), vitrail.load("ti8-64")
    assert (more.embedding.weight - included.embedding.weight).abs().max() < 1e-6
    assert run("pretrain", *TRAIN, "--dry-run")["parameters"] == sum(p.numel() for p in more.parameters())


def test_probes(run, tmp_path):
    assert run("knn", "ti8-64", DATA)["model"] == "ti8-64"
    assert run("fewshot", "ti8-64", DATA, "--shots", 1, "--seeds", 1)["model"] == "ti8-64"
    assert run("linear", "ti8-64", DATA, "--l2", 1)["model"] == "ti8-64"
    assert len(list((tmp_path / "cache").iterdir())) == 2  # train and test, computed once


def test_transfer(run, tmp_path):
    assert run("transfer", "ti8-64", "--data", DATA, "--methods", "knn", "--k", 5)["model"] == "ti8-64"
    assert str(ASSETS.parent) not in written(tmp_path / "runs/transfer-ti8-64")


def test_inspect(run, photo, tmp_path):
    assert list(run("inspect", "ti8-64", photo, "--closely", 0)["attention_distance"]) == ["ti8-64"]
    assert str(ASSETS.parent) not in written(tmp_path / "inspection")


def test_convert(run, tmp_path):
    assert run("convert", "ti8-64", "b.npz", "--to", "npz")["source"] == "ti8-64"
    assert vitrail.load(tmp_path / "b.npz").config.width == 192
    run("convert", "ti8-64", "half", "--precision", "float16")
    half, included = tmp_path / "half", ASSETS / "ti8-64"
    assert (half / "model.safetensors").read_bytes() == (included / "model.safetensors").read_bytes()
    assert json.loads((half / "model.json").read_text()) == json.loads((included / "model.json").read_text())
