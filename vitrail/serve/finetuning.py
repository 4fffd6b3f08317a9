"""Fine-tuning in the background: `vitrail finetune` as a process of its own, and what its run folder says.

    DIR/cups/data/1   the photographs as they were when it started
    DIR/cups/runs/1   the run: the same folder as of any `vitrail finetune`, which can be resumed here or there

The process gives way to others, gets SIGTERM when it is to stop, and saves then.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from vitrail.checkpoints.run.folder import is_running
from vitrail.checkpoints.run.records import METRICS, RUN_JSON, read_rows, read_run_json
from vitrail.errors import ConfigError, VitrailError
from vitrail.serve.photos import Collection

MOST_POINTS = 500  # of a curve
PATIENCE = 20.0  # seconds in which a process saves and stops
LEAST = 6  # photographs of a class of which vitrail holds out one for validation
LOG = "log.txt"
NUMBER = re.compile(r"[1-9][0-9]{0,5}")


class Process:
    """A running `vitrail finetune`."""

    def __init__(self, data: Path, model: str, out: Path, device: str, steps: int | None) -> None:
        self.seen = False  # whether its end was noticed
        command = [*background_command(), "finetune", "--data", str(data), "--model", model]
        command += ["--out", str(out), "--device", device, "--num-workers", "0", "--json"]
        command += [] if steps is None else ["--steps", str(steps)]
        command += ["--val", "validation", "--evaluate-every", "10%"] if has_validation(data) else []
        with log_of(out).open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=background_environment(),
                start_new_session=True,  # Ctrl-C is for the server, which then stops this
            )

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """Let it save; end it if that takes too long."""
        if self.runs:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def background_command() -> list[str]:
    """Return `vitrail` as a command that gives way to others."""
    nice = shutil.which("nice")
    return [*([nice, "-n", "10"] if nice else []), sys.executable, "-m", "vitrail"]


def background_environment() -> dict[str, str]:
    """Return fewer threads than cores: they wait for the slowest at each step, and the server computes, too."""
    return {**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 2))}


def has_validation(data: Path) -> bool:
    """Return whether each class has enough photographs that a tenth of them is at least one."""
    return min(sum(1 for _ in place.iterdir()) for place in data.glob("c*/")) >= LEAST


def log_of(out: Path) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    return out.parent / f"{out.name}.{LOG}"


def last_run(collection: Collection) -> Path | None:
    """Return the run that was started last."""
    runs = collection.folder / "runs"
    names = [path.name for path in runs.iterdir() if NUMBER.fullmatch(path.name)] if runs.is_dir() else []
    return runs / max(names, key=int) if names else None


def next_run(collection: Collection) -> Path:
    """Make the folders of a new run, and copy the photographs."""
    last = last_run(collection)
    number = 1 if last is None else int(last.name) + 1
    collection.copy_to(collection.folder / "data" / str(number))
    run = collection.folder / "runs" / str(number)
    run.mkdir(parents=True)
    return run


def data_of(run: Path) -> Path:
    return run.parents[1] / "data" / run.name


def is_stale(collection: Collection, run: Path) -> bool:
    """Return whether photographs were added or removed since a run started."""
    then = {(path.parent.name, path.stem) for path in data_of(run).glob("c*/*")}
    return then != {(photo.path.parent.name, photo.id) for photo in list(collection.photos.values())}


def describe_run(collection: Collection, run: Path, process: Process | None) -> dict[str, Any]:
    """Return FINETUNE of docs/serving.md, but for the model."""
    running = process is not None and process.runs
    result: dict[str, Any] = {
        "state": "running" if running or is_running(run) else "interrupted", "model": None, "step": 0, "steps": None,
        "curve": [], "evaluations": [], "test": None, "seconds": 0.0, "message": "",
        "stale": is_stale(collection, run),
    }  # fmt: skip
    failed = process is not None and process.process.returncode not in (None, 0, 128 + signal.SIGTERM)
    try:
        if (run / RUN_JSON).exists():
            result |= progress_of(run)
    except VitrailError as error:
        failed, result["message"] = True, str(error)
    if failed and result["state"] != "finished":
        result["state"] = "failed"
        result["message"] = result["message"] or last_error(run)
    return result


def progress_of(run: Path) -> dict[str, Any]:
    """Return what run.json and metrics.jsonl say."""
    content = read_run_json(run)
    rows = list(read_rows(run / METRICS))
    curve = [{"step": row["step"], "loss": row["loss"]} for row in rows if row.get("loss") is not None]
    evaluations = [
        {"step": row["step"], "top1": row["val_top1"], "loss": row.get("val_loss")}
        for row in rows
        if row.get("val_top1") is not None
    ]
    results, config = content.get("results"), content["config"]
    known: dict[str, Any] = {
        "step": rows[-1]["step"] if rows else 0,
        "steps": find_number(config, "steps"),
        "curve": thin(curve),
        "evaluations": thin(evaluations),
        "seconds": seconds_since(content.get("created"), run / METRICS) if rows else 0.0,
    }
    if results is not None:
        known |= {"state": "finished", "step": results["steps"], "steps": results["steps"]}
        known["seconds"] = results["seconds"]
        if results.get("test"):
            known["test"] = {"top1": results["test"]["top1"], "n": results["test_examples"]}
    return known


def seconds_since(created: str | None, file: Path) -> float:
    """Return the seconds from the start of a run to the last change of a file."""
    if created is None:
        return 0.0
    return round(max(0.0, file.stat().st_mtime - datetime.fromisoformat(created).timestamp()), 1)


def find_number(settings: Any, name: str) -> int | None:
    """Return the first whole number of that name in nested settings."""
    if not isinstance(settings, dict):
        return None
    if type(settings.get(name)) is int:
        return int(settings[name])
    return next((n for value in settings.values() if (n := find_number(value, name)) is not None), None)


def thin(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    by = -(-len(points) // MOST_POINTS)
    return list(points[:: max(1, by)])


def last_error(run: Path) -> str:
    """Return the last line of a process's log, which says why it ended."""
    try:
        lines = log_of(run).read_text(encoding="utf-8", errors="replace")[-4000:].strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].removeprefix("error: ") if lines else "the process ended without a message"


def check_startable(collection: Collection) -> None:
    if len(collection.class_names) < 2:
        raise ConfigError(
            f"fine-tuning needs at least 2 classes with photographs, not {len(collection.class_names)}"
        )
