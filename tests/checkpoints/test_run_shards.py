"""Sharded checkpoints: two processes write, one or two read, plain and sharded states read each other's."""

import os
import pickle
import shutil
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from vitrail.checkpoints.run import Run
from vitrail.checkpoints.run_shards import table_of
from vitrail.checkpoints.run_state import seal
from vitrail.errors import CheckpointError

SCRIPT = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
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
write_data = FileSystemWriter.write_data
if rank == 1:
    def full(*_):
        raise OSError(28, "No space left on device")
    FileSystemWriter.write_data = full
refused(CheckpointError, "disk full", run.save, 4, sharded(4), {})
FileSystemWriter.write_data = write_data
assert run.restore(state) == (3, {"step": 3})
run.close()
refused(ConfigError, "a is 1 there, 2 here", Run.open, top / "sharded", {"a": 2})

# Damage of a shard: the first process finds it, both fall back.
again = Run.open(top / "sharded", {"a": 1})
if rank == 0:
    shard = top / "sharded/checkpoints/step-00000003/__1_0.distcp"
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
    assert (written / "sharded/checkpoints/step-00000002/__1_0.distcp").exists()
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


class Code:
    """What runs a command when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_a_table_of_contents_runs_no_code(written, tmp_path):
    run = Run.open(tmp_path / "gift", {"a": 1})
    place = tmp_path / "gift/checkpoints/step-00000002"
    shutil.copytree(written / "sharded/checkpoints/step-00000002", place)
    (place / ".metadata").write_bytes(pickle.dumps({"table": Code(tmp_path / "made")}))
    (place / "manifest.json").unlink()
    seal(place)
    with pytest.raises(CheckpointError, match=r"asks for posix.mkdir"):
        run.restore({"w": torch.zeros(5, 3), "step": torch.tensor(0)})
    assert not (tmp_path / "made").exists()
    run.close()


@pytest.mark.parametrize("content", [b"", b"nonsense", pickle.dumps(5), pickle.dumps({})])
def test_what_is_no_table_is_said_to_be_none(tmp_path, content):
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointError, match="not a table of shards"):
        table_of(tmp_path)


def test_a_table_leads_to_no_other_folder(written, tmp_path):
    table = table_of(written / "sharded/checkpoints/step-00000002")
    for info in table.storage_data.values():
        info.relative_path = "../" + info.relative_path
    (tmp_path / ".metadata").write_bytes(pickle.dumps(table))
    with pytest.raises(CheckpointError, match="not a file beside it"):
        table_of(tmp_path)
