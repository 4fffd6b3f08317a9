"""Several processes on one machine (gloo): the same run as on one, sharded or not, killed or not."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.run import parse_args

import vitrail
from tests.train.together import EXPERIMENTS
from vitrail.errors import ConfigError, Interrupted
from vitrail.runtime.training_display import TrainingDisplay
from vitrail.train.parallel import check_processes
from vitrail.train.run import run
from vitrail.train.settings import TrainingSettings

ROOT = Path(__file__).parents[2]


def torchrun(folder, *names, processes=2, restarts=0):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
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


def check_same(folder, reference):
    """Two runs: every loss, and the weights of the bundle."""
    wanted = trace(reference)
    assert len(wanted) == 12 and np.ptp(wanted) > 1e-3
    np.testing.assert_allclose(trace(folder), wanted, rtol=0, atol=1e-5)
    a, b = (vitrail.load(place / "model").state_dict() for place in (reference, folder))
    assert a.keys() == b.keys()
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=0, atol=1e-4)


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


def test_two_processes_with_shards_train_as_one_does(tmp_path):
    run(EXPERIMENTS["supervised"], tmp_path / "alone", device="cpu")
    torchrun(tmp_path, "sharded")
    check_same(tmp_path / "sharded", tmp_path / "alone")


@pytest.mark.long
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
    check_same(together / name, alone / reference)


@pytest.mark.long
def test_shards_are_continued_on_another_number_of_processes(alone, together, monkeypatch):
    """Stopped on two, finished on one: this one, as torchrun would have started it."""
    assert not (together / "stopped/model").exists()
    assert any((together / "stopped/checkpoints").glob("step-*/shard-00001.safetensors"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in told.items():
        monkeypatch.setenv(name, str(value))
    run(EXPERIMENTS["stopped"], together / "stopped", device="cpu")
    np.testing.assert_allclose(trace(together / "stopped"), trace(alone / "supervised"), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """Of "groups" one process has done the beginning; what is told to stop is called again."""
    folder = tmp_path_factory.mktemp("four")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingDisplay, "step", lambda display, row: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(Interrupted):
            run(EXPERIMENTS["begun"], folder / "groups", device="cpu")
    said = torchrun(folder, "groups", "groups", "averaged", "resumed", "resumed", processes=4)
    for name in ("groups", "resumed"):
        assert (
            said.count(f"{name}: SIGTERM: saved") == 1 and said.count(f"{name}: another process: saved") == 3
        )
    return folder


@pytest.mark.long
def test_one_process_begins_and_groups_of_shards_go_on(alone, four):
    names = {file.name for file in (four / "groups/checkpoints/step-00000012").iterdir()}
    assert {"shards.json", "shard-00001.safetensors"} <= names and "state.safetensors" not in names
    check_same(four / "groups", alone / "supervised")


@pytest.mark.long
def test_of_more_than_two_processes_gradients_are_added_in_one_order_from_the_first_step_on(four):
    """Sums of two do not depend on it."""
    a, b = ((four / name / "model/model.safetensors").read_bytes() for name in ("averaged", "resumed"))
    assert a == b
    assert trace(four / "averaged").tolist() == trace(four / "resumed").tolist()


@pytest.mark.parametrize("replicas", [-1, 0, 3])
def test_processes_that_do_not_form_the_groups(replicas):
    with pytest.raises(ConfigError, match=f"replicas={replicas}: 4 processes cannot form"):
        check_processes(TrainingSettings(parallel="fsdp", replicas=replicas), 8, 4)


@pytest.mark.long
def test_a_process_that_dies_fails_the_job_which_restarts_from_its_checkpoint(alone, tmp_path):
    torchrun(tmp_path, "dies", restarts=1)
    np.testing.assert_allclose(trace(tmp_path / "dies"), trace(alone / "supervised"), rtol=0, atol=1e-5)


def test_behind_two_dashes_torchrun_takes_no_flag_for_its_own():
    parsed = parse_args(["--nproc-per-node=2", "-m", "--", "vitrail", "pretrain", "--monitor", "val_loss"])
    assert (parsed.training_script, parsed.nproc_per_node) == ("vitrail", "2")
    assert parsed.training_script_args == ["pretrain", "--monitor", "val_loss"]
