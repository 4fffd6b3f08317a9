"""An experiment -> the loop -> a bundle, scores, pictures.

    run(experiment, out)        the whole of it; the same call again continues, or returns what was found

A run folder holds run.json, metrics.jsonl, bad_files.jsonl, mistakes.jsonl (of the test split, the surest first),
checkpoints/, model/ (a bundle), figures/. Choices look at the held-out part of train (`val`); the test split is
evaluated once, when training is over. A finished run whose model/ is not what was written gets it again from its
checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.checkpoints.checkpoint import Checkpoint, to_model
from vitrail.checkpoints.formats import has_weights, load, save
from vitrail.checkpoints.license import both_parts, inherited
from vitrail.checkpoints.run import Run
from vitrail.checkpoints.run.metrics import finite
from vitrail.data.sources import Source
from vitrail.errors import CheckpointError, Interrupted
from vitrail.evaluators.accuracy import Evaluation, evaluate
from vitrail.inference.feature_cache import model_digest
from vitrail.inspection.drawing import loss_curve
from vitrail.inspection.figures import draw_evaluation
from vitrail.models.cost import cost
from vitrail.models.names import Model
from vitrail.runtime.device import Device, device_name, peak_flops, pick
from vitrail.runtime.distributed import barrier, gather, group, rank, world
from vitrail.runtime.files import atomic_file
from vitrail.runtime.log import Board, note
from vitrail.runtime.memory import exhausted_memory
from vitrail.runtime.training_display import TrainingDisplay, Work
from vitrail.train.assembly import Parts, assemble, evaluators_of
from vitrail.train.ema import average_remark
from vitrail.train.experiment import Experiment
from vitrail.train.fit import fit
from vitrail.train.parallel import distribute, whole
from vitrail.train.plan import Outcome
from vitrail.train.results import MODEL, Results, clear_model, is_broken, written_model
from vitrail.train.sources import remarks
from vitrail.train.state import TrainState

MISTAKES = "mistakes.jsonl"


@dataclass(frozen=True)
class Trained:
    """A finished run. `results` is what run.json records: scores on `val` and `test`, and what they stand on."""

    folder: Path
    results: dict[str, Any]

    def model(self) -> Model:
        return load(self.folder / MODEL)


def run(experiment: Experiment, out: str | Path, *, device: Device = "auto") -> Trained:
    """Train, evaluate, write the bundle. Interrupted, it raises `Interrupted`; called again, it continues."""
    folder = Path(out)
    with group(pick(device)) as where:
        parts = assemble(experiment, where, folder)
        start = model_digest(parts.model) if has_weights(experiment.model.model) else None
        here = Run.open(
            folder, experiment.identity(), keep=parts.training.keep, data=parts.sources.noted(), start=start,
            used=parts.used(),
        )  # fmt: skip
        with closing(here):
            done = here.results(Results)
            if done is None:
                with noting_where_it_stands(here):
                    done = finite(train(parts, here))
                here.finish(done)
            elif gather(rank() == 0 and is_broken(folder, done))[0]:
                done = rewritten(parts, here, done)
                here.finish(done)
            barrier()
    return Trained(folder, done)


@contextmanager
def noting_where_it_stands(run: Run) -> Iterator[None]:
    """To an error that means that memory has run out, add what is saved."""
    try:
        yield
    except Exception as error:
        if exhausted_memory(error):
            steps = run.steps()
            stands = f"is saved at step {steps[-1]}, from which" if steps else "had just begun, and"
            error.add_note(
                f"{run.path} {stands} the same command goes on, with other --workers too; other settings need "
                "another --out"
            )
        raise


def train(parts: Parts, run: Run) -> dict[str, Any]:
    """One run in an open folder: its results."""
    objective, plan, device, first = parts.objective, parts.plan, parts.device, rank() == 0
    training = parts.training
    if first:
        said = average_remark(training.average, training.average_ramp, plan.steps)
        for remark in (*remarks(parts.experiment, parts.sources), said, f"{described(parts)}, on {device}"):
            if remark:
                note(remark)
    module, state = state_of(parts)
    if plan.compile:
        objective.compile(mode="reduce-overhead" if plan.graphs else None)
    evaluators = evaluators_of(parts, run.path / "figures")
    flops, peak = cost(parts.model.config).training_flops, peak_flops(device) * world()
    work, bad = Work(plan.steps, parts.experiment.data.batch, flops, peak), parts.loader.bad_files
    board = Board(run.path / "tensorboard") if training.tensorboard and first else None
    with TrainingDisplay(work, shown=first, broken=lambda: len(bad.found), board=board) as display:
        outcome = fit(
            objective, parts.loader, state, plan, module=module, run=run, evaluators=evaluators, device=device,
            display=display,
        )  # fmt: skip
    if first:
        loss_curve(run.rows(), run.path / "figures" / "loss.png", title=parts.experiment.model.model)
    if outcome.interrupted:
        raise Interrupted(outcome.interrupted, f"step {outcome.steps} of {plan.steps}", str(run.path))
    return concluded(parts, trained_model(parts), outcome, run)


def state_of(parts: Parts) -> tuple[nn.Module, TrainState]:
    """What the loop calls, and all that training changes."""
    plan, training, device = parts.plan, parts.training, parts.device
    module = distribute(parts.objective, plan.parallel, plan.replicas, device, plan.bf16)
    state = TrainState(
        parts.objective, training.optimization, training.average, device, average_ramp=training.average_ramp
    )
    return module, state


def rewritten(parts: Parts, run: Run, done: dict[str, Any]) -> dict[str, Any]:
    """The results of a finished run whose bundle was missing or damaged, and is written again from its checkpoint."""
    place, step = run.path / MODEL, done["kept_step"]
    _, state = state_of(parts)
    try:
        run.restore(state.tensors(), step=step)
    except CheckpointError as error:
        raise CheckpointError(
            f"the run is finished, but {place} is missing or damaged, and cannot be written again without its "
            f"checkpoint: {error}. Put either of them back; or remove {run.path}, or choose another, to train anew"
        ) from error
    state.keep_average()
    model = trained_model(parts)
    model.license = inherited(model.license)
    model.metrics = {"val": done["val"], "test": done["test"]}
    evidence = {**run.evidence(), "computed": done["computed"]}
    model.provenance = provenance_of(parts.experiment, step, evidence, model.provenance)
    if rank() == 0:
        note(f"{place} was missing or damaged: it is written again from the checkpoint of step {step}")
        clear_model(run.path)
    return {**done, "model": publish(model, run.path)}


def described(parts: Parts) -> str:
    """What `auto` became, for people; run.json has it in the results."""
    return (
        f"{'bf16' if parts.plan.bf16 else 'float32'}, {'compiled' if parts.plan.compile else 'not compiled'}"
    )


def trained_model(parts: Parts) -> Model:
    return unsharded(parts.model, parts.device) if parts.plan.parallel == "fsdp" else parts.model


def unsharded(model: Model, device: torch.device) -> Model:
    """The same with its weights whole, on every process."""
    weights = {name: whole(w).detach() for name, w in model.state_dict().items()}
    checkpoint = Checkpoint(
        model.config, weights, model.preprocess, model.class_names, model.provenance, license=model.license
    )
    return to_model(checkpoint).to(device)


def concluded(parts: Parts, model: Model, outcome: Outcome, run: Run) -> dict[str, Any]:
    """The bundle, then the one evaluation of the test split, whose scores it gets too."""
    experiment, test = parts.experiment, parts.sources.test
    model.license = inherited(model.license)
    broken = {key for found in gather(list(parts.loader.bad_files.found)) for key in found}
    results: dict[str, Any] = {
        "steps": outcome.steps,
        "kept_step": outcome.kept,
        "stopped_early": outcome.stopped_early,
        "seconds": outcome.seconds,
        "val": outcome.scores,
        "val_split": None if parts.sources.val is None else parts.sources.val.name,
        "val_examples": 0 if parts.sources.val is None else len(parts.sources.val),
        "test": None,
        "broken": len(broken),
        "train_examples": len(parts.sources.train),
        "computed": f"{described(parts)}, {world()} x {device_name(parts.device)}",
        "license": both_parts(model.license),
    }
    model.metrics = finite({"val": outcome.scores, "test": None})
    evidence = {**run.evidence(), "computed": results["computed"]}
    model.provenance = provenance_of(experiment, outcome.kept, evidence, model.provenance)
    results["model"] = publish(model, run.path)
    if test is not None and model.config.classes:
        # Training is over: broken test images are counted, and do not undo it.
        batch, workers = parts.evaluation_batch, experiment.data.workers
        measured = evaluate(model, test, batch_size=batch, num_workers=workers, max_bad=1.0)
        if rank() == 0:
            draw_evaluation(measured, test, run.path / "figures")
            write_mistakes(measured, test, run.path / MISTAKES)
        results["test"] = {s.name: s.value for s in measured.scores()}
        results |= {"test_split": test.name, "test_examples": measured.n, "test_broken": measured.broken}
        told = measured.as_json()
        results |= {name: told[name] for name in ("per_class", "wrong")}
        model.metrics = finite({"val": outcome.scores, "test": results["test"]})
        results["model"] = publish(model, run.path)
    return results


def provenance_of(
    experiment: Experiment, step: int, evidence: dict[str, Any], start: dict[str, Any]
) -> dict[str, Any]:
    """The experiment, the step of the weights, by what code and on what, and the provenance of what it began from."""
    made = {"format": "trained", "experiment": experiment.identity(), "step": step, **evidence}
    return made | ({"start": start} if has_weights(experiment.model.model) else {})


def write_mistakes(measured: Evaluation, test: Source, path: Path) -> None:
    with atomic_file(path) as temporary:
        lines = [json.dumps(one, ensure_ascii=False) + "\n" for one in measured.mistakes(test)]
        temporary.write_text("".join(lines), encoding="utf-8")


def publish(model: Model, folder: Path) -> dict[str, str]:
    """Write the bundle; the names of its files and their SHA-256."""
    if rank() == 0:
        save(model, folder / MODEL)
    return gather(written_model(folder) if rank() == 0 else {})[0]
