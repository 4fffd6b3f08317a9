"""Folders whose names are bytes that are not UTF-8: each verb does its work, or says in one line that it cannot."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail

NAME = os.fsdecode(b"caf\xe9")
TRAINING = ("--steps", "2", "--batch-size", "4", "--device", "cpu")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Images in folders of such names and of others, and a model."""
    monkeypatch.chdir(tmp_path)
    try:
        Path(NAME).mkdir()
    except OSError:
        pytest.skip("this file system has no such names")
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in ("a", "b"):
            (tmp_path / "photos" / split / label).mkdir(parents=True)
            for i in range(6):
                pixels = rng.integers(0, 256, (16, 16, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "photos" / split / label / f"{i}.png")
    shutil.copytree("photos", f"{NAME}/photos")
    vitrail.save(vitrail.create("mu/8@16", classes=2), "model")
    shutil.copytree("model", f"{NAME}/model")
    return tmp_path


WORKS = {
    "inspect": ("data", "inspect", f"{NAME}/photos"),
    "evaluate": ("evaluate", "model", f"{NAME}/photos", "--json"),
    "predict": ("predict", "model", f"{NAME}/photos/train/a"),
    "knn": ("knn", "model", f"{NAME}/photos", "--k", "1", "--cache", f"{NAME}/cache"),
    "inspect a model": ("inspect", "model", f"{NAME}/photos/train/a/0.png", "--out", f"{NAME}/page"),
    "shard": ("data", "shard", f"{NAME}/photos", "shards"),
    "by a link": ("finetune", "--data", "link/photos", "--model", "model", "--out", "run", *TRAINING),
}
REFUSED = {
    "data of a run": ("finetune", "--data", f"{NAME}/photos", "--model", "model", "--out", "new", *TRAINING),
    "a run": ("finetune", "--data", "photos", "--model", "model", "--out", f"{NAME}/new", *TRAINING),
    "pretraining": ("pretrain", "--data", f"{NAME}/photos", "--model", "mu/8@16", "--out", "new", *TRAINING),
    "transfer": (
        "transfer",
        "model",
        "--data",
        f"{NAME}/photos",
        "--out",
        f"{NAME}/new",
        "--methods",
        "knn",
        "--k",
        "1",
    ),
    "shards": ("data", "shard", "photos", f"{NAME}/new"),
}


@pytest.mark.parametrize("name", WORKS)
def test_what_can_be_done_is_done(here, vitrail_command, name):
    (here / "link").symlink_to(here / NAME)
    code, out, err = vitrail_command(*WORKS[name])
    assert (code, "error" in err) == (0, False)
    out.encode()  # no half of a pair of surrogates


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_is_one_line(here, vitrail_command, name):
    code, out, err = vitrail_command(*REFUSED[name])
    assert (code, out) == (2, "")
    assert "UTF-8" in err and "caf\\xe9" in err and "Traceback" not in err
    assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1
    assert not list(here.rglob("run.json")) and not list(here.rglob("*.parquet"))


@pytest.mark.parametrize("words", [("predict", f"{NAME}/model", "photos/train/a/0.png"), ("runs", NAME)])
def test_a_model_or_a_run_of_such_a_name_gives_its_answer_or_one_line(here, vitrail_command, words):
    code, _, err = vitrail_command(*words)
    assert code == 0 or (code == 2 and err.startswith("error: ") and len(err.splitlines()) == 1)
