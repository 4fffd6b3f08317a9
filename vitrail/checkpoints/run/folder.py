"""A run on disk that can be killed at any moment and resumed: what the loop of train/fit.py writes to.

    DIR/
      run.json                    config, versions, git state; at the end the results
      metrics.jsonl               a row for everything that was measured
      checkpoints/step-00001000/  the last `keep`, and the best by score
      model/  figures/            written by others

Opened again with the same config it resumes from the newest intact checkpoint; with another config it is
refused. One process (or one group of processes) writes at a time: the first holds a lock, which the system releases
when it ends, however it ends. Reading needs no lock. In a group all processes call each method and see the same
folder; the first one writes, and what fails on one fails on all.

    run = Run.open(path, config)
    step, facts = run.restore(state) or (0, {})
    run.rewind(step)                                  # metrics continue exactly where the weights do
    ...; run.append({"step": step, "loss": loss})     # the rows of a step before its checkpoint
    run.save(step, state, {"seen": 1024}, score=0.9)
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import platform
import re
import stat
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitrail.checkpoints.json_files import MAX_BYTES
from vitrail.checkpoints.run.records import (
    METRICS,
    RUN_JSON,
    open_run_json,
    read_results,
    read_rows,
    read_run_json,
    replace_nonfinite,
    to_line,
    write_run_json,
)
from vitrail.checkpoints.run.state import (
    State,
    fail_together,
    find_damage,
    folder_name,
    read_checkpoint,
    read_facts,
    remove_checkpoint,
    write_checkpoint,
)
from vitrail.data.readers.fingerprint import digest
from vitrail.errors import CheckpointError, ConfigError
from vitrail.runtime.distributed import gather, rank
from vitrail.runtime.files import atomic_file, flush, open_own, remove_unfinished
from vitrail.runtime.log import note

START = "start"  # a bundle of the model object that a run was started with
LOCK, CHECKPOINTS = ".lock", "checkpoints"
# What is written under a temporary name first, by folder: names that a kill may leave unfinished.
WRITTEN = {
    ".": r"start|run\.json|metrics\.jsonl|mistakes\.jsonl|results\.md|README\.md|model|figures",
    "figures": r".+\.png",
    CHECKPOINTS: r"step-[0-9]+",
}
UPDATE = ("lr", "skipped")  # names that only rows about an update have, not those of an evaluation
EVIDENCE = ("versions", "git", "data", "used", "later_data")
# Looking at a run (`vitrail runs`) holds its lock for an instant: seconds between tries to get it, and how many.
PAUSE, TRIES = 0.02, 20


class Run:
    """A run folder that only this process writes to; made by `open`."""

    def __init__(self, path: Path, keep: int) -> None:
        self.path, self.keep, self._metrics = path, keep, path / METRICS
        self.first: int | None = None  # step of its first checkpoint
        self.damaged: set[int] = set()  # steps of the checkpoints that `restore` has skipped
        self._unlock: Callable[[], object] | None = None

    @classmethod
    def open(
        cls,
        path: Path,
        config: dict[str, Any],
        *,
        keep: int = 2,
        data: tuple[str, Sequence[str]] | None = None,
        start: str | None = None,
        used: dict[str, Any] | None = None,
    ) -> Run:
        """Start a run, or resume the existing one.

        `keep`: how many checkpoints are kept, besides the best. `data`: its fingerprint and class names; changed data
        is noted, other class names (or another order) are refused, as the labels would mean something else. `start`:
        digest of the weights that the run starts from; others are refused. `used`: the values of settings that the
        config leaves open, for the record.
        """
        if keep < 1:
            raise ConfigError(f"keep is {keep}; it must be at least 1")
        run = cls(Path(path).expanduser(), keep)
        about: dict[str, Any] = {} if data is None else {"data": data[0], "classes": digest(*data[1])}
        about |= {name: value for name, value in (("start", start), ("used", used)) if value is not None}
        try:
            with fail_together(f"{run.path} cannot be opened"):
                if rank() == 0:
                    check_run_folder(run.path, config)
                    run.path.mkdir(parents=True, exist_ok=True)
                    run._unlock = weakref.finalize(run, os.close, lock(run.path / LOCK))
                    run.first = open_run_json(run.path, config, about).get("first_checkpoint")
                    for folder, names in WRITTEN.items():
                        remove_unfinished(run.path / folder, names)
        except BaseException:
            run.close()  # an exception that is kept keeps the run alive
            raise
        return run

    def close(self) -> None:
        """Release the lock. The end of the process, or of the last reference to the run, does so too."""
        if self._unlock is not None:
            self._unlock()

    def save(self, step: int, state: State, facts: dict[str, Any], *, score: float | None = None) -> None:
        """Write a checkpoint, then remove those that are no longer kept.

        `facts`: anything that JSON can hold; numbers come back exactly, infinity included. A higher `score` is
        better; a checkpoint without one (or with NaN) cannot be the best.
        """
        if score is not None and not math.isfinite(score):
            score = None
        with fail_together(f"{self._metrics} cannot be written"):
            if rank() == 0 and self._metrics.exists():
                flush(self._metrics)  # a checkpoint is never ahead of its metrics
        try:
            write_checkpoint(self._place(step), state, {"step": step, "score": score, "facts": facts})
        except CheckpointError as error:
            good = [s for s in self.steps() if s not in self.damaged]
            last = f"is {self._place(good[-1])}" if good else "has not been written yet"
            raise CheckpointError(f"{error}; the last good checkpoint {last}") from error
        self.damaged.discard(step)
        with fail_together(f"{self.path / CHECKPOINTS}: old checkpoints cannot be removed"):
            if rank() == 0:
                if self.first is None:
                    self.first = step
                    write_run_json(self.path, read_run_json(self.path) | {"first_checkpoint": step})
                whole = [s for s in self.steps() if s not in self.damaged]
                kept = {*whole[-self.keep :], self.best(), step}
                for old in self.steps():
                    if old not in kept:
                        remove_checkpoint(self._place(old))
        self.damaged.clear()

    def restore(
        self, state: State, *, step: int | None = None, best: bool = False
    ) -> tuple[int, dict[str, Any]] | None:
        """Copy a checkpoint into the tensors of `state`; return its step and facts, or None if there is none.

        It is that of `step`, the one with the highest score (`best`), or the newest. For the last two, damaged ones
        are skipped with a note, and removed after the next save. Names, shapes and dtypes must be those that were
        saved. If all checkpoints that were written are gone it is an error: the run would start over.
        """
        most = MAX_BYTES + sum(t.numel() * t.element_size() for t in state.values())  # of any file of it
        with fail_together(f"{self.path / CHECKPOINTS} cannot be read"):
            if rank() == 0:
                step = self._find_whole(step, best, most)
        step, self.damaged = gather((step, self.damaged))[0]
        return None if step is None else (step, read_checkpoint(self._place(step), state)["facts"])

    def _find_whole(self, step: int | None, best: bool, most: int) -> int | None:
        """Return the step of the requested checkpoint, or of the next intact one."""
        steps = [step] if step is not None else list(read_scores(self.path)) if best else self.steps()[::-1]
        if self.first is not None and not steps and not best:
            raise CheckpointError(
                f"{self.path} has written checkpoints since step {self.first}, but {CHECKPOINTS} has none now: "
                "restore them to resume, or choose another folder to start over"
            )
        for one in steps:
            damage = find_damage(self._place(one), most)
            if damage is None:
                return one
            problem = f"{self._place(one)} is damaged ({damage})"
            if step is not None:
                raise CheckpointError(problem)
            if one == steps[-1] and not best:
                raise CheckpointError(f"{problem}; there is no checkpoint before it")
            note(f"{problem}; the {'next best' if best else 'one before'} is used")
            self.damaged.add(one)
        return None

    def steps(self) -> list[int]:
        """Return the steps of the existing checkpoints, in order."""
        return list_steps(self.path)

    def best(self) -> int | None:
        """Return the step of the checkpoint with the highest score, the first of equal ones."""
        return next((step for step in read_scores(self.path) if step not in self.damaged), None)

    def append(self, row: dict[str, Any]) -> None:
        """Add a row to metrics.jsonl at once. NaN and infinity are stored as null."""
        if rank() != 0:
            return
        line = to_line(row)
        handle = open_own(self._metrics, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            size = os.fstat(handle).st_size
            if os.write(handle, line) != len(line):  # the disk had room for part of it
                os.ftruncate(handle, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._metrics))
        finally:
            os.close(handle)

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows of metrics.jsonl."""
        return list(read_rows(self._metrics))

    def rewind(self, step: int, *, scores: bool = True) -> None:
        """Drop the rows after `step` and a last line that a kill left incomplete; without `scores` also the rows of
        the evaluation of that step, which will be repeated."""
        last = step if scores else step - 1
        with fail_together(f"{self._metrics} cannot be rewritten"):
            if rank() == 0 and self._metrics.exists():
                rows = [
                    row
                    for row in self.rows()
                    if (at := row.get("step", last)) <= last
                    or (at <= step and any(name in row for name in UPDATE))
                ]
                text = b"".join(map(to_line, rows))
                if self._metrics.stat().st_size != len(text):
                    with atomic_file(self._metrics) as temporary:
                        temporary.write_bytes(text)

    def finish(self, results: dict[str, Any]) -> None:
        """Write the results to run.json."""
        with fail_together(f"{self.path / RUN_JSON} cannot be written"):
            if rank() == 0:
                finished = read_run_json(self.path) | {"results": replace_nonfinite(results)}
                write_run_json(self.path, finished)

    def results(self, kind: Any = dict[str, Any]) -> dict[str, Any] | None:
        """Return the results, checked against the type `kind` (json_files.py); None if the run is not finished."""
        return read_results(self.path, kind)

    def evidence(self) -> dict[str, Any]:
        """Return the entries of run.json that a model of this run carries in its provenance."""
        content = read_run_json(self.path)
        return {name: content[name] for name in EVIDENCE if name in content}

    def _place(self, step: int) -> Path:
        return self.path / CHECKPOINTS / folder_name(step)


