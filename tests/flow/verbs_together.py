"""What the processes of test_torchrun.py run, started by torchrun: `verbs_together.py DATA MODEL FOLDER`.

A fine-tuning that is told to stop while it sweeps, the same again, and an evaluation of what it made; then a verb
that is for one process. Each process leaves FOLDER/RANK.json: the exit code of each, and what it would have shown.
"""

import json
import os
import signal
import sys
from pathlib import Path

from vitrail import cli
from vitrail.runtime.training_display import TrainingDisplay

SWEEP = ["--sweep", "--rates", "0.001", "0.03", "--seeds", "2"]
SMALL = ["--steps", "4", "--batch", "8", "--image-size", "16"]


def main(data: str, model: str, folder: Path) -> None:
    finetune = ["finetune", "--data", data, "--model", model, "--out", str(folder / "run"), *SWEEP, *SMALL]
    evaluate = ["evaluate", str(folder / "run/model"), data, "--out", str(folder / "scores.json")]
    demo = ["demo", "--data", data, "--model", model, "--out", str(folder / "demo")]
    step = TrainingDisplay.step
    TrainingDisplay.step = lambda display, row: os.kill(os.getpid(), signal.SIGTERM)
    done = [called(finetune)]
    TrainingDisplay.step = step
    done += [called(words) for words in (finetune, evaluate, demo)]
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(done))


def called(words: list[str]) -> dict[str, object]:
    made, run = {"code": 0, "result": None}, cli.run

    def kept(given):
        shown = run(given)
        made["result"] = shown.result
        return shown

    cli.run = kept
    try:
        cli.main([*words, "--device", "cpu"])
    except SystemExit as stop:
        made["code"] = stop.code
    finally:
        cli.run = run
    return made


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
