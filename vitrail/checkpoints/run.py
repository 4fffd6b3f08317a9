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

import math
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitrail.checkpoints import run_card, run_metrics, run_state
from vitrail.checkpoints.run_folder import (
    CHECKPOINTS,
    FIGURES,
    LOCK,
    METRICS,
    WRITTEN,
    best_of,
    check_own,
    check_utf8,
    locked,
    place_of,
    scores_in,
    steps_in,
)
from vitrail.checkpoints.run_shards import State
from vitrail.checkpoints.run_state import agreed
from vitrail.data.readers.fingerprint import digest
from vitrail.errors import CheckpointError, ConfigError
from vitrail.runtime.distributed import gathered, rank
from vitrail.runtime.files import flush, remove_unfinished
from vitrail.runtime.log import note


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
            with agreed(f"{run.path} cannot be opened"):
                if rank() == 0:
                    check_utf8(run.path, config)
                    check_own(run.path)
                    run.path.mkdir(parents=True, exist_ok=True)
                    run._unlock = weakref.finalize(run, os.close, locked(run.path / LOCK))
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
        with agreed(f"{self._metrics} cannot be written"):
            if rank() == 0 and self._metrics.exists():
                flush(self._metrics)  # a checkpoint is never ahead of its metrics
        try:
            run_state.write(self._place(step), state, {"step": step, "score": score, "facts": facts})
        except CheckpointError as error:
            good = [s for s in self.steps() if s not in self.damaged]
            last = f"is {self._place(good[-1])}" if good else "has not been written yet"
            raise CheckpointError(f"{error}; the last good checkpoint {last}") from error
        self.damaged.discard(step)
        with agreed(f"{self.path / CHECKPOINTS}: old checkpoints cannot be removed"):
            if rank() == 0:
                if self.first is None:
                    self.first = step
                    card = run_card.read_card(self.path)
                    run_card.write_card(self.path, {**card, run_card.FIRST: step})
                self._retain(step)
        self.damaged.clear()

    def restore(self, state: State, *, step: int | None = None) -> tuple[int, dict[str, Any]] | None:
        """Copy the newest whole checkpoint into the tensors of `state`; its step and facts, or None without any.

        A damaged one is passed over with a note, and removed after the next save; but where a `step` is asked for
        it is that one or an error. Names, shapes and kinds must be equal to those that were saved. That there is none
        where some were written is an error: the run would begin anew, and its metrics would be lost.
        """
        most = run_state.most_bytes(state)
        with agreed(f"{self.path / CHECKPOINTS} cannot be read"):
            if rank() == 0:
                step = self._newest_whole(most) if step is None else self._whole(step, most)
        return self._read(step, state)

    def restore_best(self, state: State) -> tuple[int, dict[str, Any]] | None:
        """Likewise the whole checkpoint with the highest score; without any, None, and `state` stays as it is."""
        step, most = None, run_state.most_bytes(state)
        with agreed(f"{self.path / CHECKPOINTS} cannot be read"):
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
            run_metrics.append(self._metrics, row)

    def rows(self) -> list[dict[str, Any]]:
        """All rows of metrics.jsonl."""
        return run_metrics.rows(self._metrics)

    def rewind(self, step: int, *, scores: bool = True) -> None:
        """Drop the rows whose "step" is after `step`; without `scores` also those of its evaluation."""
        with agreed(f"{self._metrics} cannot be rewritten"):
            if rank() == 0:
                run_metrics.rewind(self._metrics, step, scores)

    def finish(self, results: dict[str, Any]) -> None:
        """The results, into run.json."""
        with agreed(f"{self.path / run_card.CARD} cannot be written"):
            if rank() == 0:
                card = run_card.read_card(self.path)
                run_card.write_card(self.path, {**card, "results": run_metrics.finite(results)})

    def results(self, kind: Any = dict[str, Any]) -> dict[str, Any] | None:
        """What `finish` was given; None: the run is not finished. `kind`: what it must be (run_json.py)."""
        return run_card.read_results(self.path, kind)

    def evidence(self) -> dict[str, Any]:
        """What a model of this run says of its making: the versions and the code that began it, its data's digest,
        what open settings became."""
        card = run_card.read_card(self.path)
        return {
            name: card[name] for name in ("versions", "git", "data", "used", run_card.LATER) if name in card
        }

    @property
    def _metrics(self) -> Path:
        return self.path / METRICS

    def _place(self, step: int) -> Path:
        return place_of(self.path, step)

    def _begin(self, config: dict[str, Any], about: dict[str, Any]) -> None:
        if (self.path / run_card.CARD).exists():
            run_card.check_same(self.path, config, about)
        else:
            run_card.write_new(self.path, config, about)
        self.first = run_card.read_card(self.path).get(run_card.FIRST)
        run_state.tidy(self.path / CHECKPOINTS)
        run_metrics.mend(self._metrics)
        remove_unfinished(self.path, WRITTEN)
        remove_unfinished(self.path / FIGURES, r".+\.png")

    def _read(self, step: int | None, state: State) -> tuple[int, dict[str, Any]] | None:
        """Of the step that the first process found."""
        step, self.damaged = gathered((step, self.damaged))[0]
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
