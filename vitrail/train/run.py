"""An experiment -> model, data, objective, optimizer -> the loop -> a bundle, scores, pictures.

    run(experiment, out)        the whole of it; the same call again continues, or returns what was found

A run folder holds run.json, metrics.jsonl, bad_files.jsonl, checkpoints/, model/ (a bundle), figures/. Choices
look at the held-out part of train (`val`); the test split is evaluated once, when training is over.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.checkpoints.checkpoint import Checkpoint, of_model, to_model
from vitrail.checkpoints.formats import create, load, save
from vitrail.checkpoints.run import Run
from vitrail.data import preprocess as pp
from vitrail.data.bad_files import BadFiles
from vitrail.data.loader import Loader, Loading
from vitrail.data.masking import Masking
from vitrail.data.sources import TEST_SPLITS, Source, open_source, splits_of
from vitrail.errors import ConfigError, DataError, Interrupted
from vitrail.evaluators.accuracy import Accuracy, evaluate
from vitrail.evaluators.score import Evaluator
from vitrail.inspection.drawing import loss_curve
from vitrail.inspection.figures import draw_evaluation
from vitrail.models.cost import cost
from vitrail.models.names import Model, config_of
from vitrail.models.vit import ViT
from vitrail.objectives.masked_patches import MaskedPatches
from vitrail.objectives.supervised import Supervised
from vitrail.runtime.device import Device, peak_flops, pick
from vitrail.runtime.distributed import barrier, group, rank, world
from vitrail.runtime.log import Board, note
from vitrail.runtime.training_display import TrainingDisplay, Work
from vitrail.train.experiment import DataChoice, Experiment, ObjectiveChoice, Training
from vitrail.train.fit import Outcome, Plan, fit
from vitrail.train.optim import freeze
from vitrail.train.parallel import distribute, whole
from vitrail.train.patch_watch import PatchWatch
from vitrail.train.state import TrainState

MOST_WORKERS = 16


@dataclass(frozen=True)
class Trained:
    """A finished run. `results` is what run.json records: scores on `val` and `test`, and what they stand on."""

    folder: Path
    results: dict[str, Any]

    def model(self) -> Model:
        return load(self.folder / "model")


def run(experiment: Experiment, out: str | Path, *, device: Device = "auto") -> Trained:
    """Train, evaluate, write the bundle. Interrupted, it raises `Interrupted`; called again, it continues."""
    folder = Path(out)
    with group(pick(device)) as where:
        sources = Sources.open(experiment.data)
        torch.manual_seed(experiment.seed)
        model = model_of(experiment, sources.train)
        training = experiment.training.in_steps(len(sources.train), experiment.data.batch)
        check_fits(experiment, sources.train)
        with closing(Run.open(folder, experiment.identity(), keep=training.keep)) as here:
            done = here.results()
            if done is None:
                done = train(experiment, training, sources, model.to(where), here, where)
                here.finish(done)
            barrier()
    return Trained(folder, done)


def train(
    experiment: Experiment, training: Training, sources: Sources, model: Model, run: Run, device: torch.device
) -> dict[str, Any]:
    """One run in an open folder: its results."""
    objective = objective_of(experiment.objective, model).to(device)
    freeze(model, training.optimization.freeze)
    plan = plan_of(training, experiment.seed, device)
    if isinstance(model, ViT):
        model.encoder.recompute = training.recompute
    module = distribute(objective, plan.parallel, plan.replicas, device, plan.bf16)
    if plan.compile:
        objective.compile()
    state = TrainState(objective, training.optimization, training.average, device)
    loader = training_loader(experiment, sources.train, model, run.path, device)
    evaluators = evaluators_of(experiment, sources, objective, run.path)
    flops = cost(model.config).training_flops
    work = Work(plan.steps, experiment.data.batch, flops, peak_flops(device) * world())
    first = rank() == 0
    board = Board(run.path / "tensorboard") if training.tensorboard and first else None
    with TrainingDisplay(
        work, shown=first, broken=lambda: len(loader.bad_files.found), board=board
    ) as display:
        outcome = fit(
            objective, loader, state, plan, module=module, run=run, evaluators=evaluators, device=device,
            display=display,
        )  # fmt: skip
    if rank() == 0:
        loss_curve(run.rows(), run.path / "figures" / "loss.png", title=experiment.model.model)
    if outcome.interrupted:
        raise Interrupted(outcome.interrupted, outcome.steps, plan.steps, str(run.path))
    model = unsharded(model, device) if plan.parallel == "fsdp" else model
    return concluded(experiment, sources, model, outcome, run, loader.bad_files)


def unsharded(model: Model, device: torch.device) -> Model:
    """The same with its weights whole, on every process."""
    weights = {name: whole(w).detach() for name, w in model.state_dict().items()}
    checkpoint = Checkpoint(model.config, weights, model.preprocess, model.class_names)
    return to_model(checkpoint).to(device)


def concluded(
    experiment: Experiment, sources: Sources, model: Model, outcome: Outcome, run: Run, bad: BadFiles
) -> dict[str, Any]:
    """The one evaluation of the test split, and the bundle."""
    results: dict[str, Any] = {"steps": outcome.steps, "stopped_early": outcome.stopped_early}
    results["seconds"] = outcome.seconds
    results |= {"val": outcome.scores, "val_split": experiment.data.val, "test": None}
    results |= {"broken": len(bad.found), "train_examples": len(sources.train)}
    if sources.test is not None and model.config.classes:
        measured = evaluate(model, sources.test, batch=experiment.data.batch, workers=experiment.data.workers)
        if rank() == 0:
            draw_evaluation(measured, sources.test, run.path / "figures")
        results["test"] = {s.name: s.value for s in measured.scores()}
        results |= {"test_split": sources.test.name, "test_examples": measured.n}
    model.metrics = {"val": outcome.scores, "test": results["test"]}
    model.provenance = {"format": "trained", "experiment": experiment.identity()}
    if rank() == 0:
        save(model, run.path / "model")
    return results


@dataclass(frozen=True)
class Sources:
    train: Source
    val: Source | None
    test: Source | None

    @classmethod
    def open(cls, choice: DataChoice) -> Sources:
        if not choice.data:
            raise ConfigError("no data: --data PATH (a folder of images, Parquet or tar shards), or a name")
        train = open_source(choice.data, choice.train)
        val = None if choice.val in ("", "none") else open_source(choice.data, choice.val)
        test = choice.test
        if test == "auto":
            there = splits_of(choice.data)
            test = next((name for name in TEST_SPLITS if name in there), "none")
        held = None if test in ("", "none") else open_source(choice.data, test)
        for other in (val, held):
            if other is not None and other.class_names != train.class_names:
                raise DataError(different_classes(train, other))
        return cls(train, val, held)


def different_classes(train: Source, other: Source) -> str:
    only = sorted(set(other.class_names) - set(train.class_names))
    missing = sorted(set(train.class_names) - set(other.class_names))
    return (
        f"{other.name} and {train.name} do not have the same classes: "
        + "; ".join(
            f"only in {name}: {', '.join(found[:5])}"
            for name, found in ((other.name, only), (train.name, missing))
            if found
        )
        + ("" if only or missing else "the order differs")
    )


def model_of(experiment: Experiment, train: Source) -> Model:
    """A name gives fresh weights for the data's classes, a path its own with a new head of zeros."""
    choice, objective = experiment.model, experiment.objective
    classes = 0 if objective.objective == "masked" else len(train.class_names)
    if classes == 1:
        raise DataError(
            f"{train.name} has one class only, {train.class_names[0]}: there is nothing to tell apart"
        )
    fields = ("pool", "dropout", "drop_path", "head_bias")
    given = {name: getattr(choice, name) for name in fields if getattr(choice, name) is not None}
    if Path(choice.model).exists():
        if choice.pre_logits:
            given["pre_logits"] = True
        model = with_regularisation(load(choice.model, classes=classes, image_size=choice.image_size), given)
    else:
        if choice.pre_logits:
            given["pre_logits"] = config_of(choice.model).width
        model = create(choice.model, classes=classes, image_size=choice.image_size, **given)
    if experiment.data.evaluate_preprocess:
        model.preprocess = str(pp.parse(experiment.data.evaluate_preprocess))
    model.class_names = list(train.class_names) if classes else None
    return model


