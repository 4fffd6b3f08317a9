"""The command line as a person uses it: what is shown, and one clear line with exit code 2 for bad input."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.checkpoints.google_files import filled, vit_shapes
from tests.randomise import randomise


@pytest.fixture
def run(vitrail_command):
    return vitrail_command


@pytest.fixture
def checkpoint(tmp_path):
    np.savez(tmp_path / "vit.npz", **filled(vit_shapes()))
    return tmp_path / "vit.npz"


@pytest.fixture
def photo(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def test_models_lists_the_papers(run):
    code, out, _ = run("models")
    assert code == 0
    assert "86,567,656" in out and "R152x4" in out
    listed = json.loads(run("models", "--json")[1])["models"]
    assert {"name": "B/16", "image_size": 224, "parameters": 86567656, "flops": 35127656448, "macs": 17563828224,
            "tokens": 197} in listed  # fmt: skip


def test_models_at_another_size_rounds_to_the_patch(run):
    listed = {
        row["name"]: row["image_size"]
        for row in json.loads(run("models", "--image-size", 384, "--json")[1])["models"]
    }
    assert (listed["B/16"], listed["H/14"]) == (384, 378)


def test_cost_has_the_papers_bill(run):
    made = json.loads(run("cost", "L/16", "--epochs", 14, "--utilisation", 0.43, "--json")[1])
    assert made["pretraining_exaflops"] == pytest.approx(1567, rel=0.01)
    assert made["accelerator_days"] == pytest.approx(680, rel=0.03)
    assert "304,326,632" in run("cost", "L/16")[1]


@pytest.mark.parametrize(
    ("words", "name", "size"),
    [
        (["B/16@384"], "B/16@384", [384, 384]),
        (["B/16@384", "--image-size", 224], "B/16@224", [224, 224]),
        (["B/16", "--image-size", 224, 448], "B/16@224x448", [224, 448]),
    ],
)
def test_cost_is_headed_by_the_size_that_it_is_of(run, words, name, size):
    made = json.loads(run("cost", *words, "--json")[1])
    assert (made["model"], made["image_size"]) == (name, size)
    assert run("cost", *words)[1].split()[0] == name


def test_cost_of_a_file_is_that_of_its_architecture(run, checkpoint, tmp_path):
    vitrail.save(vitrail.load(checkpoint), tmp_path / "model")
    (tmp_path / "run.json").touch()  # a run's folder
    (tmp_path / "model" / "model.safetensors").unlink()  # the card of a bundle is enough
    wanted = sum(p.numel() for p in vitrail.load(checkpoint).parameters())
    for model in (checkpoint, tmp_path / "model", tmp_path):
        code, out, err = run("cost", model, "--json")
        assert code == 0, err
        assert (json.loads(out)["parameters"], json.loads(out)["model"]) == (wanted, str(model))


@pytest.mark.parametrize("to", ["bundle", "npz", "timm", "huggingface", "torchvision"])
def test_convert_and_predict(run, checkpoint, photo, tmp_path, to):
    there = tmp_path / {"npz": "b.npz", "torchvision": "b.pth"}.get(to, "b")
    code, out, _ = run("convert", checkpoint, there, "--to", to)
    assert code == 0
    assert "width 24, depth 2" in out
    code, out, err = run("predict", there, photo, "--top", 2, "--heads", 3, "--json", "--device", "cpu")
    assert code == 0, err
    (image,) = json.loads(out)["images"]
    assert image["path"] == str(photo)
    assert [set(row) for row in image["top"]] == [{"name", "probability"}] * 2


def test_predict_shows_a_table_and_says_that_names_are_indices(run, checkpoint, photo):
    code, out, _ = run("predict", checkpoint, photo)
    assert code == 0
    assert "5 classes: these are indices" in out
    assert out.count("%") == 5


def test_predict_with_class_names(run, checkpoint, photo, tmp_path):
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\ndog\nelk\n")
    code, out, _ = run("predict", checkpoint, photo, "--class-names", tmp_path / "names.txt")
    assert code == 0
    assert all(name in out for name in ("ant", "bee", "cat", "dog", "elk"))
    (tmp_path / "names.txt").write_text("ant\n")
    assert run("predict", checkpoint, photo, "--class-names", tmp_path / "names.txt")[0] == 2


def test_predict_names_imagenet_classes(run, photo, tmp_path):
    vitrail.save(randomise(vitrail.create("mu/8", image_size=16)), tmp_path / "m")
    out = json.loads(run("predict", tmp_path / "m", photo, "--top", 1000, "--json")[1])
    names = {row["name"] for row in out["images"][0]["top"]}
    assert {"tench", "golden retriever", "toilet tissue"} <= names


def test_predict_takes_folders_and_patterns_and_goes_on_past_a_broken_file(run, checkpoint, photo, tmp_path):
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    for name in ("b.png", "a.png", "deep/c.png"):
        (folder / name).write_bytes(photo.read_bytes())
    (folder / "broken.jpg").write_text("not an image")
    code, out, err = run("predict", checkpoint, folder, tmp_path / "pho*.png", "--json")
    found = [image["path"].removeprefix(f"{tmp_path}/") for image in json.loads(out)["images"]]
    assert found == ["photos/a.png", "photos/b.png", "photos/deep/c.png", "photo.png"]
    assert code == 2
    assert "broken.jpg" in err and err.count("\n") == 1


def truncated(path):
    path.write_bytes(path.read_bytes()[:-100])


def pickled(path):
    np.savez(path, a=np.array([{}], dtype=object))


def without(key):
    return lambda path: np.savez(path, **{k: a for k, a in filled(vit_shapes()).items() if k != key})


def with_extra(path):
    np.savez(path, **filled(vit_shapes()), extra_key=np.zeros(2, np.float32))


def with_wrong_shape(path):
    np.savez(path, **(filled(vit_shapes()) | {"embedding/bias": np.zeros(3, np.float32)}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncated, "not a whole .npz file"),
        (lambda path: path.write_text("hello"), "not a whole .npz file"),
        (pickled, "pickled Python objects"),
        (without("head/bias"), "missing head/bias"),
        (with_extra, "extra extra_key"),
        (with_wrong_shape, "embedding/bias is [3]"),
        (lambda path: path.unlink(), "no such file"),
    ],
)
def test_a_bad_checkpoint_is_one_line_and_nothing_is_written(run, checkpoint, tmp_path, damage, said):
    damage(checkpoint)
    before = set(tmp_path.rglob("*"))
    code, out, err = run("convert", checkpoint, tmp_path / "new")
    assert (code, out) == (2, "")
    assert said in err and err.startswith("error: ") and err.count("\n") == 1
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cost", "B/16", "--image-size", "225"], "not a multiple of 16"),
        (["cost", "ViT-Q/16"], "unknown model 'ViT-Q/16'; did you mean"),
        (["cost", "foo"], "unknown model 'foo'"),
        (["cost", "B/16@0"], "image_size=(0, 0): a side must have at least 1 pixel"),
        (["cost", "B/16", "--peak-tflops", "0"], "the peak must be finite and above 0, not 0 TFLOP/s"),
        (["cost", "B/16", "--utilisation", "2"], "utilisation must be in (0, 1], not 2"),
        (["cost", "B/16", "--epochs", "-1"], "epochs must be finite and at least 0, not -1"),
        (["cost", "B/16", "--examples", "-1"], "examples must be at least 0, not -1"),
        (["pretrain", "--model", "ti8-46", "--dry-run"], "did you mean ti8-64"),
        (["pretrain", "--dry-run", "--steps", "0"], "steps 0: a run has at least 1"),
        (["cost", "B/16", "--batch-size", "0"], "batch_size must be at least 1, not 0"),
        (["pretrain"], "no data"),
        (["finetune"], "no data"),
        (["predict", "B/16", "x.png"], "name of an architecture"),
    ],
)
def test_bad_words_are_one_line(run, words, said):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert said in err and err.count("\n") == 1


def test_an_image_that_is_not_one(run, checkpoint, tmp_path):
    (tmp_path / "words.jpg").write_text("no pixels here")
    code, out, err = run("predict", checkpoint, tmp_path / "words.jpg")
    assert (code, out) == (2, "")
    assert "words.jpg" in err and err.count("\n") == 1


def test_a_device_that_is_not_there(run, checkpoint, photo):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    code, _, err = run("predict", checkpoint, photo, "--device", "cuda")
    assert code == 2
    assert "torch finds none" in err


def test_marks_in_names_are_shown_as_they_are(run, checkpoint, photo, tmp_path):
    (tmp_path / "br[/b]").mkdir(parents=True)
    (tmp_path / "br[/b]" / "[bold]x.png").write_bytes(photo.read_bytes())
    (tmp_path / "names.txt").write_text("x[/x]\n[red]b\nc\nd\ne\n")
    code, out, err = run("predict", checkpoint, tmp_path / "br[/b]", "--class-names", tmp_path / "names.txt")
    assert code == 0, err
    assert "[bold]x.png" in out and "x[/x]" in out and "[red]b" in out


def test_another_image_size_and_number_of_classes(run, checkpoint, tmp_path):
    code, out, err = run("convert", checkpoint, tmp_path / "b", "--image-size", 16, 24, "--classes", 7)
    assert code == 0, err
    assert "16x24" in out
    assert vitrail.load(tmp_path / "b").config.classes == 7
    assert run("convert", checkpoint, tmp_path / "c", "--image-size", 1, 2, 3)[0] == 2


def test_a_place_that_cannot_be_written_is_one_line(run, checkpoint):
    code, out, err = run("convert", checkpoint, "/dev/null/x")
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.parametrize("verb", ["knn", "fewshot", "inspect", "transfer", "data"])
def test_a_verb_for_one_process_says_so_under_torchrun(verb, run, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = run(verb, "ti8-64", "shapes")
    assert code == 2
    assert f"error: {verb} runs on one process" in err


@pytest.mark.parametrize(
    "words",
    [
        ["models"],
        pytest.param(["models", "--json"], marks=pytest.mark.long),
        pytest.param(["models", "--help"], marks=pytest.mark.long),
        pytest.param(["finetune", "--help"], marks=pytest.mark.long),
    ],
)
def test_a_reader_that_has_seen_enough(words):
    """As in `vitrail models | head`."""
    pytest.importorskip("tyro")
    command = [sys.executable, "-m", "vitrail", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1
