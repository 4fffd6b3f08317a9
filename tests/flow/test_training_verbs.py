"""pretrain, finetune, runs and evaluate as a person uses them, one after the other; and what they refuse."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.randomise import randomise
from vitrail.checkpoints.bundle import seal_card

ROOT = Path(__file__).parents[2]
DATA = "shapes?image_size=16&n=80"
PRETRAIN = (
    "pretrain", "--data", DATA, "--model", "mu/8@16", "--train", "train[:90%]", "--val", "train[90%:]",
    "--batch-size", "8", "--warmup", "1", "--device", "cpu",
)  # fmt: skip
FINETUNE = ("finetune", "--data", DATA, "--device", "cpu")


@pytest.fixture
def run(vitrail_command):
    return vitrail_command


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def weights(folder):
    return vitrail.load(folder / "model").state_dict()


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def photos(folder, splits):
    """{split: {class: images}}."""
    rng = np.random.default_rng(0)
    for split, classes in splits.items():
        for name, count in classes.items():
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (16, 16, 3), np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{i}.png")
    return folder


def test_from_nothing_to_a_classifier(run, tmp_path, caplog):
    code, out, err = run(*PRETRAIN, "--steps", 3, "--test", "none", "--out", tmp_path / "pre", "--json")
    assert code == 0, err
    made = json.loads(out)
    assert made["folder"] == str(tmp_path / "pre")
    assert made["results"]["steps"] == 3 and made["results"]["val_split"] == "shapes:shape:train[90%:]"

    model = tmp_path / "pre/model"
    code, out, err = run(
        *FINETUNE, "--model", model, "--steps", 3, "--seeds", 2, "--out", tmp_path / "tuned", "--json"
    )
    assert code == 0, err
    tuned = json.loads(out)
    top1 = tuned["results"]["scores"]["top1"]
    assert len(top1["values"]) == 2 and tuned["results"]["test_examples"] == 20
    assert "3 steps of 8 images, 2 runs: about" in caplog.text

    code, out, err = run("evaluate", tmp_path / "tuned/model", DATA, "--json", "--device", "cpu")
    assert code == 0, err
    assert json.loads(out)["top1"] == top1["values"][0]

    code, out, err = run("runs", tmp_path, "--json")
    assert code == 0, err
    listed = {one["name"]: one for one in json.loads(out)["runs"]}
    assert {"pre", "tuned", "tuned/seeds/1"} <= listed.keys()
    assert listed["tuned/seeds/1"]["results"]["test.top1"] == top1["values"][1]

    code, out, _ = run(*FINETUNE, "--model", model, "--steps", 3, "--seeds", 2, "--out", tmp_path / "tuned")
    words = " ".join(out.split())  # finished: shown again, as a table
    values = ", ".join(f"{value:.1%}" for value in top1["values"])
    assert code == 0 and f"top-1 {top1['mean']:.1%} {top1['std']:.1%} {values}" in words
    assert f"vitrail predict {tmp_path / 'tuned/model'} IMAGE" in words


ONE_CLASS = {"train": {"ant": 6}, "val": {"ant": 2}}
ONE_IMAGE = {"train": {"ant": 6, "bee": 1, "cat": 6}, "val": {"ant": 2, "bee": 2, "cat": 2}}
OTHER_LABELS = {"train": {"ant": 6, "bee": 6}, "val": {"ant": 2, "cow": 2}}


def refused(answer, *said):
    """One clear line, and exit code 2."""
    code, out, err = answer
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ") and all(word in line for word in said), line


@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
@pytest.mark.parametrize(
    ("splits", "said"),
    [
        (None, ["no such path"]),
        (ONE_CLASS, ["one class", "ant"]),
        (OTHER_LABELS, ["classes that train does not have", "cow"]),
    ],
    ids=["missing folder", "one class", "other labels"],
)
def test_data_that_cannot_be_learned_from(run, tmp_path, verb, splits, said):
    folder = tmp_path / "photos" if splits is None else photos(tmp_path / "photos", splits)
    out = tmp_path / "run"
    own = ("--train", "train", "--val", "none", "--batch-size", 4) if verb == "pretrain" else ()
    words = (
        verb,
        "--data",
        folder,
        "--model",
        "mu/8@16",
        "--steps",
        2,
        "--out",
        out,
        "--device",
        "cpu",
        *own,
    )
    refused(run(*words), *said)
    assert not out.exists()


def test_classes_with_one_image(run, tmp_path):
    folder = photos(tmp_path / "photos", ONE_IMAGE)
    words = ("--data", folder, "--model", "mu/8@16", "--out", tmp_path / "run", "--device", "cpu")
    refused(run("finetune", *words), "1 classes have fewer than 2 images", "bee")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "command", [PRETRAIN, (*FINETUNE, "--model", "mu/8@16")], ids=["pretrain", "finetune"]
)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--batch-size", 1000), ["1000"]),
        (("--image-size", 20), ["image_size 20x20 is not a multiple of 8"]),
    ],
    ids=["batch", "image size"],
)
def test_what_does_not_fit(run, tmp_path, command, words, said):
    refused(run(*command, "--steps", 2, "--out", tmp_path / "run", *words), *said)
    assert not (tmp_path / "run").exists()  # it would refuse the corrected command


@pytest.fixture
def bundle(tmp_path):
    vitrail.save(randomise(vitrail.create("mu/8", classes=10, image_size=16)), tmp_path / "bundle")
    return tmp_path / "bundle"


def test_a_checkpoint_that_is_none(run, tmp_path, bundle):
    weights = bundle / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-40])
    refused(run(*FINETUNE, "--model", bundle, "--out", tmp_path / "run"), "model.safetensors")
    (tmp_path / "broken.npz").write_bytes(b"PK nothing")
    refused(run(*FINETUNE, "--model", tmp_path / "broken.npz", "--out", tmp_path / "run"), "broken.npz")
    refused(run("evaluate", tmp_path / "broken.npz", DATA, "--device", "cpu"), "broken.npz")
    refused(run(*FINETUNE, "--model", "ViT-Q/16", "--out", tmp_path / "run"), "ViT-Q/16")
    assert not (tmp_path / "run").exists()


def test_a_bundle_whose_weights_are_of_another_architecture(run, tmp_path, bundle):
    card = json.loads((bundle / "model.json").read_text())
    card["architecture"]["depth"] = 2
    (bundle / "model.json").write_text(json.dumps(seal_card(card, bundle / "model.safetensors")))
    refused(run(*FINETUNE, "--model", bundle, "--out", tmp_path / "run"), "encoder.blocks.1")
    assert not (tmp_path / "run").exists()


def test_a_run_whose_model_was_exchanged_is_not_continued(run, tmp_path, bundle):
    """The path is the same, what is at it now is not."""
    words = (*FINETUNE, "--model", bundle, "--steps", 2, "--test", "none", "--out", tmp_path / "run")
    assert run(*words)[0] == 0
    card = json.loads((tmp_path / "run/run.json").read_text())
    del card["results"]
    (tmp_path / "run/run.json").write_text(json.dumps(card))
    before = contents(tmp_path / "run/checkpoints")
    for path in bundle.iterdir():
        path.unlink()
    bundle.rmdir()
    vitrail.save(vitrail.create("mu/8", classes=10, image_size=16, width=64), bundle)
    refused(run(*words), "other weights")
    assert contents(tmp_path / "run/checkpoints") == before


def test_a_run_with_another_config_is_refused(run, tmp_path):
    words = (*PRETRAIN, "--out", tmp_path / "run", "--test", "none")
    assert run(*words, "--steps", 2)[0] == 0
    before = contents(tmp_path)
    refused(run(*words, "--steps", 3), "never overwritten", "training.steps is 2 there")
    refused(
        run(*FINETUNE, "--model", "mu/8@16", "--steps", 2, "--out", tmp_path / "run"), "never overwritten"
    )
    assert contents(tmp_path) == before


@pytest.fixture
def one_thread():
    """For bits that are to be compared between processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.long
def test_told_to_stop_and_started_again(run, tmp_path, one_thread):
    """SIGTERM in the middle of `vitrail pretrain`; the same command ends where nothing had happened."""
    words = [*PRETRAIN, "--steps", "80", "--log-every", "1", "--evaluate-every", "80", "--test", "none"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from vitrail.cli import main; main()", *words, "--out", str(tmp_path / "killed")],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    metrics = tmp_path / "killed/metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + signal.SIGTERM, ""), err
    assert "SIGTERM: saved at step" in err and "the same command again continues" in err
    assert not (tmp_path / "killed/model").exists()

    for name in ("whole", "killed"):
        code, _, err = run(*words, "--out", tmp_path / name)
        assert code == 0, err
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
