"""An experiment -> its parts: data, model, objective, batches, evaluators. Nothing here writes to the run's folder,
so that whatever does not fit together is found before anything is written.

The data set and the weights to start from are read once (`Inputs`), however many runs are assembled from them.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.checkpoints.checkpoint import Checkpoint, change_classes, to_model
from vitrail.checkpoints.formats import create, has_weights, read
from vitrail.data import preprocess as pp
from vitrail.data.bad_files import BadFiles
from vitrail.data.loader import Loader
from vitrail.data.resident import ResidentLoader
from vitrail.data.sources import DataSet, Source
from vitrail.errors import ConfigError, DataError
from vitrail.evaluators.fewshot import FewShot
from vitrail.evaluators.score import Evaluator
from vitrail.models.names import Config, Model, make_config
from vitrail.models.vit import ViT
from vitrail.runtime.distributed import local_world, rank, world
from vitrail.runtime.log import summary_writer
from vitrail.train.data_splits import Sources, open_data
from vitrail.train.folders import plain
from vitrail.train.optim import freeze
from vitrail.train.parallel import check_groups
from vitrail.train.settings import Experiment, ModelSettings

MOST_WORKERS = 16
MOST_EVALUATED = 256  # images at a time on one process


@dataclass(frozen=True)
class Inputs:
    """The data set and the weights that a run starts from, open and in memory."""

    data: DataSet
    start: Checkpoint | None  # None: fresh weights

    @classmethod
    def read(cls, experiment: Experiment) -> Inputs:
        data = open_data(experiment.data)
        return cls(data, read_start(experiment.model))


def read_start(settings: ModelSettings) -> Checkpoint | None:
    """Read the weights that a model's name stands for; None where it names an architecture."""
    return read(settings.model, image_size=settings.image_size) if has_weights(settings.model) else None


@dataclass(frozen=True)
class Assembled:
    """A run that is ready to begin, on its device."""

    experiment: Experiment  # resolved
    identity: dict[str, Any]  # of the experiment as it was given
    sources: Sources
    model: Model  # the weights that training begins with
    objective: nn.Module
    loader: Loader
    evaluators: list[Evaluator]
    device: torch.device
    from_weights: bool  # it starts from weights that were loaded

    def used(self) -> dict[str, Any]:
        """Return the values of settings that an experiment may leave open."""
        splits = {name: None if split is None else split.name for name, split in vars(self.sources).items()}
        lines = {"preprocess": str(self.loader.stream.pipeline), "evaluate_preprocess": self.model.preprocess}
        return {**splits, **lines, "config": asdict(self.model.config)}


def assemble(
    experiment: Experiment, device: torch.device, folder: Path, inputs: Inputs | None = None
) -> Assembled:
    """Build everything, with fresh weights by the seed. Broken files will be listed in `folder`."""
    inputs = Inputs.read(experiment) if inputs is None else inputs
    sources = Sources.open(experiment.data, inputs.data)
    check_fits(experiment, sources.train)
    resolved = experiment.resolve(len(sources.train), cuda=device.type == "cuda")
    check_device(resolved, device)
    torch.manual_seed(experiment.seed)
    model = build_model(experiment, sources.train, inputs.start)
    objective = experiment.objective.build(model).to(device)
    freeze(model, experiment.optimizer.freeze)
    if isinstance(model, ViT):
        model.encoder.activation_checkpointing = experiment.training.activation_checkpointing
    loader = build_loader(resolved, sources.train, model, folder, device)
    evaluators = build_evaluators(experiment, objective, sources.val)
    check_monitor(experiment, evaluators)
    return Assembled(
        resolved,
        experiment.identity(),
        sources,
        model,
        objective,
        loader,
        evaluators,
        device,
        from_weights=inputs.start is not None,
    )


def build_model(experiment: Experiment, train: Source, start: Checkpoint | None) -> Model:
    """Build the model for the data's classes: fresh, or with the weights of `start` and a new head of zeros."""
    settings, names = experiment.model, train.class_names
    classes = len(names) if experiment.objective.needs_labels else 0
    if classes == 1:
        raise DataError(f"{train.name} has only one class, {names[0]}: there is nothing to tell apart")
    if start is not None:
        settings.check_for_weights()
        overrides = settings.architecture()
        if overrides.get("dropout") == 0:
            overrides.setdefault("attention_dropout", 0.0)  # 0 is none at all
        start = change_classes(start, 0)
        config = replace(start.config, **overrides)
        # Parameters are the checkpoint's own tensors: other runs may start from it too.
        weights = {name: w.clone() for name, w in start.weights.items()}
        start = replace(start, config=config, weights=weights)
        model = to_model(start, classes=classes, image_size=settings.image_size)
    else:
        model = create(
            settings.model, classes=classes, image_size=settings.image_size, **fresh_overrides(settings)
        )
    if experiment.data.evaluate_preprocess:
        model.preprocess = str(pp.parse(experiment.data.evaluate_preprocess))
    model.class_names = list(names) if classes else None
    return model


