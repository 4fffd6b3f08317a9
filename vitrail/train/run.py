"""An experiment -> the loop -> a bundle, scores, pictures.

    run(experiment, out)        the whole of it; the same call again resumes, or returns the results

A run folder holds run.json, metrics.jsonl, bad_files.jsonl, mistakes.jsonl (of the test split, the most confident
first), checkpoints/, model/ (a bundle), figures/. Choices are made on the held-out part of train (`val`); the test
split is evaluated once, when training is over. A finished run whose model/ is missing or damaged writes it again from
its checkpoint. Pictures are drawn by the caller's `figures`, as vitrail.inspection.figures.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypedDict

from torch import Tensor, nn

from vitrail.checkpoints import adapter, bundle
from vitrail.checkpoints.checkpoint import Checkpoint, from_model, to_model
from vitrail.checkpoints.formats import load, save
from vitrail.checkpoints.json_files import Count
from vitrail.checkpoints.license import complete_license, inherit_license
from vitrail.checkpoints.model_card import write_card
from vitrail.checkpoints.run import Run
from vitrail.checkpoints.run.records import RUN_JSON, read_results, replace_nonfinite
from vitrail.checkpoints.run.state import fingerprint
from vitrail.checkpoints.torch_files import check_own_folder
from vitrail.data.several_labels import targets_of
from vitrail.data.sources import Source
from vitrail.errors import CheckpointError, Interrupted
from vitrail.evaluators.accuracy import Evaluation, evaluate
from vitrail.evaluators.label_scores import evaluate_labels
from vitrail.evaluators.score import Gallery
from vitrail.models.adapters import is_adapted, merge
from vitrail.models.calibration import Calibration
from vitrail.models.names import Model
from vitrail.objectives.objective import backbone
from vitrail.runtime.device import Device, device_name, peak_flops, pick
from vitrail.runtime.distributed import barrier, gather, group, rank, world
from vitrail.runtime.files import atomic_file
from vitrail.runtime.log import Board, note
from vitrail.runtime.memory import exhausted_memory
from vitrail.runtime.training_display import TrainingDisplay, Work
from vitrail.train.assemble import Assembled, Inputs, assemble, evaluation_batch, remarks
from vitrail.train.fit import Loop, Outcome
from vitrail.train.held_out import CalibrationEntries, calibrate_run
from vitrail.train.parallel import distribute, gather_tensor
from vitrail.train.settings import Experiment
from vitrail.train.state import TrainState
from vitrail.train.tuning import training_cost

MISTAKES, MODEL, ADAPTER = "mistakes.jsonl", "model", "adapter"
README = "README.md"  # the model's card
MODEL_FILES = (bundle.WEIGHTS, bundle.CARD)
Scores = dict[str, float | None]  # None: not a finite number


class ClassScore(TypedDict):
    name: str
    n: Count
    accuracy: float


class Always(TypedDict):
    steps: Count
    kept_step: Count
    stopped_early: bool
    seconds: float
    val: Scores
    val_split: str | None
    val_examples: Count
    test: Scores | None
    broken: Count
    train_examples: Count
    computed: str
    license: dict[str, str]


class Results(Always, total=False):
    """The results of a finished run in run.json; entries of the test split only where there is one."""

    model: dict[str, str]  # the files of its bundle, and their SHA-256
    test_split: str
    test_examples: Count
    test_broken: Count
    per_class: list[ClassScore]
    wrong: Count
    interval: dict[str, Any]  # 95%, of the accuracies
    labels: list[dict[str, Any]]  # of a model for several labels: the scores of each class
    calibration: CalibrationEntries  # what the bundle has, to write it again


class Figures(Protocol):
    """Draws a run: the module vitrail.inspection.figures."""

    def draw_run(self, run: Path) -> object:
        """Draw the curves of the metrics of a run folder."""
        ...

    def draw_gallery(self, gallery: Gallery, folder: Path) -> object: ...

    def draw_evaluation(self, evaluation: Evaluation, source: Source, folder: Path) -> object: ...


@dataclass(frozen=True)
class Trained:
    """A finished run. `results` is what run.json records: scores on `val` and `test`, and their evidence."""

    folder: Path
    results: dict[str, Any]

    def model(self) -> Model:
        return load(self.folder / MODEL)


def run(
    experiment: Experiment,
    out: str | Path,
    *,
    device: Device = "auto",
    inputs: Inputs | None = None,
    figures: Figures | None = None,
) -> Trained:
    """Train, evaluate, write the bundle. Interrupted, it raises `Interrupted`; called again, it resumes."""
    folder = Path(out)
    with group(pick(device)) as where:
        assembled = assemble(experiment, where, folder, inputs)
        with closing(assembled.open_run(folder)) as opened:
            results = finish(assembled, opened, figures)
            barrier()
    return Trained(folder, results)


def finish(
    assembled: Assembled,
    run: Run,
    figures: Figures | None,
    conclude: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> dict[str, Any]:
    """Train to the end in an open folder, and return what `conclude` makes of the results; those of a finished run at
    once, with its model/ written again where it is missing or damaged."""
    results = run.results(Results)
    if results is None:
        try:
            results = replace_nonfinite(conclude(train(assembled, run, figures)))
        except Exception as error:
            if exhausted_memory(error):
                steps = run.steps()
                stands = f"is saved at step {steps[-1]}" if steps else "had just begun"
                error.add_note(
                    f"{run.path} {stands}: the same command resumes it, even with other --num-workers; other "
                    "settings need another --out"
                )
            raise
        run.finish(results)
    elif gather(rank() == 0 and (is_broken(run.path, results) or lacks_adapter(assembled, run)))[0]:
        results = rewrite_model(assembled, run, results)
        run.finish(results)
    return results


def train(assembled: Assembled, run: Run, figures: Figures | None) -> dict[str, Any]:
    """Train in an open folder, evaluate, write the model; return the results."""
    experiment, device = assembled.experiment, assembled.device
    training, steps, first = experiment.training, int(experiment.training.steps), rank() == 0
    if first:
        for remark in remarks(experiment, assembled.sources):
            note(remark)
        note(f"Training on {device} in {describe_computation(assembled)}")
    module, state = build_state(assembled)
    tune = experiment.optimizer.tune
    flops, peak = training_cost(assembled.model.config, tune).flops, peak_flops(device) * world()
    work, bad = Work(steps, experiment.data.batch_size, flops, peak), assembled.loader.bad_files
    board = Board(run.path / "tensorboard") if training.tensorboard and first else None

    def draw(gallery: Gallery) -> None:
        if figures is not None:
            figures.draw_gallery(gallery, run.path / "figures")

    with TrainingDisplay(work, shown=first, broken=lambda: len(bad.examples), board=board) as display:
        outcome = Loop(
            state, module, assembled.loader, experiment, device, display, run, assembled.evaluators, draw
        ).fit()
    if first and figures is not None:
        figures.draw_run(run.path)
    if outcome.interrupted:
        raise Interrupted(outcome.interrupted, f"step {outcome.steps} of {steps}", str(run.path))
    return evaluate_and_publish(assembled, outcome, run, figures)


def describe_computation(assembled: Assembled) -> str:
    """Describe what `auto` became."""
    training = assembled.experiment.training
    return f"{training.precision}, {'not compiled' if training.compile == 'off' else 'compiled'}"


def build_state(assembled: Assembled) -> tuple[nn.Module, TrainState]:
    """Return the module that the loop calls, and the training state."""
    module = distribute(assembled.objective, assembled.experiment.training, assembled.device)
    return module, TrainState.build(assembled.objective, assembled.experiment, assembled.device)


def evaluate_and_publish(
    assembled: Assembled, outcome: Outcome, run: Run, figures: Figures | None
) -> dict[str, Any]:
    """Evaluate the test split, once, and write the bundle with its scores; return the results."""
    sources, test, model = assembled.sources, assembled.sources.test, trained_model(assembled)
    calibrate_run(model, assembled, run.path)
    broken = {key for keys in gather(list(assembled.loader.bad_files.examples)) for key in keys}
    results: dict[str, Any] = {
        "steps": outcome.steps,
        "kept_step": outcome.kept,
        "stopped_early": outcome.stopped_early,
        "seconds": outcome.seconds,
        "val": outcome.scores,
        "val_split": None if sources.val is None else sources.val.name,
        "val_examples": 0 if sources.val is None else len(sources.val),
        "test": None,
        "broken": len(broken),
        "train_examples": len(sources.train),
        "computed": f"{describe_computation(assembled)}, {world()} x {device_name(assembled.device)}",
        "license": complete_license(inherit_license(model.license)),
        "calibration": model.calibration.as_json(),
    }
    if test is not None and model.config.classes and targets_of(test) is not None:
        each, workers = evaluation_batch(assembled.experiment), assembled.experiment.data.num_workers
        labels = evaluate_labels(model, test, batch_size=each, num_workers=workers, max_bad=1.0)
        results["test"] = {s.name: s.value for s in labels.scores()}
        results |= {"test_split": test.name, "test_examples": labels.n, "test_broken": labels.broken}
        results["labels"] = [vars(one) for one in labels.per_class]
    elif test is not None and model.config.classes:
        # Training is over: broken test images are counted, and do not undo it.
        each, workers = evaluation_batch(assembled.experiment), assembled.experiment.data.num_workers
        evaluation = evaluate(model, test, batch_size=each, num_workers=workers, max_bad=1.0)
        if rank() == 0:
            if figures is not None:
                figures.draw_evaluation(evaluation, test, run.path / "figures")
            lines = [json.dumps(one, ensure_ascii=False) + "\n" for one in evaluation.mistakes(test)]
            with atomic_file(run.path / MISTAKES) as temporary:
                temporary.write_text("".join(lines), encoding="utf-8")
        results["test"] = {s.name: s.value for s in evaluation.scores()}
        results |= {"test_split": test.name, "test_examples": evaluation.n, "test_broken": evaluation.broken}
        summary = evaluation.as_json()
        results |= {name: summary[name] for name in ("per_class", "wrong", "interval")}
    return publish(model, assembled, run, results)


def rewrite_model(assembled: Assembled, run: Run, results: dict[str, Any]) -> dict[str, Any]:
    """Write the missing or damaged bundle of a finished run again from its checkpoint; return the results."""
    place, step = run.path / MODEL, results["kept_step"]
    _, state = build_state(assembled)
    try:
        run.restore(state.tensors(), step=step)
    except CheckpointError as error:
        raise CheckpointError(
            f"the run is finished, but {place} is missing or damaged, and cannot be written again without its "
            f"checkpoint: {error}. Restore either of them; or remove {run.path}, or choose another, to train again"
        ) from error
    state.keep_average()
    if rank() == 0:
        if is_broken(run.path, results):
            note(f"{place} was missing or damaged: writing it again from the checkpoint of step {step}")
        check_own_folder(place, MODEL_FILES, "trained")  # one with anything else in it is not a run's
        shutil.rmtree(place, ignore_errors=True)
    return publish(trained_model(assembled), assembled, run, results)


def trained_model(assembled: Assembled) -> Model:
    """Return the model to save: its weights whole on every process, adapters merged into them."""
    model = backbone(assembled.objective)
    if assembled.experiment.training.parallel != "fsdp" and not is_adapted(model):
        return model
    checkpoint = Checkpoint(
        model.config,
        merge(whole_weights(model)),
        model.preprocess,
        model.class_names,
        model.provenance,
        license=model.license,
    )
    return to_model(checkpoint).to(assembled.device)


def whole_weights(model: Model) -> dict[str, Tensor]:
    return {name: gather_tensor(w).detach() for name, w in model.state_dict().items()}


def publish(model: Model, assembled: Assembled, run: Run, results: dict[str, Any]) -> dict[str, Any]:
    """Write the bundle with its scores, license and provenance: the experiment, the step of the weights, the code,
    the hardware and the start; and its card. Return the results with the names of its files and their SHA-256."""
    provenance = {
        "format": "trained",
        "experiment": assembled.identity,
        "step": results["kept_step"],
        **run.evidence(),
        "computed": results["computed"],
    }
    model.provenance = provenance | ({"start": model.provenance} if assembled.from_weights else {})
    model.license = inherit_license(model.license)
    model.calibration = Calibration.from_json(results.get("calibration", {}))
    test = results["test"]
    if test is not None:
        test = {**test, "n": results["test_examples"], "interval": results.get("interval", {})}
    model.metrics = replace_nonfinite({"val": results["val"], "test": test})
    own = whole_weights(backbone(assembled.objective)) if assembled.base else {}
    if rank() == 0:
        save(model, run.path / MODEL)
        with atomic_file(run.path / README) as file:
            card = write_card(from_model(model), run.path.resolve().name, load=str(run.path / MODEL))
            file.write_text(card, encoding="utf-8")
        if own:
            adapter.write(from_model(model), own, assembled.base, run.path / ADAPTER)
    return results | {"model": gather(written_model(run.path) if rank() == 0 else {})[0]}


def written_model(folder: Path) -> dict[str, str]:
    """Return the files of a run's bundle and their SHA-256; nothing where one of them is missing."""
    try:
        return {name: fingerprint(folder / MODEL / name)["sha256"] for name in MODEL_FILES}
    except OSError:
        return {}


def is_broken(folder: Path, results: dict[str, Any]) -> bool:
    """Return True for a finished run whose bundle is not the one that was written."""
    return not (model := written_model(folder)) or model != results.get("model")


def lacks_adapter(assembled: Assembled, run: Run) -> bool:
    return bool(assembled.base) and not (run.path / ADAPTER).exists()


def lacks_model(folder: Path) -> bool:
    """Return True for the folder of a finished run whose bundle is not the one that was written."""
    results = read_results(folder) if os.path.lexists(folder / RUN_JSON) else None
    return results is not None and is_broken(folder, results)
