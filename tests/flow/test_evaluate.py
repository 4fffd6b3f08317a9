"""`vitrail evaluate MODEL DATA` as a person uses it."""

import json

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.randomise import randomise

CLASSES = ["ant", "bee", "cat", "dog", "elk", "fox"]


@pytest.fixture
def run(vitrail_command):
    return lambda *words: vitrail_command(*words, "--device", "cpu")


@pytest.fixture
def model(tmp_path):
    made = randomise(vitrail.create("mu/8", classes=6, image_size=16))
    made.class_names = CLASSES
    vitrail.save(made, tmp_path / "model")
    return tmp_path / "model"


def photos(folder, per_class=20, classes=CLASSES):
    rng = np.random.default_rng(0)
    for name in classes:
        (folder / "test" / name).mkdir(parents=True)
        for i in range(per_class):
            pixels = rng.integers(0, 256, (20, 24, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "test" / name / f"{i:02}.png")
    return folder


@pytest.fixture
def data(tmp_path):
    return photos(tmp_path / "photos")


def test_a_table_with_the_worst_classes(run, model, data):
    code, out, err = run("evaluate", model, data)
    assert code == 0, err
    words = " ".join(out.split())
    assert "photos:test" in words and "images 120" in words and "broken 0" in words
    assert all(row in words for row in ("top-1", "top-5", "loss", "ECE"))
    line = next(line for line in out.splitlines() if line.startswith("Worst classes: "))
    assert line.count("(n = 20)") == 5


def test_json_is_the_whole_result_and_out_keeps_it(run, model, data, tmp_path):
    code, out, err = run("evaluate", model, data, "--json", "--out", tmp_path / "new" / "result.json")
    assert code == 0, err
    made = json.loads(out)
    kept = json.loads((tmp_path / "new" / "result.json").read_text())
    mistakes = kept.pop("mistakes")
    assert kept == made and len(mistakes) == made["wrong"] == 120 - round(120 * made["top1"])
    assert all((data / one["key"]).parent.name == one["true"] != one["predicted"] for one in mistakes)
    assert made["data"] == "photos:test" and made["model"] == str(model)
    assert (made["n"], made["broken"], made["left_out"]) == (120, 0, 0)
    assert [one["name"] for one in made["per_class"]] == CLASSES
    correct = sum(one["correct"] for one in made["per_class"])
    assert made["top1"] == pytest.approx(correct / 120)
    assert sum(cell["n"] for cell in made["confusion"]) == 120
    diagonal = sum(cell["n"] for cell in made["confusion"] if cell["class"] == cell["predicted"])
    assert diagonal == correct and made["real"] is None


def test_out_is_never_overwritten(run, model, data, tmp_path):
    (tmp_path / "result.json").write_text("precious")
    code, out, err = run("evaluate", model, data, "--out", tmp_path / "result.json")
    assert (code, out) == (2, "") and "exists; nothing is overwritten" in err
    assert (tmp_path / "result.json").read_text() == "precious"


def test_a_broken_file_is_counted_and_named(run, model, data):
    (data / "test" / "cat" / "03.png").write_bytes(b"no pixels here")
    code, out, _ = run("evaluate", model, data)
    assert code == 0
    words = " ".join(out.split())
    assert "images 119" in words and "broken 1" in words and "Broken: " in words and "cat/03.png" in words
    for i in range(4, 8):
        (data / "test" / "cat" / f"{i:02}.png").write_bytes(b"no pixels here")
    code, out, err = run("evaluate", model, data)
    assert (code, out) == (2, "")
    assert "of 120 examples are broken" in err and err.count("\n") == 1


def test_other_classes_need_a_mapping(run, model, tmp_path):
    data = photos(tmp_path / "other", 3, ["beast", "insect", "plant"])
    code, out, err = run("evaluate", model, data)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "'beast', 'insect', 'plant'" in err and "--mapping FILE" in err
    (tmp_path / "m.json").write_text(json.dumps({"insect": ["ant", "bee"], "beast": [2, 3, 4, 5]}))
    code, out, err = run("evaluate", model, data, "--mapping", tmp_path / "m.json")
    assert code == 0, err
    words = " ".join(out.split())
    assert "images 6" in words and "left out: not in the mapping 3" in words


def test_real_labels(run, model, tmp_path):
    data = photos(tmp_path / "val", 2)
    for number, path in enumerate(sorted(data.rglob("*.png")), 1):
        path.rename(path.with_name(f"ILSVRC2012_val_{number:08}.png"))
    (tmp_path / "real.json").write_text(json.dumps([list(range(6))] * 10 + [[]] * 2))
    code, out, err = run("evaluate", model, data, "--real", tmp_path / "real.json")
    assert code == 0, err
    assert "ReaL 100.0% (69.2-100.0%, n = 10)" in " ".join(out.split())


def test_another_split_batch_and_image_size(run, model, data):
    code, out, err = run(
        "evaluate",
        model,
        data,
        "--split",
        "test[:2 per class]",
        "--batch-size",
        5,
        "--image-size",
        24,
        "--json",
    )
    assert code == 0, err
    assert json.loads(out)["n"] == 12


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--split", "train"], "has no split 'train'"),
        (["--batch-size", "0"], "batch_size must be at least 1"),
        (["--mapping", "nowhere.json"], "nowhere.json: a class mapping cannot be read: No such file"),
        (
            ["--real", "nowhere.json"],
            "nowhere.json: a file of reassessed labels cannot be read: No such file",
        ),
    ],
)
def test_bad_words_are_one_line(run, model, data, words, said):
    code, out, err = run("evaluate", model, data, *words)
    assert (code, out) == (2, "")
    assert said in err and err.startswith("error: ") and err.count("\n") == 1


def test_data_or_a_model_that_is_not_there(run, model, data):
    assert "no data set" in run("evaluate", model, "nowhere")[2]
    assert "no such file" in run("evaluate", "nowhere", data)[2]


def test_a_model_and_data_by_path_from_python(model, data):
    made = vitrail.evaluate(model, data)
    assert made.n == 120 and made.confusion.shape == (6, 6)
