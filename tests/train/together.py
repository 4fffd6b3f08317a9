"""What the processes of test_parallel.py run, started by torchrun: `together.py FOLDER NAME...`."""

import os
import signal
import sys
from pathlib import Path

from tests.train.small import experiment
from vitrail.errors import Interrupted
from vitrail.runtime import training_display
from vitrail.train.run import run

PLAIN = {"dropout": 0.0, "drop_path": 0.0}
MASKED = {**PLAIN, "objective": "masked-patches"}
UNTESTED = {"test": "none"}
EXPERIMENTS = {
    "supervised": experiment(**PLAIN),
    "masked": experiment(**MASKED),
    "sharded": experiment(**PLAIN, parallel="fsdp"),
    "patches": experiment(**MASKED, parallel="fsdp"),
    "stopped": experiment(**PLAIN, **UNTESTED, parallel="fsdp"),
    "accumulated": experiment(**PLAIN, **UNTESTED, parallel="fsdp", grad_accum=2),
    "begun": experiment(**PLAIN, **UNTESTED, evaluate_every=0),
    "groups": experiment(**PLAIN, **UNTESTED, evaluate_every=0, parallel="fsdp", replicas=2),
    "averaged": experiment(**PLAIN, **UNTESTED, evaluate_every=0),
    "resumed": experiment(**PLAIN, **UNTESTED, evaluate_every=0),
    "dies": experiment(**PLAIN, **UNTESTED, save_every=2),
}
# name: (rank, step, signal): who is told to stop, when, and how
SIGNALS = {
    "stopped": (1, 6, signal.SIGTERM),
    "groups": (3, 6, signal.SIGTERM),
    "resumed": (2, 6, signal.SIGTERM),
    "dies": (1, 7, signal.SIGKILL),
}


def main(folder: Path, names: list[str]) -> None:
    for name in names:
        original = training_display.TrainingDisplay.step
        rank, at, number = SIGNALS.get(name, (-1, 0, 0))
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"

        def step(self, row, original=original, rank=rank, at=at, number=number, first=first):
            original(self, row)
            if first and row["step"] == at and int(os.environ.get("RANK", 0)) == rank:
                os.kill(os.getpid(), number)

        training_display.TrainingDisplay.step = step
        try:
            run(EXPERIMENTS[name], folder / name, device="cpu")
        except Interrupted as error:
            print(f"{name}: {error}")
        training_display.TrainingDisplay.step = original


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
