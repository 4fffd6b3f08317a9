"""An objective of a person's own, defined here alone: two crops of each image, a teacher that is an average of the
student, a loss between their representations, no labels. It trains by vitrail.pretrain, is killed and resumed."""

import copy
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitrail
from vitrail.data.loader import View
from vitrail.data.preprocess import parse
from vitrail.errors import ConfigError
from vitrail.evaluators.score import Score
from vitrail.objectives.objective import mean

HERE = Path(__file__)
SETTINGS = {
    "model": "mu/8@16", "train": "train[:80%]", "val": "train[80%:]", "batch_size": 8, "steps": 9, "warmup": 2,
    "evaluate_every": 3, "save_every": 2, "dropout": 0.1, "log_every": 1, "num_workers": 0, "device": "cpu",
}  # fmt: skip
DATA = "shapes?image_size=16&n=80"


@dataclass(frozen=True)
class TwoCrops:
    momentum_of_teacher: float = 0.9

    needs_labels: ClassVar[bool] = False

    def views(self, model, data):
        large = parse("inception_crop(16, area=(0.4, 1))|flip_lr|uint8|to_range(-1, 1)")
        small = parse("inception_crop(8, area=(0.05, 0.4))|flip_lr|uint8|to_range(-1, 1)")
        return {"large": View(large, count=2), "small": View(small)}

    def build(self, model):
        return TeacherAndStudent(model, self)

    def evaluators(self, module, val, data):
        return [self.distance(module)]

    def distance(self, module):
        def evaluator(model):
            pairs = zip(module.student.parameters(), module.teacher.parameters(), strict=True)
            yield Score("val_distance", sum(float((p - q).detach().abs().sum()) for p, q in pairs), 1)

        return evaluator


class TeacherAndStudent(nn.Module):
    def __init__(self, model, settings):
        super().__init__()
        self.student, self.settings = model, settings
        self.teacher = copy.deepcopy(model).requires_grad_(False)
        self.predictor = nn.Linear(model.config.width, model.config.width)

    def forward(self, batch):
        a, b = batch["large"].unbind(1)  # (B, 3, 16, 16) each
        with torch.no_grad():
            target = self.teacher.features(b)  # (B, D)
        losses = [
            1 - F.cosine_similarity(self.predictor(self.student.features(x)), target, dim=-1)
            for x in (a, batch["small"])
        ]
        each = sum(losses) / 2  # (B,)
        return mean(each, batch["weight"]), {"similarity": mean(1 - each.detach(), batch["weight"])}

    def backbone(self):
        return self.teacher

    @torch.no_grad()
    def after_update(self, step, steps):
        momentum = 1 - (1 - self.settings.momentum_of_teacher) * (1 - step / steps)
        for p, q in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            p.lerp_(q, 1 - momentum)


def train(folder, objective=None):
    return vitrail.pretrain(DATA, objective=objective or TwoCrops(), out=folder, **SETTINGS)


def content(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row.pop("images_per_second", None)
        row.pop("mfu", None)
    return rows, (folder / "model/model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run")


def test_it_trains_and_the_teacher_is_what_is_saved(whole):
    rows, _ = content(whole.folder)
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == 9 and losses[-1] < losses[0]
    assert all(-1 <= row["similarity"] <= 1 for row in rows if "similarity" in row)
    assert whole.results["val"]["val_distance"] > 0 and whole.results["test"] is None
    fresh = vitrail.create("mu/8@16", classes=0).state_dict()
    saved = whole.model().state_dict()
    assert saved.keys() == fresh.keys()
    config = json.loads((whole.folder / "run.json").read_text())["config"]["objective"]
    assert config == {"name": f"{TwoCrops.__module__}.TwoCrops", "momentum_of_teacher": 0.9}


def test_the_model_can_be_used_at_once(whole):
    tuned = vitrail.finetune(
        DATA, whole.folder / "model", out=whole.folder.parent / "t", device="cpu", steps=2
    )
    assert tuned.model().config.classes == 10


@pytest.mark.parametrize("at", [3, pytest.param(6, marks=pytest.mark.long)])
def test_killed_and_resumed_it_is_bit_for_bit_the_same(whole, tmp_path, at):
    """Killed by a signal that no process can catch, in a process of its own."""
    kill = f"""
import os, signal, sys
from vitrail.runtime import training_display
from tests.objectives.test_own_objective import train
def step(self, row):
    if row["step"] == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
training_display.TrainingDisplay.step = step
train(sys.argv[1])
"""
    root = HERE.parents[2]
    done = subprocess.run(
        [sys.executable, "-c", kill, str(tmp_path / "run")],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert list((tmp_path / "run/checkpoints").iterdir())
    train(tmp_path / "run")
    assert content(tmp_path / "run") == content(whole.folder)


def test_another_objective_or_other_settings_of_it_are_refused(whole):
    with pytest.raises(ConfigError, match="momentum_of_teacher"):
        train(whole.folder, TwoCrops(0.5))
    with pytest.raises(ConfigError, match=r"objective\.name"):
        vitrail.pretrain(DATA, objective="masked-patches", out=whole.folder, **SETTINGS)


def test_the_shell_does_not_import_what_a_run_names(whole, capsys):
    from vitrail.cli import main

    words = ["pretrain", "--data", DATA, "--model", "mu/8@16", "--out", str(whole.folder), "--device", "cpu"]
    with pytest.raises(SystemExit):
        main([*words, "--batch-size", "8"])
    assert "TwoCrops" in capsys.readouterr().err