def with_regularisation(model: Model, given: dict[str, Any]) -> Model:
    """Loaded weights in an architecture with other dropout; what would need other weights is refused."""
    if fixed := [name for name in given if name not in ("dropout", "drop_path")]:
        raise ConfigError(f"{', '.join(fixed)} cannot be set for weights that are loaded")
    if not given:
        return model
    checkpoint = of_model(model)
    return to_model(replace(checkpoint, config=replace(checkpoint.config, **given)))


def check_fits(experiment: Experiment, train: Source) -> None:
    if experiment.data.batch > len(train):
        raise ConfigError(
            f"a batch of {experiment.data.batch} is larger than the {len(train)} examples of {train.name}"
        )


def objective_of(choice: ObjectiveChoice, model: Model) -> nn.Module:
    if choice.objective != "masked":
        return Supervised(model, choice.objective, choice.smoothing)
    if not isinstance(model, ViT):
        raise ConfigError("masked patch prediction needs a model with patches: a ViT or a hybrid")
    if "to_range(-1, 1)" not in model.preprocess:
        raise ConfigError(f"masked patch prediction takes images in [-1, 1], not '{model.preprocess}'")
    return MaskedPatches(model, choice.target, choice.corrupted)


def plan_of(training: Training, seed: int, device: torch.device) -> Plan:
    """The loop's part of a training whose durations are in steps."""
    t, cuda = training, device.type == "cuda"
    assert (
        isinstance(t.log_every, int) and isinstance(t.evaluate_every, int) and isinstance(t.save_every, int)
    )
    return Plan(
        t.schedule(),
        seed=seed,
        accumulate=t.accumulate,
        clip=t.clip,
        bf16=t.precision == "bf16" or (t.precision == "auto" and cuda),
        compile=t.compile == "on" or (t.compile == "auto" and cuda),
        parallel=t.parallel,
        replicas=t.replicas,
        log_every=t.log_every,
        evaluate_every=t.evaluate_every,
        save_every=t.save_every,
        watch=t.watch,
        patience=t.patience,
        on_nonfinite=t.on_nonfinite,
        max_skipped=t.max_skipped,
    )


