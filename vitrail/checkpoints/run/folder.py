"""A run on disk, that can be killed at any moment and goes on: what the loop of train/fit.py writes to.

    DIR/
      run.json                    the resolved config, versions, git state; at the end the results
      metrics.jsonl               a row for everything that was measured
      checkpoints/step-00001000/  the last `keep`, and the best by score
      model/  figures/            written by others

Opened again with the same config it goes on from the newest checkpoint that is whole; with another config it is
refused. One process (or one group of them) at a time: the first holds a lock, which the system releases when it
ends, however it ends. On several processes all call each method; the first one writes, and what fails on one fails
on all. All of them must see the same folder.

    run = Run.open(path, config)
    step, facts = run.restore(state) or (0, {})
    run.rewind(step)                                  # the metrics go on exactly where the weights do
    ...; run.append({"step": step, "loss": loss})     # the rows of a step before its checkpoint
    run.save(step, state, {"seen": 1024}, score=0.9)
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import re
import stat
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitrail.checkpoints.run import metrics, run_json
from vitrail.checkpoints.run import state as run_state
from vitrail.checkpoints.run.run_json import RUN_JSON, flatten
from vitrail.checkpoints.run.state import State, fail_together, folder_name, read_facts
from vitrail.data.readers.fingerprint import digest
from vitrail.errors import CheckpointError, ConfigError
from vitrail.runtime.distributed import gather, rank
from vitrail.runtime.files import flush, open_own, remove_unfinished
from vitrail.runtime.log import note

LOCK, METRICS, CHECKPOINTS, FIGURES = ".lock", "metrics.jsonl", "checkpoints", "figures"
# Names of what is written to a run's folder beside its place, and moved there.
WRITTEN = r"run\.json|metrics\.jsonl|mistakes\.jsonl|results\.md|model|figures"


class Run:
    """A run folder that this process has to itself; `open` makes one."""

    path: Path

    def __init__(self, path: Path, keep: int) -> None:
        self.path = path
        self.keep = keep
        self.first: int | None = None  # the step of its first checkpoint
        self.damaged: set[int] = set()  # steps whose checkpoints `restore` has passed over
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
        """Begin a run, or go on with the one that is there; `keep` checkpoints are kept, and the best.

        `data`: its fingerprint and class names. Other data than it began with is said; with other classes, or in
        another order, the same labels would mean others: that is refused. `start`: the digest of the weights that it
        begins from; other ones under the same name are refused. `used`: what settings became that the config leaves
        open, for the record.
        """
        if keep < 1:
            raise ConfigError(f"keep {keep}: at least 1 checkpoint must be kept")
        run = cls(Path(path).expanduser(), keep)
        about: dict[str, Any] = {} if data is None else {"data": data[0], "classes": digest(*data[1])}
        about |= {name: value for name, value in (("start", start), ("used", used)) if value is not None}
        try:
            with fail_together(f"{run.path} cannot be opened"):
                if rank() == 0:
                    check_utf8(run.path, config)
                    check_own(run.path)
                    run.path.mkdir(parents=True, exist_ok=True)
                    run._unlock = weakref.finalize(run, os.close, lock(run.path / LOCK))
                    run._begin(config, about)
        except BaseException:
            run.close()  # an exception that is kept keeps the run alive
            raise
        return run

    def close(self) -> None:
        """Let others open it. The end of the process, or of the last reference to the run, does so too."""
        if self._unlock is not None:
            self._unlock()

    def save(self, step: int, state: State, facts: dict[str, Any], *, score: float | None = None) -> None:
        """Write a checkpoint, then remove those that are no longer kept.

        `facts` are what JSON can hold; numbers come back exactly, infinity included. A higher `score` is better;
        without one (or with NaN) the checkpoint cannot be the best. A step that is there and equal stays as it is.
        """
        if score is not None and not math.isfinite(score):
            score = None
        with fail_together(f"{self._metrics} cannot be written"):
            if rank() == 0 and self._metrics.exists():
                flush(self._metrics)  # a checkpoint is never ahead of its metrics
        try:
            run_state.write(self._place(step), state, {"step": step, "score": score, "facts": facts})
        except CheckpointError as error:
            good = [s for s in self.steps() if s not in self.damaged]
            last = f"is {self._place(good[-1])}" if good else "has not been written yet"
            raise CheckpointError(f"{error}; the last good checkpoint {last}") from error
        self.damaged.discard(step)
        with fail_together(f"{self.path / CHECKPOINTS}: old checkpoints cannot be removed"):
            if rank() == 0:
                if self.first is None:
                    self.first = step
                    card = run_json.read_run_json(self.path)
                    run_json.write_run_json(self.path, {**card, run_json.FIRST: step})
                self._retain(step)
        self.damaged.clear()

    def restore(self, state: State, *, step: int | None = None) -> tuple[int, dict[str, Any]] | None:
        """Copy the newest whole checkpoint into the tensors of `state`; its step and facts, or None without any.

        A damaged one is passed over with a note, and removed after the next save; but where a `step` is asked for
        it is that one or an error. Names, shapes and kinds must be equal to those that were saved. That there is none
        where some were written is an error: the run would begin anew, and its metrics would be lost.
        """
        most = run_state.most_bytes(state)
        with fail_together(f"{self.path / CHECKPOINTS} cannot be read"):
            if rank() == 0:
                step = self._newest_whole(most) if step is None else self._whole(step, most)
        return self._read(step, state)

    def restore_best(self, state: State) -> tuple[int, dict[str, Any]] | None:
        """Likewise the whole checkpoint with the highest score; without any, None, and `state` stays as it is."""
        step, most = None, run_state.most_bytes(state)
        with fail_together(f"{self.path / CHECKPOINTS} cannot be read"):
            if rank() == 0:
                step = self._best_whole(most)
        return self._read(step, state)

    def steps(self) -> list[int]:
        """Of the checkpoints that are there, in order."""
        return steps_in(self.path)

    def best(self) -> int | None:
        """The step of the checkpoint with the highest score; of equal ones the first."""
        return best_of({step: s for step, s in scores_in(self.path).items() if step not in self.damaged})

    def append(self, row: dict[str, Any]) -> None:
        """A row for metrics.jsonl, handed to the system at once. NaN and infinity are stored as null."""
        if rank() == 0:
            metrics.append(self._metrics, row)

    def rows(self) -> list[dict[str, Any]]:
        """All rows of metrics.jsonl."""
        return metrics.rows(self._metrics)

    def rewind(self, step: int, *, scores: bool = True) -> None:
        """Drop the rows whose "step" is after `step`; without `scores` also those of its evaluation."""
        with fail_together(f"{self._metrics} cannot be rewritten"):
            if rank() == 0:
                metrics.rewind(self._metrics, step, scores)

    def finish(self, results: dict[str, Any]) -> None:
        """The results, into run.json."""
        with fail_together(f"{self.path / RUN_JSON} cannot be written"):
            if rank() == 0:
                card = run_json.read_run_json(self.path)
                run_json.write_run_json(self.path, {**card, "results": metrics.finite(results)})

    def results(self, kind: Any = dict[str, Any]) -> dict[str, Any] | None:
        """What `finish` was given; None: the run is not finished. `kind`: what it must be (run_json.py)."""
        return run_json.read_results(self.path, kind)

    def evidence(self) -> dict[str, Any]:
        """What a model of this run says of its making: the versions and the code that began it, its data's digest,
        what open settings became."""
        card = run_json.read_run_json(self.path)
        return {
            name: card[name] for name in ("versions", "git", "data", "used", run_json.LATER) if name in card
        }

    @property
    def _metrics(self) -> Path:
        return self.path / METRICS

    def _place(self, step: int) -> Path:
        return place_of(self.path, step)

    def _begin(self, config: dict[str, Any], about: dict[str, Any]) -> None:
        if (self.path / RUN_JSON).exists():
            run_json.check_same(self.path, config, about)
        else:
            run_json.write_new(self.path, config, about)
        self.first = run_json.read_run_json(self.path).get(run_json.FIRST)
        run_state.tidy(self.path / CHECKPOINTS)
        metrics.mend(self._metrics)
        remove_unfinished(self.path, WRITTEN)
        remove_unfinished(self.path / FIGURES, r".+\.png")

    def _read(self, step: int | None, state: State) -> tuple[int, dict[str, Any]] | None:
        """Of the step that the first process found."""
        step, self.damaged = gather((step, self.damaged))[0]
        return None if step is None else (step, run_state.read(self._place(step), state)["facts"])

    def _best_whole(self, most: int) -> int | None:
        while (step := self.best()) is not None:
            try:
                return self._whole(step, most)
            except CheckpointError as error:
                note(f"{error}; the next best is used")
                self.damaged.add(step)
        return None

    def _newest_whole(self, most: int) -> int | None:
        steps = self.steps()
        if self.first is not None and not steps:
            raise CheckpointError(
                f"{self.path} has written checkpoints since step {self.first}, and {CHECKPOINTS} holds none now: put "
                "them back to go on; or remove the folder, or choose another, to begin anew"
            )
        for step in reversed(steps):
            try:
                return self._whole(step, most)
            except CheckpointError as error:
                if step == steps[0]:
                    raise CheckpointError(f"{error}; there is no checkpoint before it") from error
                note(f"{error}; the one before is used")
                self.damaged.add(step)
        return None

    def _whole(self, step: int, most: int) -> int:
        why = run_state.damage(self._place(step), most)
        if why is not None:
            raise CheckpointError(f"{self._place(step)} is damaged ({why})")
        return step

    def _retain(self, step: int) -> None:
        """Keep the last ones, the best one, and the one that was just written."""
        whole = [s for s in self.steps() if s not in self.damaged]
        kept = {*whole[-self.keep :], self.best(), step}
        for old in self.steps():
            if old not in kept:
                run_state.remove(self._place(old))


def check_own(path: Path) -> None:
    """A run has a folder to itself: a new one, an empty one, or the one that it began in."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; a run is written to a folder of its own")
    if path.is_dir() and not os.path.lexists(path / RUN_JSON):
        # A run that was killed in its first moments leaves hidden files only.
        others = sorted(p.name for p in path.iterdir() if not p.name.startswith((LOCK, f".{RUN_JSON}.")))
        if others:
            more = f" and {len(others) - 5} more" if len(others) > 5 else ""
            raise ConfigError(
                f"{path} is not a run (it has no {RUN_JSON}) and holds {', '.join(others[:5])}{more}; "
                "a run is written to a folder of its own"
            )
    check_no_links(path)