def check_run_folder(path: Path, config: dict[str, Any] | None = None) -> None:
    """Raise an error unless `path` is new, empty, or holds a run, with files and folders only at any depth: what a
    link leads to is not ours to write, to remove or to read. Names, also in the config, must be UTF-8: neither JSON
    nor safetensors can hold others."""
    try:
        json.dumps([str(path), config], ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        name = error.object[max(0, error.start - 100) : error.end + 100]
        raise ConfigError(
            f"{name}: this name is not UTF-8, which {RUN_JSON} cannot hold: rename it, or use a link with another "
            "name"
        ) from error
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; a run is written to a folder")
    if path.is_dir() and not os.path.lexists(path / RUN_JSON):
        # A run that was killed in its first moments leaves hidden files, and the model it was started with.
        hidden = (LOCK, f".{RUN_JSON}.", f".{START}.")
        others = sorted(p.name for p in path.iterdir() if p.name != START and not p.name.startswith(hidden))
        if others:
            more = f" and {len(others) - 5} more" if len(others) > 5 else ""
            raise ConfigError(
                f"{path} is not a run (it has no {RUN_JSON}) and contains {', '.join(others[:5])}{more}; "
                "a run needs a folder without other files"
            )
    for folder, folders, files in os.walk(path):
        for place in (Path(folder, name) for name in (*folders, *files)):
            try:
                mode = place.lstat().st_mode
            except FileNotFoundError:
                continue  # another process has removed it
            if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
                what = "a link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
                raise ConfigError(
                    f"{place} is {what}: the folder of a run may contain only its own files and folders. Replace it "
                    "by its target, or remove it"
                )


def lock(path: Path) -> int:
    """Open a file and lock it until it is closed; it names the process that holds it."""
    handle = open_own(path, os.O_RDWR | os.O_CREAT)
    try:
        for left in reversed(range(TRIES)):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if left:
                    time.sleep(PAUSE)
                    continue
                holder = os.read(handle, 1000).decode("utf-8", "replace").strip() or "another process"
                raise ConfigError(
                    f"{path.parent} is in use: {holder} is writing this run. Wait for it to end, or stop it; "
                    "processes of a torchrun that was killed may still be running"
                ) from error
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {platform.node()}\n".encode())
    except BaseException:
        os.close(handle)
        raise
    return handle


def is_running(path: Path) -> bool:
    """Return whether a process holds the lock of a run."""
    try:
        with os.fdopen(open_own(path / LOCK)) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def list_steps(path: Path) -> list[int]:
    """Return the steps of a run's checkpoints, in order."""
    folder = path / CHECKPOINTS
    if folder.is_symlink():
        raise CheckpointError(f"{folder} is a link, which is not followed")
    names = {p.name for p in folder.glob("step-*") if p.is_dir() and not p.is_symlink()}
    steps = {int(name[5:]) for name in names if re.fullmatch(r"step-[0-9]{8,18}", name)}
    return sorted(step for step in steps if folder_name(step) in names)


def read_scores(path: Path) -> dict[int, float]:
    """Return step -> score of a run's checkpoints, the best first, the earlier of equal ones; damaged ones and those
    without a score are left out."""
    scores = {}
    for step in list_steps(path):
        try:
            score = read_facts(path / CHECKPOINTS / folder_name(step))["score"]
        except CheckpointError:
            continue  # `restore` deals with damage
        if score is not None and math.isfinite(score):
            scores[step] = float(score)
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))
