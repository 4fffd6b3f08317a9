"""A run of the head alone: features once, and the same weights as without that."""

import json
import os
import signal

import numpy as np
import pytest
import torch

import vitrail
from tests.randomise import randomise
from tests.train.small import experiment
from vitrail.errors import Interrupted
from vitrail.runtime import training_display
from vitrail.train import assemble as assembling
from vitrail.train.assemble import assemble
from vitrail.train.estimate import advise
from vitrail.train.frozen import FrozenLoader
from vitrail.train.run import run

CPU = torch.device("cpu")
HEAD = {"tune": "head", "augment": "none", "mixup": 0.0, "cutmix": 0.0, "dropout": 0.0, "drop_path": 0.0}
HEAD |= {"optimizer": "sgd", "lr": 0.1}


@pytest.fixture
def start(tmp_path):
    vitrail.save(randomise(vitrail.create("mu/8", classes=5, image_size=16)), tmp_path / "start")
    return {"model": str(tmp_path / "start")}


def weights(folder):
    return vitrail.load(folder / "model").state_dict()


def test_the_weights_are_those_without_the_cache(start, tmp_path, monkeypatch):
    settings = HEAD | start
    assert isinstance(assemble(experiment(**settings), CPU, tmp_path).loader, FrozenLoader)
    cached = run(experiment(**settings), tmp_path / "cached", device="cpu")
    monkeypatch.setattr(assembling, "is_cacheable", lambda *given: False)
    plain = run(experiment(**settings), tmp_path / "plain", device="cpu")
    for name, w in weights(tmp_path / "plain").items():
        torch.testing.assert_close(weights(tmp_path / "cached")[name], w, atol=1e-5, rtol=1e-4)
    losses = []
    for name in ("cached", "plain"):
        rows = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        losses.append([row["loss"] for row in rows if "loss" in row])
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert cached.results["test"] == pytest.approx(plain.results["test"], abs=1e-4)


def test_a_run_that_was_interrupted_ends_with_the_same_weights(start, tmp_path, monkeypatch):
    settings = HEAD | start
    run(experiment(**settings), tmp_path / "whole", device="cpu")

    def stop(self, row):
        if row["step"] == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(training_display.TrainingDisplay, "step", stop)
        run(experiment(**settings), tmp_path / "parts", device="cpu")
    run(experiment(**settings), tmp_path / "parts", device="cpu")
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize(
    "changed",
    [{"tune": "all"}, {"tune": "last:1"}, {"augment": "light"}, {"drop_path": 0.1}, {"mixup": 0.2}],
)
def test_what_has_other_features_at_each_step_is_not_cached(start, tmp_path, changed):
    loader = assemble(experiment(**HEAD | start | changed), CPU, tmp_path).loader
    assert not isinstance(loader, FrozenLoader)


def test_a_broken_image_has_weight_0(tmp_path, monkeypatch):
    made = assemble(experiment(**HEAD, max_bad=0.5), CPU, tmp_path)
    source, read = made.loader.stream.source, type(made.loader.stream.source).read

    def broken(self, index):
        if index == 3:
            raise vitrail.errors.DataError("scribbled over")
        return read(self, index)

    monkeypatch.setattr(type(source), "read", broken)
    batches = list(made.loader.batches(0, 8))
    seen = [pair for b in batches for pair in zip(b["index"].tolist(), b["weight"].tolist(), strict=True)]
    assert dict(seen) == {i: float(i != 3) for i in range(64)}
    assert batches[0]["features"].shape == (8, made.model.config.width)
    assert len(made.loader.bad_files.examples) == 1


def test_the_estimate_is_of_one_pass(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("vitrail.train.estimate.seconds_per_image", lambda parts: 1.0)
    assert advise(assemble(experiment(**HEAD), CPU, tmp_path), runs=1) == 64
    assert "One pass over 64 images, then 12 steps of 8 of their features: about 64 seconds" in caplog.text