def training_loader(
    experiment: Experiment, train: Source, model: Model, folder: Path, device: torch.device
) -> Loader:
    """This process's part of the batches."""
    choice = experiment.data
    line = choice.preprocess or training_line(model)
    pipeline = pp.parse(line)
    if pipeline.image_size != tuple(model.config.image_size):
        raise ConfigError(f"'{line}' makes {pipeline.image_size}, the model takes {model.config.image_size}")
    loading = Loading(
        batch=choice.batch,
        seed=experiment.seed,
        workers=workers_of(choice, device),
        mixup=choice.mixup,
        cutmix=choice.cutmix,
        masking=masking_of(experiment.objective, model),
        rank=rank(),
        world=world(),
        max_bad=choice.max_bad,
    )
    name = "bad_files.jsonl" if rank() == 0 else f"bad_files.{rank()}.jsonl"
    # Each process sees about its share of the examples, so it bears its share of the broken ones.
    bad_files = BadFiles(-(-len(train) // world()), choice.max_bad, folder / name)
    return Loader(train, pipeline, loading, bad_files=bad_files)


def masking_of(choice: ObjectiveChoice, model: Model) -> Masking | None:
    if choice.objective != "masked":
        return None
    assert isinstance(model, ViT)
    N = model.config.grid[0] * model.config.grid[1]
    return Masking(N, choice.corrupted, choice.masked, choice.replaced)


def training_line(model: Model) -> str:
    """Inception crop and flip, to the model's size and range."""
    H, W = model.config.image_size
    size = f"{H}" if H == W else f"{H}, {W}"
    value = pp.parse(model.preprocess).value_op
    return str(pp.Pipeline(pp.parse(f"inception_crop({size})|flip_lr|uint8").pixel_ops, value))


def workers_of(choice: DataChoice, device: torch.device) -> int:
    """On a CPU the model needs the cores itself."""
    if choice.workers is not None:
        return choice.workers
    return min(MOST_WORKERS, os.cpu_count() or 1) // max(1, local_world()) if device.type == "cuda" else 0


def local_world() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def evaluators_of(
    experiment: Experiment, sources: Sources, objective: nn.Module, folder: Path
) -> list[Evaluator]:
    """What is looked at while training: nothing of the test split."""
    made: list[Evaluator] = []
    batch = experiment.data.batch
    if sources.val is not None and isinstance(objective, MaskedPatches):
        masking = masking_of(experiment.objective, objective.model)
        assert masking is not None
        made.append(PatchWatch(objective, sources.val, masking, batch, folder / "figures"))
    elif sources.val is not None:
        made.append(Accuracy(sources.val, None, batch, experiment.data.workers, name="val"))
    for where in experiment.data.fewshot:
        from vitrail.evaluators.fewshot import FewShot

        train, test = open_source(where, "train[:90%]"), open_source(where, "train[90%:]")
        made.append(FewShot(train, test, shots=(5,), name=Path(where).name))
    if experiment.training.watch and not made:
        note("nothing is held out, so nothing is watched")
    return made
