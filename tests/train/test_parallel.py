"""Several processes on one machine (gloo): the same run as on one, sharded or not, killed or not."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from tests.train.together import EXPERIMENTS
from vitrail.train.run import run

ROOT = Path(__file__).parents[2]


def torchrun(folder, *names, restarts=0):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [f"--max-restarts={restarts}", str(ROOT / "tests/train/together.py"), str(folder), *names]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def trace(folder):
    made = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return np.array([row["loss"] for row in made if "loss" in row])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same runs on one process, without sharding."""
    folder = tmp_path_factory.mktemp("alone")
    for name in ("supervised", "masked"):
        run(EXPERIMENTS[name], folder / name, device="cpu")
    return folder


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    folder = tmp_path_factory.mktemp("together")
    said = torchrun(folder, "supervised", "masked", "sharded", "patches", "accumulated", "stopped")
    assert "stopped: " in said and "saved at step" in said
    return folder


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("supervised", "supervised"),
        ("masked", "masked"),
        ("sharded", "supervised"),
        ("patches", "masked"),
        ("accumulated", "supervised"),
    ],
)
def test_two_processes_train_as_one_does(alone, together, name, reference):
    wanted = trace(alone / reference)
    assert len(wanted) == 12 and np.ptp(wanted) > 1e-3
    np.testing.assert_allclose(trace(together / name), wanted, rtol=0, atol=1e-5)
    a, b = (vitrail.load(folder / "model").state_dict() for folder in (alone / reference, together / name))
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=0, atol=1e-4)


def test_shards_are_continued_on_another_number_of_processes(alone, together, monkeypatch):
    """Stopped on two, finished on one: this one, as torchrun would have started it."""
    assert not (together / "stopped/model").exists()
    assert any((together / "stopped/checkpoints").glob("step-*/*.distcp"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in told.items():
        monkeypatch.setenv(name, str(value))
    run(EXPERIMENTS["stopped"], together / "stopped", device="cpu")
    np.testing.assert_allclose(trace(together / "stopped"), trace(alone / "supervised"), rtol=0, atol=1e-5)


def test_a_process_that_dies_fails_the_job_which_restarts_from_its_checkpoint(alone, tmp_path):
    torchrun(tmp_path, "dies", restarts=1)
    np.testing.assert_allclose(trace(tmp_path / "dies"), trace(alone / "supervised"), rtol=0, atol=1e-5)