def fresh_overrides(settings: ModelSettings) -> dict[str, Any]:
    """Return what differs from the named architecture, but for the image size."""
    overrides = settings.architecture()
    if settings.pre_logits:
        overrides["pre_logits"] = overrides.get("width") or make_config(settings.model).width
    return overrides


def fresh_config(settings: ModelSettings, classes: int) -> Config:
    """Return the architecture of a model with fresh weights."""
    size = {} if settings.image_size is None else {"image_size": settings.image_size}
    return make_config(settings.model, classes=classes, **size, **fresh_overrides(settings))


def check_fits(experiment: Experiment, train: Source) -> None:
    """Raise where the settings do not fit each other, the data or the processes."""
    data, training = experiment.data, experiment.training
    if data.batch_size > len(train):
        raise ConfigError(
            f"batch_size {data.batch_size} is larger than the {len(train)} examples of {train.name}"
        )
    if data.batch_size % (world() * training.grad_accum):
        raise ConfigError(
            f"batch_size {data.batch_size} cannot be split into equal parts: {world()} for the processes, times "
            f"{training.grad_accum} (grad_accum)"
        )
    check_groups(training.parallel, training.replicas)
    check_labels(experiment)
    if training.tensorboard:
        summary_writer()  # an error where it is not installed


def check_labels(experiment: Experiment) -> None:
    """Refuse mixing for an objective without labels: run.json would say that it acted."""
    mixing = {name: getattr(experiment.data, name) for name in ("mixup", "cutmix")}
    if not experiment.objective.needs_labels and any(mixing.values()):
        used = ", ".join(f"{name} {value:g}" for name, value in mixing.items() if value)
        raise ConfigError(f"{used}: mixes labels, which this objective does not use; set it to 0")


def check_device(experiment: Experiment, device: torch.device) -> None:
    training = experiment.training
    if training.compile == "graphs" and (world() > 1 or training.grad_accum > 1 or device.type != "cuda"):
        raise ConfigError(
            f"compile graphs is for one process on cuda with grad_accum 1, not for {world()} on {device.type} with "
            f"grad_accum {training.grad_accum}"
        )


def check_monitor(experiment: Experiment, evaluators: list[Evaluator]) -> None:
    names = [name for evaluator in evaluators for name in getattr(evaluator, "names", ())]
    open_ended = any(not hasattr(evaluator, "names") for evaluator in evaluators)
    monitor = experiment.training.monitor
    if monitor and monitor not in names and not open_ended:
        raise ConfigError(f"monitor {monitor!r} is not among the scores: {', '.join(names) or 'none'}")


def build_loader(
    experiment: Experiment, train: Source, model: Model, folder: Path, device: torch.device
) -> Loader:
    """Return the loader of this process's part of the batches."""
    data = replace(experiment.data, num_workers=count_workers(experiment.data.num_workers, device))
    views = experiment.objective.views(model, data)
    # Each epoch is shared out anew, so that in time each process meets nearly all of the broken examples. What
    # processes of an earlier sitting found, which may have been more of them, the first one counts too.
    first = rank() == 0
    own = folder / ("bad_files.jsonl" if first else f"bad_files.{rank()}.jsonl")
    others = sorted(folder.glob("bad_files.*.jsonl")) if first else []
    bad_files = BadFiles(len(train), data.max_bad, own, others)
    seed = experiment.seed
    if data.resident:
        return ResidentLoader(
            train, views, data, seed=seed, rank=rank(), world=world(), bad_files=bad_files,
            compile=experiment.training.compile != "off",
        )  # fmt: skip
    return Loader(train, views, data, seed=seed, rank=rank(), world=world(), bad_files=bad_files)


def count_workers(num_workers: int | None, device: torch.device) -> int:
    """Return the number of decoding processes; on a CPU the model needs the cores itself."""
    if num_workers is not None:
        return num_workers
    return min(MOST_WORKERS, os.cpu_count() or 1) // max(1, local_world()) if device.type == "cuda" else 0


def build_evaluators(experiment: Experiment, objective: nn.Module, val: Source | None) -> list[Evaluator]:
    """Return what is measured during training: nothing of the test split."""
    evaluators: list[Evaluator] = []
    if val is not None and hasattr(experiment.objective, "evaluators"):
        data = replace(experiment.data, batch_size=evaluation_batch(experiment))
        evaluators += experiment.objective.evaluators(objective, val, data)
    for where in experiment.data.fewshot:
        data_set = DataSet(where)
        train, test = (data_set.part(f"train[{part} per class]") for part in (":90%", "90%:"))
        evaluators.append(FewShot(train, test, shots=(5,), name=plain(where)))
    return evaluators


def evaluation_batch(experiment: Experiment) -> int:
    """Return the images at a time on this process: what fits in training fits in evaluation."""
    each = experiment.data.batch_size // world() // experiment.training.grad_accum
    return max(1, min(MOST_EVALUATED, each))
