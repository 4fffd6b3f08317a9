"""The loop. There is one: pre-training, fine-tuning, probing and self-supervision differ in what is passed to it.

    batch -> objective -> loss -> gradients (accumulated, shared, clipped) -> update -> average

A step is a function of (state, seed, step): the batch comes from the loader by its number, dropout is seeded from
(seed, step, rank), the rate from the schedule. So a run that is restored from a checkpoint continues as if it had
never stopped.

What a step measured is read one step later, when the device is done with it, so that the host never waits. Before
anything is written or evaluated it is caught up with: a bad step is never saved.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.checkpoints.run import Run
from vitrail.errors import ConfigError, TrainingError
from vitrail.evaluators.score import Evaluator, Score
from vitrail.runtime.distributed import all_sum, gather, rank, world
from vitrail.runtime.interrupts import Interrupts
from vitrail.runtime.log import note
from vitrail.runtime.training_display import TrainingDisplay
from vitrail.train.parallel import gather_root, synchronise, whole
from vitrail.train.plan import Measured, Outcome, Plan, Progress, on_host
from vitrail.train.state import TrainState

Batch = dict[str, Tensor]
LOWER_IS_BETTER = ("loss", "ece")  # ends of names of scores


class Batches(Protocol):
    """What the loop needs of its data: the batches of any range of steps, on a device."""

    def batches(self, start: int, stop: int, device: torch.device) -> Iterator[Batch]: ...


def fit(
    objective: nn.Module,
    data: Batches,
    state: TrainState,
    plan: Plan,
    *,
    module: nn.Module | None = None,
    run: Run | None = None,
    evaluators: Sequence[Evaluator] = (),
    device: torch.device,
    display: TrainingDisplay | None = None,
) -> Outcome:
    """Train until the plan is fulfilled, from where the run stands. `module`: what `distribute` made."""
    module = objective if module is None else module
    begin, progress = resumed(run, state)
    if begin > plan.steps:
        raise TrainingError(
            f"the run stands at step {begin}, and with the data of now it has {plan.steps}: fewer examples make "
            "fewer steps. Give it its data again, or another folder"
        )
    if begin and rank() == 0:
        note(f"goes on from step {begin} of {plan.steps}")
    loop = Loop(objective, module, state, plan, run, list(evaluators), device, progress, display)
    with Interrupts() as interrupts:
        if progress.unevaluated:
            loop.pause(begin)
        step, waiting = begin, None
        batches = data.batches(begin, plan.steps, device)
        while step < plan.steps and not progress.stopped_early:
            made = loop.update(step, next(batches), interrupts.name)
            step += 1
            stop = loop.settle(waiting)
            waiting = made
            if loop.due(step) or stop:
                stop = loop.settle(waiting) or stop
                waiting = None
                loop.pause(step, stop)
            if stop:
                break
        # Also a signal that came in the last step or evaluation: all is saved, what follows can wait.
        told = gather(interrupts.name)
    if any(told):
        by = interrupts.name or "another process"
        return Outcome(step, progress.scores, progress.seconds, interrupted=by)
    return loop.finish(step)


def resumed(run: Run | None, state: TrainState) -> tuple[int, Progress]:
    """The updates that are done, and what was known then."""
    if run is None:
        return 0, Progress()
    step, facts = run.restore(state.tensors()) or (0, {})
    progress = Progress.of(facts, f"{run.path}: what the checkpoint of step {step} says")
    run.rewind(step, scores=not progress.unevaluated)
    return step, progress


@dataclass
class Loop:
    """The parts of a step and of what happens between steps."""

    objective: nn.Module
    module: nn.Module
    state: TrainState
    plan: Plan
    run: Run | None
    evaluators: list[Evaluator]
    device: torch.device
    progress: Progress
    display: TrainingDisplay | None
    since: float = field(default_factory=time.perf_counter)  # when `progress.seconds` was last told

    def update(self, step: int, batch: Batch, interrupted: str) -> Measured:
        """One step: everything is enqueued, nothing is waited for, unless bad steps are to be skipped."""
        plan, rate = self.plan, self.plan.schedule(step)
        self.state.set_rate(rate)
        torch.manual_seed(seed_of(plan.seed, step, rank()))
        self.module.train()
        if plan.graphs:
            torch.compiler.cudagraph_mark_step_begin()
        weight = all_sum(batch["weight"].sum()).clamp(min=1)  # of the global batch
        sums: dict[str, Tensor] = {}
        parts = list(split(batch, plan.accumulate))
        for k, part in enumerate(parts):
            synchronise(self.module, k == len(parts) - 1)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=plan.bf16):
                loss, metrics = self.module(part)
            share = part["weight"].sum() / weight
            (loss * share * world()).backward()  # processes average their gradients
            for name, value in {"loss": loss.detach(), **metrics}.items():
                sums[name] = sums.get(name, 0) + value * share
        norm = self.state.clip(plan.clip)
        stop = torch.full((), float(bool(interrupted)), device=self.device)
        values = all_sum(torch.stack([*(v.float() for v in sums.values()), stop]))
        values = torch.cat([values, whole(norm).float().reshape(1)])
        measured = Measured(step, rate, [*sums, "interrupted", "norm"], *on_host(values), batch["index"])
        if plan.on_nonfinite == "stop" or measured.finite():
            self.state.update(step)
        self.state.optimizer.zero_grad(set_to_none=True)
        return measured

    def settle(self, made: Measured | None) -> bool:
        """Read what a step measured; True if any process was told to stop."""
        if made is None:
            return False
        row: dict[str, Any] = made.row()
        stop = row.pop("interrupted") > 0
        if not made.finite():
            if self.plan.on_nonfinite == "stop":
                raise TrainingError(nonfinite(made))
            self.skip(made)
        row = {"step": made.step + 1, **row, "rate": made.rate}
        if self.display is not None:
            self.display.step(row)
        if (made.step + 1) % self.plan.log_every == 0:
            self.record(row | ({} if self.display is None else self.display.speed()))
        return stop

    def record(self, row: dict[str, Any]) -> None:
        """For metrics.jsonl and TensorBoard."""
        if self.run is not None:
            self.run.append(row)
        if self.display is not None:
            self.display.record(row)

    def skip(self, made: Measured) -> None:
        """Count a step that changed nothing."""
        self.progress.skipped += 1
        if self.progress.skipped > self.plan.max_skipped:
            raise TrainingError(
                f"{self.progress.skipped} batches gave a loss that is not finite, more than the "
                f"{self.plan.max_skipped} that may be skipped; the last: " + nonfinite(made)
            )
        self.record({"step": made.step + 1, "skipped": self.progress.skipped})

    def due(self, step: int) -> bool:
        """Whether something is evaluated or saved after so many updates."""
        return self.evaluation_due(step) or self.saving_due(step)

    def evaluation_due(self, step: int) -> bool:
        every = self.plan.evaluate_every
        return bool(self.evaluators) and (step == self.plan.steps or (every > 0 and step % every == 0))

    def saving_due(self, step: int) -> bool:
        every = self.plan.save_every
        return step == self.plan.steps or (every > 0 and step % every == 0)

    def pause(self, step: int, stop: bool = False) -> None:
        """Save; then evaluate, if it is time, and save again with the scores. An evaluation takes long: who is told
        to `stop` leaves it out, and who is killed in it loses no more; it is done when the run goes on."""
        progress = self.progress
        if not progress.unevaluated:
            progress.unevaluated = self.evaluation_due(step)
            self.save(step)
        if not progress.unevaluated or stop:
            return
        with self.state.averaged():
            progress.scores = {s.name: s.value for s in self.evaluate()}
        row = {"step": step, **progress.scores}
        self.record(row)
        if self.display is not None:
            self.display.scores(row)
        progress.unevaluated = False
        self.save(step, self.judge(step))

    def save(self, step: int, score: float | None = None) -> None:
        now = time.perf_counter()
        self.progress.seconds, self.since = self.progress.seconds + now - self.since, now
        if self.run is not None:
            self.run.save(step, self.state.tensors(), vars(self.progress), score=score)

    def evaluate(self) -> list[Score]:
        self.objective.eval()
        gather_root(self.objective, True)
        try:
            return [score for evaluator in self.evaluators for score in evaluator(self.objective.model)]  # type: ignore[arg-type]
        finally:
            gather_root(self.objective, False)
            self.objective.train()

    def judge(self, step: int) -> float | None:
        """Note whether this is the best yet, and whether it is time to end."""
        plan, progress = self.plan, self.progress
        if not plan.watch:
            return None
        score = progress.scores[plan.watch]
        if plan.watch.endswith(LOWER_IS_BETTER):
            score = -score
        if np.isfinite(score) and (progress.best is None or score > progress.best):
            progress.best, progress.best_step, progress.stale = score, step, 0
        else:
            progress.stale += 1
            progress.stopped_early = 0 < plan.patience <= progress.stale
        return score

    def finish(self, step: int) -> Outcome:
        """The weights to keep: the best ones where that was watched for, the average where there is one."""
        progress, kept = self.progress, step
        best = progress.best_step
        if self.run is not None and self.plan.watch and best not in (0, step):
            restored = self.run.restore_best(self.state.tensors())
            if restored is not None:
                kept = restored[0]
                progress = Progress.of(
                    restored[1], f"{self.run.path}: what the checkpoint of step {kept} says"
                )
            if kept != best and rank() == 0:
                note(f"the best weights, of step {best}, are damaged or gone: those of step {kept} are kept")
        self.state.keep_average()
        self.objective.eval()
        last = self.progress
        return Outcome(step, progress.scores, last.seconds, kept, stopped_early=last.stopped_early)


def split(batch: Batch, parts: int) -> Iterator[Batch]:
    """A batch in equal parts."""
    b = len(batch["weight"])
    if b % parts:
        raise ConfigError(f"a batch of {b} on each process cannot be accumulated in {parts} equal parts")
    for i in range(0, b, b // parts):
        yield {name: t[i : i + b // parts] for name, t in batch.items()}


def seed_of(seed: int, step: int, rank: int) -> int:
    """Of dropout and stochastic depth."""
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0] >> 1)


def nonfinite(made: Measured) -> str:
    values = ", ".join(f"{name} {value:g}" for name, value in made.row().items() if name != "interrupted")
    shown = [i for part in gather(made.indices.tolist()) for i in part]
    return (
        f"step {made.step + 1}: {values}: not finite; the batch held the examples {', '.join(map(str, shown[:16]))}"
        + (f" and {len(shown) - 16} more" if len(shown) > 16 else "")
        + ". A lower rate, clip=1 or a longer warm-up often helps; on_nonfinite=skip leaves such batches out"
    )
