"""Runs on a GPU: compiled, in bf16, stopped and continued."""

import json
import os
import signal

import numpy as np
import pytest
import torch

from tests.objectives.test_own_objective import TwoCrops
from tests.train.small import experiment
from vitrail.errors import Interrupted
from vitrail.runtime import training_display
from vitrail.train.run import run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # of the compiler and its libraries
]


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def trace(folder, name="loss"):
    return np.array([row[name] for row in rows(folder) if name in row])


OBJECTIVES = {
    "softmax": {"loss": "softmax"},
    "sigmoid": {"loss": "sigmoid"},
    "masked patches": {"objective": "masked-patches"},
    "a person's own": {"objective": TwoCrops()},
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_compiled_in_bf16_it_trains_as_on_the_cpu(tmp_path, objective):
    plain = {"dropout": 0.0, "drop_path": 0.0, **OBJECTIVES[objective]}
    run(experiment(**plain), tmp_path / "cpu", device="cpu")
    run(experiment(**plain, compile="on", precision="float32"), tmp_path / "cuda", device="cuda")
    np.testing.assert_allclose(trace(tmp_path / "cuda"), trace(tmp_path / "cpu"), rtol=2e-3)
    run(experiment(**plain, compile="on", precision="bf16"), tmp_path / "bf16", device="cuda")
    np.testing.assert_allclose(trace(tmp_path / "bf16"), trace(tmp_path / "cpu"), rtol=3e-2)
    run(experiment(**plain, compile="graphs", precision="float32"), tmp_path / "graphs", device="cuda")
    np.testing.assert_allclose(trace(tmp_path / "graphs"), trace(tmp_path / "cpu"), rtol=2e-3)


@pytest.mark.parametrize("compile", ["on", "graphs"])
def test_stopped_and_continued_goes_on_with_the_same_data_lrs_and_random_state(
    tmp_path, monkeypatch, compile
):
    made = experiment(compile=compile, precision="float32")
    run(made, tmp_path / "whole", device="cuda")
    original = training_display.TrainingDisplay.step

    def step(self, row):
        original(self, row)
        if row["step"] == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(training_display.TrainingDisplay, "step", step)
    with pytest.raises(Interrupted):
        run(made, tmp_path / "stopped", device="cuda")
    monkeypatch.undo()
    run(made, tmp_path / "stopped", device="cuda")
    assert np.array_equal(trace(tmp_path / "stopped", "lr"), trace(tmp_path / "whole", "lr"))
    # dropout, stochastic depth and mixing are drawn alike: only the order of sums may differ
    np.testing.assert_allclose(trace(tmp_path / "stopped"), trace(tmp_path / "whole"), rtol=1e-4)
