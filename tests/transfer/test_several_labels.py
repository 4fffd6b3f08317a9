"""Fine-tuning a model for several labels, from the photographs to what it answers."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.errors import ConfigError
from vitrail.evaluators.label_scores import evaluate_labels

CLASSES = ("blue", "green", "red")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Pictures with bright channels; a picture has the classes of these, maybe none."""
    folder, lines = tmp_path_factory.mktemp("photos"), []
    rng = np.random.default_rng(0)
    for i in range(240):
        on = rng.random(3) < 0.5  # red, green, blue
        pixels = np.where(on, 200, 30) + rng.normal(0, 15, (16, 16, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i:03}.png")
        labels = [name for name, one in zip(("red", "green", "blue"), on, strict=True) if one]
        lines.append(json.dumps({"file_name": f"{i:03}.png", "labels": labels}))
    (folder / "metadata.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    path = tmp_path_factory.mktemp("start") / "model"
    torch.manual_seed(0)
    vitrail.save(vitrail.create("mu/8", classes=7, image_size=16), path)
    return path


@pytest.fixture(scope="module")
def run(photos, start, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "run"
    settings = {"steps": 100, "batch_size": 16, "optimizer": "adamw", "lr": 0.003}
    return vitrail.finetune(photos, start, **settings, device="cpu", num_workers=0, out=out)


def test_a_model_learns_several_labels(photos, run):
    assert run.results["test"]["map"] > 0.95 and run.results["test"]["f1"] > 0.9
    model = run.model()
    assert model.calibration.multi_label and len(model.calibration.thresholds) == 3
    assert tuple(model.class_names) == CLASSES
    found = evaluate_labels(model, vitrail.data.sources.open_source(photos, "test"))
    assert found.map == pytest.approx(run.results["test"]["map"])
    assert [one["name"] for one in run.results["labels"]] == list(CLASSES)
    for page in ("README.md", "results.md"):
        assert (run.folder / page).is_file()


def test_its_answers_are_those_labels(photos, run):
    rows = [json.loads(line) for line in (photos / "metadata.jsonl").read_text().splitlines()][:40]
    answers = vitrail.predict(run.model(), [photos / row["file_name"] for row in rows])
    right = [sorted(one.answer) == sorted(row["labels"]) for one, row in zip(answers, rows, strict=True)]
    assert np.mean(right) > 0.8


def test_the_command_line_knows_it(photos, run, vitrail_command):
    code, out, _ = vitrail_command("evaluate", str(run.folder / "model"), str(photos), "--json")
    assert code == 0 and json.loads(out)["map"] == pytest.approx(run.results["test"]["map"])
    code, out, _ = vitrail_command("evaluate", str(run.folder / "model"), str(photos))
    assert code == 0 and "mAP" in out and "Lowest AP" in out


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"mixup": 0.2}, "mixup"),
        ({"loss": "softmax"}, "sigmoid"),
        ({"sweep": True}, "sweep"),
        ({"resident": True}, "resident"),
    ],
)
def test_what_does_not_fit_is_refused(photos, start, tmp_path, settings, problem):
    with pytest.raises(ConfigError, match=problem):
        vitrail.finetune(photos, start, steps=2, device="cpu", out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()
