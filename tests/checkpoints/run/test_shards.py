"""Sharded checkpoints: two processes write, one or two read, plain and sharded states read each other's."""

import json
import os
import pickle
import shutil
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from vitrail.checkpoints.run import Run
from vitrail.checkpoints.run import state as run_state
from vitrail.checkpoints.run.state import seal
from vitrail.errors import CheckpointError

SCRIPT = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from vitrail.checkpoints.run import state as run_state
from vitrail.checkpoints.run import Run
from vitrail.errors import CheckpointError, ConfigError

top, rank = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{top}/meeting", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))


def sharded(value):
    w = torch.nn.Parameter(distribute_tensor(value + torch.arange(15.0).reshape(5, 3), mesh, [Shard(0)]))
    return {"w": w, "step": torch.tensor(value)}


def plain(value):
    return {"w": value + torch.arange(15.0).reshape(5, 3), "step": torch.tensor(value)}


def assert_equal(state, value):
    w = state["w"].detach()
    assert torch.equal(w.full_tensor() if hasattr(w, "full_tensor") else w, plain(value)["w"])
    assert state["step"] == value


def refused(kind, words, call, *arguments):
    try:
        call(*arguments)
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"process {rank} went on")


run = Run.open(top / "sharded", {"a": 1})
assert run.restore(sharded(0)) is None
for step in (1, 2, 3):
    run.append({"step": step})
    run.save(step, sharded(step), {"step": step}, score=-step)
assert run.steps() == [1, 2, 3] and run.best() == 1
assert len(run.rows()) == 3

state = sharded(0)
assert run.restore(state) == (3, {"step": 3})
assert_equal(state, 3)
into_plain = plain(0)
assert run.restore(into_plain, step=2) == (2, {"step": 2})
assert_equal(into_plain, 2)

# What fails on one process fails on both, and the last good checkpoint stays.
save_safetensors = run_state.save_safetensors
if rank == 1:
    def full(*_):
        raise OSError(28, "No space left on device")
    run_state.save_safetensors = full
refused(CheckpointError, "disk full", run.save, 4, sharded(4), {})
run_state.save_safetensors = save_safetensors
assert run.restore(state) == (3, {"step": 3})
run.close()
refused(ConfigError, "a is 1 there, 2 here", Run.open, top / "sharded", {"a": 2})

# Damage of a shard: the first process finds it, both fall back.
again = Run.open(top / "sharded", {"a": 1})
if rank == 0:
    shard = top / "sharded/checkpoints/step-00000003/shard-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
assert again.restore(state) == (2, {"step": 2})
assert_equal(state, 2)
refused(CheckpointError, "another architecture", again.restore, {"w": state["w"]})
again.rewind(2)
assert len(again.rows()) == 2

# A plain state is written by the first process, and read into plain and sharded ones.
whole = Run.open(top / "plain", {})
whole.save(6, plain(6), {})
for state in (sharded(0), plain(0)):
    assert whole.restore(state) == (6, {})
    assert_equal(state, 6)
dist.barrier()
dist.destroy_process_group()
print("done")
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    top = tmp_path_factory.mktemp("shards")
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(top)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    both = [subprocess.Popen([*command, str(rank)], **pipes) for rank in (0, 1)]
    try:
        said = [process.communicate(timeout=100)[0] for process in both]
    finally:
        for process in both:
            process.kill()
    assert all("done\n" in text for text in said), "\n".join(said)  # gloo may complain as it is taken down
    return top


def test_two_processes_agree(written):
    assert (written / "sharded/checkpoints/step-00000002/shard-00001.safetensors").exists()
    assert not list(written.glob("*/checkpoints/.*"))


def test_one_process_reads_what_two_wrote(written):
    run = Run.open(written / "sharded", {"a": 1})
    state = {"w": torch.zeros(5, 3), "step": torch.tensor(0)}
    assert run.restore(state) == (2, {"step": 2})
    assert torch.equal(state["w"], 2 + torch.arange(15.0).reshape(5, 3)) and state["step"] == 2
    run.close()


def test_one_process_reads_it_into_shards_of_its_own(written):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        state = {"w": distribute_tensor(torch.zeros(5, 3), mesh, [Shard(0)]), "step": torch.tensor(0)}
        run = Run.open(written / "sharded", {"a": 1})
        assert run.restore(state) == (2, {"step": 2})
        assert torch.equal(state["w"].full_tensor(), 2 + torch.arange(15.0).reshape(5, 3))
        run.close()
    finally:
        dist.destroy_process_group()


STEP = "sharded/checkpoints/step-00000002"


@pytest.fixture
def foreign(written, tmp_path):
    """A run of somebody else's, whose only checkpoint can be changed: the run, the checkpoint, and how to restore."""
    run, place = Run.open(tmp_path / "gift", {"a": 1}), tmp_path / "gift/checkpoints/step-00000002"
    shutil.copytree(written / STEP, place)

    def restored():
        (place / "manifest.json").unlink()
        seal(place)
        state = {"w": torch.zeros(5, 3), "step": torch.tensor(0)}
        found = run.restore(state)
        return found, state

    yield place, restored
    run.close()


def test_a_checkpoint_holds_tensors_and_json_and_no_pickle(written, foreign):
    place, restored = foreign
    assert restored()[0] == (2, {"step": 2})
    assert {file.suffix for file in place.iterdir()} == {".safetensors", ".json"}
    assert len({file.stat().st_mode for file in place.iterdir()}) == 1
    table = json.loads((place / "shards.json").read_text())
    one, two = (f"shard-0000{i}.safetensors" for i in (0, 1))
    assert table == {"w": [[one, 0, 3], [two, 3, 5]], "step": [[one, 0, 1]]}