def check_utf8(path: Path, config: dict[str, Any]) -> None:
    """A run and what it is made of have names that are text: JSON has no others, and safetensors opens no others."""
    for text in (str(path), *(json.dumps(value, ensure_ascii=False) for value in flatten(config).values())):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"{text[:200]}: bytes of this name are not UTF-8, and {RUN_JSON} has no place for them: rename it or "
                "give a link to it that has another name"
            ) from error


def check_no_links(path: Path) -> None:
    """Files and folders only, at any depth: what a link leads to is not ours to write, to remove or to read."""
    for folder, folders, files in os.walk(path):
        for place in (Path(folder, name) for name in (*folders, *files)):
            try:
                mode = place.lstat().st_mode
            except FileNotFoundError:
                continue  # another process is at it
            if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
                what = "a link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
                raise ConfigError(
                    f"{place} is {what}: the folder of a run holds files and folders of its own only. Put there what "
                    "it stands for, or remove it"
                )


def lock(path: Path) -> int:
    """An open file that no other can lock while it is open; it says whose it is."""
    handle = open_own(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(handle, 1000).decode("utf-8", "replace").strip()
        os.close(handle)
        if not isinstance(error, BlockingIOError):
            raise
        raise ConfigError(
            f"{path.parent} is in use: {holder or 'another process'} is writing this run. It is to end first; where "
            "torchrun was killed, its processes may live on"
        ) from error
    os.ftruncate(handle, 0)
    os.write(handle, f"process {os.getpid()} on {platform.node()}\n".encode())
    return handle


def place_of(path: Path, step: int) -> Path:
    return path / CHECKPOINTS / folder_name(step)


def steps_in(path: Path) -> list[int]:
    """The steps of a run's checkpoints, in order."""
    if (path / CHECKPOINTS).is_symlink():
        raise CheckpointError(f"{path / CHECKPOINTS} is a link, which is not followed")
    there = [p for p in (path / CHECKPOINTS).glob("step-*") if p.is_dir() and not p.is_symlink()]
    steps = [int(p.name[5:]) for p in there if re.fullmatch(r"step-[0-9]{8,18}", p.name)]
    return sorted(step for step in steps if place_of(path, step) in there)


def scores_in(path: Path) -> dict[int, float]:
    """step -> score, of the checkpoints that have one that can be read."""
    scores = {}
    for step in steps_in(path):
        try:
            score = read_facts(place_of(path, step))["score"]
        except CheckpointError:
            continue  # damaged, which matters to who restores it
        if score is not None and math.isfinite(score):
            scores[step] = float(score)
    return scores


def best_of(scores: dict[int, float]) -> int | None:
    """The step with the highest score; of equal ones the first."""
    return max(scores, key=lambda step: (scores[step], -step), default=None)
