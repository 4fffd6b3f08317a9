"""20,000 images, predicted by a command that is killed five times, on one process and on two: every row once, and as
without kills."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import vitrail
from tests.evaluators.split import small_model

ROOT = Path(__file__).parents[2]
N, KILLS, BROKEN = 20_000, (1, 2, 1, 2, 1), 97  # on how many processes it is killed
# The command, with pieces often enough for a kill between any two.
RUN = """
import os
import pathlib
import sys
with pathlib.Path(__file__).with_name("processes").open("a") as file:
    file.write(f"{os.getpid()}\\n")
from vitrail import cli
from vitrail.inference import bulk
bulk.SAVE_SECONDS = 0.05
cli.main(sys.argv[1:])
"""
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model and small images in 20 folders, every 97th broken."""
    folder = tmp_path_factory.mktemp("bulk")
    vitrail.save(small_model(), folder / "model")
    (folder / "run.py").write_text(RUN)
    rng = np.random.default_rng(0)
    for i in range(N):
        place = folder / "images" / f"{i % 20:02}" / f"{i:05}.ppm"
        place.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, 48, np.uint8) // np.uint8(1 + i % 7)
        place.write_bytes(b"P6 4 4 255\n" + pixels.tobytes()[: 20 if i % BROKEN == 0 else None])
    return folder


def start(folder, out, processes=1):
    words = [
        "predict",
        folder / "model",
        folder / "images",
        "--out",
        out,
        "--device",
        "cpu",
        "--batch-size",
        "8",
    ]
    together = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.Popen(
        [sys.executable, *(together if processes > 1 else ()), folder / "run.py", *map(str, words)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def complete(folder, out):
    """Run to the end; return what is printed."""
    process = start(folder, out)
    shown, notes = process.communicate()
    assert process.returncode == 0, notes
    return shown + notes


def rows_there(out):
    pieces = (out.parent / f"{out.name}.unfinished").glob("rows-*.parquet")
    return sum(int(piece.stem.split("-")[2]) - int(piece.stem.split("-")[1]) for piece in pieces)


def kill(folder, out, processes):
    """Start, wait until more rows are there, kill all processes; return how many rows that left."""
    (folder / "processes").write_text("")
    before, process = rows_there(out), start(folder, out, processes)
    while rows_there(out) < before + 100 and process.poll() is None:
        time.sleep(0.01)
    time.sleep(float(np.random.default_rng(before).uniform(0, 0.1)))
    assert process.poll() is None, "it ended before it could be killed"
    process.kill()
    for number in (folder / "processes").read_text().split():  # those that torchrun started
        with suppress(ProcessLookupError):
            os.kill(int(number), signal.SIGKILL)
    process.communicate()
    return rows_there(out)


def test_five_kills_lose_and_double_no_row(folder):
    undisturbed, killed = folder / "undisturbed.parquet", folder / "killed.parquet"
    assert complete(folder, undisturbed)
    there = [kill(folder, killed, processes) for processes in KILLS]
    assert 0 < there[0] < there[-1] < N and sorted(there) == there and not killed.exists()
    assert f"{there[-1]:,} of {N:,}" in complete(folder, killed)
    a, b = pq.read_table(undisturbed), pq.read_table(killed)
    paths = b["path"].to_pylist()
    assert len(paths) == len(set(paths)) == N and paths == a["path"].to_pylist()
    broken = [i for i, error in enumerate(b["error"].to_pylist()) if error]
    assert [int(Path(paths[i]).stem) % BROKEN for i in broken] == [0] * -(-N // BROKEN)
    assert b["error"].equals(a["error"]) and b["class"].equals(a["class"])
    p = [np.array(table["confidence"].to_pylist(), np.float32) for table in (a, b)]
    np.testing.assert_allclose(*p, rtol=0, atol=1e-6)
    card = json.loads((folder / "killed.parquet.json").read_text())
    assert (card["rows"], card["unreadable"]) == (N, len(broken))
    assert not (folder / "killed.parquet.unfinished").exists()