class Code:
    """What runs a command when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "shards.json", "shard-00000.safetensors"])
def test_a_checkpoint_of_somebody_elses_runs_no_code(foreign, tmp_path, name):
    place, restored = foreign
    (place / name).write_bytes(pickle.dumps({"table": Code(tmp_path / "made")}))
    if name in (".metadata", "__0_0.distcp"):  # which nobody looks at
        assert restored()[0] == (2, {"step": 2})
    else:
        with pytest.raises(CheckpointError):
            restored()
    assert not (tmp_path / "made").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_table_that_is_a_pickle_is_refused_and_runs_no_code(foreign, tmp_path):
    """torch.distributed.checkpoint unpickles it, and what it says are bytes without any limit."""
    place, restored = foreign
    for file in set(place.iterdir()) - {place / "facts.json", place / "manifest.json"}:
        file.unlink()
    dcp.save({"w": Code(tmp_path / "made"), "step": torch.tensor(2)}, checkpoint_id=place, no_dist=True)
    with pytest.raises(CheckpointError, match=r"state\.safetensors and shards\.json"):
        restored()
    assert (place / ".metadata").exists() and not (tmp_path / "made").exists()


ONE, TWO = "shard-00000.safetensors", "shard-00001.safetensors"
STEP_ROW = {"step": [[ONE, 0, 1]]}
TABLES = {
    "no JSON": "nonsense",
    "nothing": {},
    "a list": [],
    "a tensor is missing": {"w": [[ONE, 0, 3], [TWO, 3, 5]]},
    "rows are missing": {"w": [[ONE, 0, 3]], **STEP_ROW},
    "rows are there twice": {"w": [[ONE, 0, 3], [ONE, 0, 3], [TWO, 3, 5]], **STEP_ROW},
    "rows run backwards": {"w": [[ONE, 0, 3], [TWO, 3, 1]], **STEP_ROW},
    "rows below 0": {"w": [[ONE, -2, 3], [TWO, 3, 5]], **STEP_ROW},
    "too many rows": {"w": [[ONE, 0, 10**15]], **STEP_ROW},
    "other rows than the file has": {"w": [[ONE, 0, 2], [TWO, 2, 5]], **STEP_ROW},
    "another folder": {"w": [["../step-00000002/" + ONE, 0, 3], [TWO, 3, 5]], **STEP_ROW},
    "a path": {"w": [["/dev/zero", 0, 5]], **STEP_ROW},
    "a file that is not there": {"w": [["shard-00007.safetensors", 0, 5]], **STEP_ROW},
    "numbers for names": {"w": [[1, 0, 3], [TWO, 3, 5]], **STEP_ROW},
    "true for a number": {"w": [[ONE, False, 3], [TWO, 3, 5]], **STEP_ROW},
    "text for rows": {"w": "all", **STEP_ROW},
    "too few entries": {"w": [[ONE, 0], [TWO, 3, 5]], **STEP_ROW},
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_does_not_fit_is_an_error_in_words(foreign, name):
    place, restored = foreign
    table = TABLES[name]
    (place / "shards.json").write_text(table if isinstance(table, str) else json.dumps(table))
    with pytest.raises(CheckpointError):
        restored()


@pytest.mark.parametrize(
    "tensors",
    [
        {"w": torch.zeros(3, 3, dtype=torch.float64), "step": torch.tensor(2)},
        {"w": torch.zeros(1, 3), "step": torch.tensor(2)},
        {"w": torch.zeros(9), "step": torch.tensor(2)},
        {"step": torch.tensor(2)},
    ],
)
def test_a_shard_that_does_not_fit_is_an_error_in_words(foreign, tensors):
    place, restored = foreign
    save_file(tensors, place / ONE)
    with pytest.raises(CheckpointError, match="w"):
        restored()


@pytest.mark.parametrize("kind", ["pipe", "device", "link"])
@pytest.mark.parametrize("name", ["shards.json", ONE, "facts.json", "manifest.json"])
def test_a_pipe_a_device_or_a_link_for_a_file_is_an_error_at_once(foreign, tmp_path, name, kind):
    place, restored = foreign
    restored()
    (place / name).rename(tmp_path / "there")
    if kind == "pipe":
        os.mkfifo(place / name)
    else:
        (place / name).symlink_to("/dev/zero" if kind == "device" else tmp_path / "there")
    why = run_state.find_damage(place, 1 << 20)
    assert why is not None and "not a regular file" in why
    if name != "manifest.json":  # which has been looked at by then
        with pytest.raises(CheckpointError, match="not a regular file"):
            run_state.read_checkpoint(place, {"w": torch.zeros(5, 3), "step": torch.tensor(0)})


def test_a_shard_that_is_cut_while_it_is_read_is_an_error_and_not_the_end(foreign, monkeypatch):
    place, _ = foreign
    w, fill = torch.zeros(1 << 20), run_state.fill_rows

    def cut(*given):
        os.truncate(place / "state.safetensors", 4096)
        fill(*given)

    for file in place.iterdir():
        file.unlink()
    run_state.write_checkpoint(place, {"w": w}, {"step": 2, "score": None, "facts": {}})
    monkeypatch.setattr(run_state, "fill_rows", cut)
    with pytest.raises(CheckpointError, match="cannot be read"):
        run_state.read_checkpoint(place, {"w": w})


def test_a_file_larger_than_the_state_can_be_is_not_read_through(foreign):
    place, _ = foreign
    os.truncate(place / ONE, 1 << 40)  # it has holes, and no blocks
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["files"][ONE]["bytes"] = 1 << 40
    (place / "manifest.json").write_text(json.dumps(manifest))
    assert "more than" in run_state.find_damage(place, 1 << 20)
