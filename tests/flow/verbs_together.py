"""What the processes of test_torchrun.py run, started by torchrun: `verbs_together.py PART DATA MODEL FOLDER`.

Part `stopped`: a fine-tuning that is told to stop while it sweeps. Part `continued`: the same again, an evaluation of
what it made, then a verb that is for one process. Each process leaves FOLDER/PART-RANK.json: the exit code of each,
and what it would have shown.
"""

import json
import os
import signal
import sys
from pathlib import Path

from vitrail import cli
from vitrail.runtime.training_display import TrainingDisplay

SWEEP = ["--sweep", "--lrs", "0.001", "0.03", "--seeds", "2"]
SMALL = ["--steps", "4", "--batch-size", "8", "--image-size", "16"]


def main(part: str, data: str, model: str, folder: Path) -> None:
    finetune = ["finetune", "--data", data, "--model", model, "--out", str(folder / "run"), *SWEEP, *SMALL]
    evaluate = ["evaluate", str(folder / "run/model"), data, "--out", str(folder / "scores.json")]
    demo = ["demo", "--data", data, "--model", model, "--out", str(folder / "demo")]
    if part == "stopped":
        TrainingDisplay.step = lambda display, row: os.kill(os.getpid(), signal.SIGTERM)
    done = [called(words) for words in ([finetune] if part == "stopped" else [finetune, evaluate, demo])]
    (folder / f"{part}-{os.environ['RANK']}.json").write_text(json.dumps(done))


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
    main(*sys.argv[1:4], Path(sys.argv[4]))
