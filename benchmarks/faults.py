"""Kill a run again and again, and check that nothing is lost: `python -m benchmarks.faults`.

An 800-step run with everything random in it (crops, mixup, cutmix, dropout, stochastic depth, an average) is killed
by SIGKILL at random moments, every other time while a checkpoint is being written, and started again each time. At
the end its weights and metrics must be those of an uninterrupted run, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import vitrail
from vitrail.train.keywords import override
from vitrail.train.run import run
from vitrail.train.settings import Experiment

SETTINGS = {
    "model": "mu/8@16",
    "dropout": 0.1,
    "drop_path": 0.1,
    "data": "shapes?image_size=16&n=96",
    "train": "train[:80%]",
    "val": "train[80%:]",
    "test": "none",
    "batch_size": 8,
    "mixup": 0.2,
    "cutmix": 1.0,
    "num_workers": 0,
    "warmup": 5,
    "weight_decay": 0.1,
    "ema": 0.99,
    "log_every": 1,
    "evaluate_every": 10,
    "save_every": 2,
    "compile": "off",
}


def experiment(steps: int) -> Experiment:
    return override(Experiment(), {**SETTINGS, "steps": steps})


def survive(folder: Path, kills: int, steps: int, seed: int = 0) -> list[str]:
    """Kill a run `kills` times, let it finish, compare; return where each kill came."""
    run(experiment(steps), folder / "whole", device="cpu")
    rng = random.Random(seed)
    killed: list[str] = []
    while len(killed) < kills:
        process = begin(folder / "killed", steps)
        in_saving = len(killed) % 2 == 1
        killed.append(kill(process, folder / "killed", in_saving, rng))
    assert begin(folder / "killed", steps).wait() == 0
    compare(folder / "whole", folder / "killed")
    return killed


def begin(folder: Path, steps: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.faults", "--folder", str(folder), "--steps", str(steps)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def kill(process: subprocess.Popen[bytes], folder: Path, in_saving: bool, rng: random.Random) -> str:
    """Kill a run once it has begun: after a moment, or as soon as a checkpoint is half written; return where."""
    checkpoints = folder / "checkpoints"
    before = newest(folder)
    while newest(folder) == before and process.poll() is None:
        time.sleep(0.001)
    if in_saving:
        while process.poll() is None and not any(checkpoints.glob(".*")):
            pass
    else:
        time.sleep(rng.random() * 0.3)
    assert process.poll() is None, "the run ended before it could be killed: give it more steps"
    process.send_signal(signal.SIGKILL)
    process.wait()
    return f"{'while saving' if any(checkpoints.glob('.*')) else 'between saves'} after step {newest(folder)}"


def newest(folder: Path) -> int:
    return max((int(p.name.split("-")[1]) for p in (folder / "checkpoints").glob("step-*")), default=0)


def compare(whole: Path, killed: Path) -> None:
    a, b = (vitrail.load(folder / "model").state_dict() for folder in (whole, killed))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a), "the weights differ"
    assert rows(whole) == rows(killed), "the metrics differ"


def rows(folder: Path) -> list[dict[str, float]]:
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "images_per_second"} for row in read]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--kills", type=int, default=20)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        run(experiment(arguments.steps), arguments.folder, device="cpu")
        return
    with tempfile.TemporaryDirectory() as folder:
        killed = survive(Path(folder), arguments.kills, arguments.steps)
    print("\n".join(killed))
    print(
        f"{len(killed)} kills in {arguments.steps} steps: weights and metrics are those of an uninterrupted run"
    )


if __name__ == "__main__":
    main()
