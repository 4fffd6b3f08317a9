"""The training loop. There is only one: pre-training, fine-tuning and self-supervision differ in their arguments.

    batch -> objective -> loss -> gradients (accumulated, shared, clipped) -> update -> average

A step is a function of (state, seed, step): the batch comes from the loader by its number, dropout is seeded from
(seed, step, rank), the learning rate from the schedule. So a run that is restored from a checkpoint continues as if
it had never stopped.

The measurements of a step are read one step later, when the device is done with it, so that the host never waits.
Before anything is written or evaluated the loop catches up: a bad step is never saved.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.checkpoints.json_files import check_kind
from vitrail.checkpoints.run import Run
from vitrail.errors import ConfigError, TrainingError
from vitrail.evaluators.score import Evaluator, Gallery, Score
from vitrail.objectives.objective import backbone
from vitrail.runtime.cuda_graph import Recorded
from vitrail.runtime.distributed import all_sum, gather, rank, world
from vitrail.runtime.interrupts import Interrupts
from vitrail.runtime.log import note
from vitrail.runtime.training_display import TrainingDisplay
from vitrail.train.optim import lr_at
from vitrail.train.parallel import gather_root, gather_tensor, synchronise
from vitrail.train.settings import Experiment
from vitrail.train.state import TrainState

Batch = dict[str, Tensor]
LOWER_IS_BETTER = ("loss", "ece")  # suffixes of names of scores
NAMED = 16  # examples of a bad batch in an error


class Batches(Protocol):
    """Data as the loop needs it: the batches of any range of steps, on a device."""

    def batches(self, start: int, stop: int, device: torch.device) -> Iterator[Batch]: ...


@dataclass
class Outcome:
    """The end of a run. The objective holds the final weights: averaged, or the best, if so set."""

    steps: int  # updates done
    scores: dict[str, float]  # of the weights that the objective holds
    seconds: float  # that it took, over all its sittings
    kept: int = 0  # the step of those weights
    interrupted: str = ""  # by which signal
    stopped_early: bool = False


@dataclass
class Progress:
    """The part of a checkpoint that is not tensors."""

    skipped: int = 0
    best: float | None = None
    best_step: int = 0
    stale: int = 0  # evaluations since the best
    scores: dict[str, float] = field(default_factory=dict)
    stopped_early: bool = False
    seconds: float = 0.0
    unevaluated: bool = False  # the step's evaluation is due, and not done


@dataclass
class Loop:
    """A run of the loop, starting from the state of its folder."""

    state: TrainState
    module: nn.Module  # the objective, as `distribute` returned it
    data: Batches
    experiment: Experiment  # resolved: all durations in steps
    device: torch.device
    display: TrainingDisplay
    run: Run | None = None
    evaluators: Sequence[Evaluator] = ()
    draw: Callable[[Gallery], None] | None = None

    def __post_init__(self) -> None:
        self.objective, self.settings = self.state.objective, self.experiment.training
        self.steps, self.progress = int(self.settings.steps), Progress()
        self.since = time.perf_counter()  # up to when `progress.seconds` counts
        self.forward: Callable[[Batch], Any] = self.module
        compiled = self.settings.compile in ("on", "graphs")
        if self.state.copies:
            self.forward = torch.compile(self.state.forward) if compiled else self.state.forward
        elif compiled:
            self.objective.compile()
        self.graph: Recorded | None = None
        if self.settings.compile == "graphs":
            self.graph = Recorded(self.compute_and_update, self.state.changed_by_update)

    def fit(self) -> Outcome:
        """Train to the end."""
        begin, progress = self.restore()
        self.progress = progress
        if begin > self.steps:
            raise TrainingError(
                f"the run is at step {begin}, but with the present data it has {self.steps} steps, since fewer "
                "examples make fewer steps. Restore its data, or choose another folder"
            )
        if self.run is not None:
            self.run.rewind(begin, scores=not progress.unevaluated)
        if begin and rank() == 0:
            note(f"Resuming at step {begin:,} of {self.steps:,}")
        with Interrupts() as interrupts:
            if progress.unevaluated:
                self.pause(begin)
            step, waiting = begin, None
            batches = self.data.batches(begin, self.steps, self.device)
            while step < self.steps and not progress.stopped_early:
                measured = self.update(step, next(batches), interrupts.name)
                step += 1
                stop = self.settle(waiting)
                waiting = measured
                if self.due("evaluate", step) or self.due("save", step) or stop:
                    stop = self.settle(waiting) or stop
                    waiting = None
                    self.pause(step, stop)
                if stop:
                    break
            # Also a signal that came in the last step or evaluation: all is saved, what follows can wait.
            signals = gather(interrupts.name)
        if any(signals):
            by = interrupts.name or "another process"
            return Outcome(step, progress.scores, progress.seconds, interrupted=by)
        return self.finish(step)

    def restore(self, *, best: bool = False) -> tuple[int, Progress]:
        """Return the number of updates that are done, and the progress then; 0 without a checkpoint."""
        restored = None if self.run is None else self.run.restore(self.state.tensors(), best=best)
        if self.run is None or restored is None:
            return 0, Progress()
        step, facts = restored
        check_kind(facts, Progress, f"{self.run.path}: the record of the checkpoint of step {step}")
        self.state.restored()
        return step, Progress(**facts)

    def update(self, step: int, batch: Batch, interrupted: str) -> Measured:
        """Enqueue one step; nothing is waited for, unless bad steps are to be skipped."""
        lr = lr_at(step, self.steps, self.experiment.optimizer)
        self.state.schedule(step, lr)
        seed = np.random.SeedSequence((self.experiment.seed, step, rank()))  # of dropout and stochastic depth
        torch.manual_seed(int(seed.generate_state(1, np.uint64)[0] >> 1))
        if not self.module.training:
            self.module.train()
        values = self.graph(batch) if self.graph is not None else self.compute(batch, interrupted)
        measured = Measured(step, lr, self.measured, *on_host(values), batch["index"], bool(interrupted))
        if self.settings.on_nonfinite == "stop" or measured.finite():
            if self.graph is None:
                self.state.update()
            if callable(after_update := getattr(self.objective, "after_update", None)):
                after_update(step, self.steps)
        self.state.forget_gradients()
        self.display.computed(step + 1)
        return measured

    def compute(self, batch: Batch, interrupted: str = "") -> Tensor:
        """Compute the gradients, clipped; return the values of what `self.measured` names."""
        chunks = self.settings.grad_accum
        weight = all_sum(batch["weight"].sum()).clamp(min=1)  # of the global batch
        sums: dict[str, Tensor] = {}
        for k, tensors in enumerate(zip(*(t.chunk(chunks) for t in batch.values()), strict=True), 1):
            part = dict(zip(batch, tensors, strict=True))
            synchronise(self.module, k == chunks)
            with torch.autocast(
                self.device.type,
                torch.bfloat16,
                enabled=self.settings.precision == "bf16",
                cache_enabled=False,
            ):
                loss, metrics = self.forward(part)
            share = part["weight"].sum() / weight
            self.state.add_gradients(loss * share * world())  # processes average their gradients
            for name, value in {"loss": loss.detach(), **metrics}.items():
                sums[name] = sums.get(name, 0) + value * share
        norm = self.state.clip(self.experiment.optimizer.grad_clip)
        stop = torch.full((), float(bool(interrupted)), device=self.device)
        values = all_sum(torch.stack([*(v.float() for v in sums.values()), stop]))
        self.measured = [*sums, "interrupted", "norm"]
        return torch.cat([values, gather_tensor(norm).float().reshape(1)])

    def compute_and_update(self, batch: Batch) -> Tensor:
        """Do all of a step that can be recorded as a CUDA graph."""
        values = self.compute(batch)
        self.state.update()
        return values

    def settle(self, measured: Measured | None) -> bool:
        """Read the measurements of a step; return True if any process got a signal to stop."""
        if measured is None:
            return False
        row: dict[str, Any] = measured.row()
        stop = row.pop("interrupted") > 0 or measured.interrupted
        if not measured.finite():
            if self.settings.on_nonfinite == "stop":
                raise TrainingError(describe_nonfinite(measured))
            self.progress.skipped += 1
            if self.progress.skipped > self.settings.max_skipped:
                raise TrainingError(
                    f"{self.progress.skipped} batches had a loss that is not finite, more than max_skipped "
                    f"{self.settings.max_skipped}; the last: " + describe_nonfinite(measured)
                )
            self.record({"step": measured.step + 1, "skipped": self.progress.skipped})
        row = {"step": measured.step + 1, **row, "lr": measured.lr}
        self.display.step(row)
        if (measured.step + 1) % int(self.settings.log_every) == 0:
            self.record(row | self.display.speed())
        return stop

    def record(self, row: dict[str, Any]) -> None:
        """Append a row to metrics.jsonl and TensorBoard."""
        if self.run is not None:
            self.run.append(row)
        self.display.record(row)

    def due(self, what: Literal["evaluate", "save"], step: int) -> bool:
        """Return whether it is time to evaluate or to save: every `every` steps, and at the end."""
        if what == "evaluate" and not self.evaluators:
            return False
        every = int(self.settings.evaluate_every if what == "evaluate" else self.settings.save_every)
        return step == self.steps or (every > 0 and step % every == 0)

    def pause(self, step: int, stop: bool = False) -> None:
        """Save; then evaluate, if it is time, and save again with the scores.

        An evaluation takes long: one that is due at a `stop` is left out, and a kill in it loses no step; it is done
        when the run resumes.
        """
        progress = self.progress
        if not progress.unevaluated:
            progress.unevaluated = self.due("evaluate", step)
            self.save(step)
        if not progress.unevaluated or stop:
            return
        with self.state.averaged():
            # Those of the first process: one's own evaluator may count on each by itself, and all stop together.
            progress.scores = gather(self.evaluate())[0]
        row = {"step": step, **progress.scores}
        self.record(row)
        self.display.scores(row)
        progress.unevaluated = False
        self.save(step, self.judge(step))

    def save(self, step: int, score: float | None = None) -> None:
        now = time.perf_counter()
        self.progress.seconds, self.since = self.progress.seconds + now - self.since, now
        if self.run is not None:
            self.run.save(step, self.state.tensors(), vars(self.progress), score=score)

    def evaluate(self) -> dict[str, float]:
        self.objective.eval()
        gather_root(self.objective, True)
        scores = {}
        try:
            for evaluator in self.evaluators:
                for result in evaluator(backbone(self.objective)):
                    if isinstance(result, Score):
                        scores[result.name] = result.value
                    elif self.draw is not None and rank() == 0:
                        self.draw(result)
            return scores
        finally:
            gather_root(self.objective, False)
            self.objective.train()

    def judge(self, step: int) -> float | None:
        """Note whether this is the best yet, and whether it is time to end; return the score, higher is better."""
        progress, monitor, patience = self.progress, self.settings.monitor, self.settings.patience
        if not monitor:
            return None
        if monitor not in progress.scores:
            raise ConfigError(
                f"monitor {monitor!r} is not among the scores: {', '.join(progress.scores) or 'none'}"
            )
        score = progress.scores[monitor] * (-1 if monitor.endswith(LOWER_IS_BETTER) else 1)
        if math.isfinite(score) and (progress.best is None or score > progress.best):
            progress.best, progress.best_step, progress.stale = score, step, 0
        else:
            progress.stale += 1
            progress.stopped_early = 0 < patience <= progress.stale
        return score

    def finish(self, step: int) -> Outcome:
        """Load the weights to keep: the best ones if a score is monitored, the average if there is one."""
        last, kept, scores = self.progress, step, self.progress.scores
        if self.run is not None and self.settings.monitor and last.best_step not in (0, step):
            best_step, then = self.restore(best=True)
            kept, scores = (best_step, then.scores) if best_step else (kept, scores)
            if kept != last.best_step and rank() == 0:
                note(
                    f"The best weights, of step {last.best_step}, are damaged or missing: using those of step {kept}"
                )
        self.state.keep_average()
        self.objective.eval()
        return Outcome(step, scores, last.seconds, kept, stopped_early=last.stopped_early)


@dataclass
class Measured:
    """Measurements of one step on their way from the device: loss, the objective's metrics, the gradient's norm."""

    step: int
    lr: float
    names: list[str]
    values: Tensor  # on the host, once `ready`
    ready: torch.cuda.Event | None
    indices: Tensor
    interrupted: bool  # this process

    def row(self) -> dict[str, float]:
        if self.ready is not None:
            self.ready.synchronize()
        return dict(zip(self.names, self.values.tolist(), strict=True))

    def finite(self) -> bool:
        return all(map(math.isfinite, self.row().values()))


def on_host(values: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Return a copy that the host does not wait for, and the event that says when it is there."""
    if values.device.type != "cuda":
        return values.cpu(), None
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    copy.copy_(values, non_blocking=True)
    ready = torch.cuda.Event()
    ready.record()
    return copy, ready


def describe_nonfinite(measured: Measured) -> str:
    values = ", ".join(f"{name} {value:g}" for name, value in measured.row().items() if name != "interrupted")
    examples = [i for part in gather(measured.indices.tolist()) for i in part]
    return (
        f"step {measured.step + 1}: {values}: not finite; the batch contained the examples "
        + ", ".join(map(str, examples[:NAMED]))
        + (f" and {len(examples) - NAMED} more" if len(examples) > NAMED else "")
        + ". A lower lr, grad_clip 1 or a longer warmup often helps; on_nonfinite skip leaves such batches out"
    )
