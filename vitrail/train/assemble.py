"""An experiment -> its parts: data, model, objective, batches, evaluators. Nothing here writes to the run's folder,
so that contradictions are found before anything is written.

The data set and the weights to start from are read once (`Inputs`), however many runs are assembled from them.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrail.checkpoints.adapter import base_digest
from vitrail.checkpoints.checkpoint import (
    Checkpoint,
    change_classes,
    change_image_size,
    model_digest,
    to_model,
)
from vitrail.checkpoints.formats import create, has_weights, read, take_any_shape
from vitrail.checkpoints.run import Run
from vitrail.data import preprocess as pp
from vitrail.data.bad_files import BadFiles
from vitrail.data.loader import Loader
from vitrail.data.resident import ResidentLoader
from vitrail.data.several_labels import targets_of
from vitrail.data.sources import DataSet, Source
from vitrail.errors import ConfigError, DataError
from vitrail.evaluators.fewshot import FewShot
from vitrail.evaluators.score import Evaluator
from vitrail.models.calibration import Calibration
from vitrail.models.names import Config, Model, make_config
from vitrail.models.vit import ViT
from vitrail.runtime.device import computing_seconds
from vitrail.runtime.distributed import launched, local_world, rank, world
from vitrail.runtime.log import summary_writer
from vitrail.train.data_splits import Sources, list_some, open_data, without_images
from vitrail.train.frozen import FrozenLoader, is_cacheable
from vitrail.train.parallel import check_processes
from vitrail.train.settings import Experiment, ModelSettings
from vitrail.train.tuning import parse_tune, select, training_cost

MOST_WORKERS = 16
MOST_EVALUATED = 256  # images at a time on one process
LAUNCHING = 0.01  # seconds in which a step's kernels are launched, if they are not compiled
COMPILED = 100  # seconds of training from which on compiling, most of a minute, is worth the time
MOST_LEFT = 0.3  # share of the first weights in the average that may be left at the end without a remark


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
    """Read the weights of a model by name; None if it names an architecture."""
    return read(settings.model, image_size=settings.pixels) if has_weights(settings.model) else None


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
    base: str  # digest of these, where adapters to them are to be saved

    def open_run(self, folder: Path, identity: dict[str, Any] | None = None) -> Run:
        """Open its folder, new or to be resumed; refuse that of another. `identity`: what tells runs apart."""
        splits = {name: None if split is None else split.name for name, split in vars(self.sources).items()}
        lines = {"preprocess": str(self.loader.stream.pipeline), "evaluate_preprocess": self.model.preprocess}
        return Run.open(
            folder,
            self.identity if identity is None else identity,
            keep=self.experiment.training.keep,
            data=self.sources.fingerprint(),
            start=model_digest(self.model) if self.from_weights else None,
            used={**splits, **lines, "config": asdict(self.model.config)},
        )


def assemble(
    experiment: Experiment, device: torch.device, folder: Path, inputs: Inputs | None = None
) -> Assembled:
    """Build everything, with fresh weights by the seed. Broken files will be listed in `folder`."""
    inputs = Inputs.read(experiment) if inputs is None else inputs
    sources = Sources.open(experiment.data, inputs.data)
    check_fits(experiment, sources.train, world())
    resolved = experiment.resolve(len(sources.train), cuda=device.type == "cuda")
    training = resolved.training
    if training.compile == "graphs" and (world() > 1 or training.grad_accum > 1 or device.type != "cuda"):
        raise ConfigError(
            f"compile graphs is for one process on cuda with grad_accum 1, not for {world()} on {device.type} with "
            f"grad_accum {training.grad_accum}"
        )
    if training.compile == "graphs" and training.on_nonfinite == "skip":
        raise ConfigError("compile graphs records whole steps, and cannot skip one: set on_nonfinite to stop")
    if training.parallel == "fsdp" and not launched():
        raise ConfigError("parallel=fsdp needs processes to share the weights: use torchrun, or leave it out")
    if training.save_adapter and (parse_tune(resolved.optimizer.tune).kind != "lora" or inputs.start is None):
        raise ConfigError(
            f"save_adapter is for adapters to weights that are loaded: set tune to lora:R, and model to weights, not "
            f"tune {resolved.optimizer.tune} and model {experiment.model.model}"
        )
    torch.manual_seed(experiment.seed)
    model = build_model(experiment, sources.train, inputs.start)
    select(model, experiment.optimizer.tune, experiment.optimizer.freeze)
    resolved = choose_compile(experiment, resolved, model.config, device)
    objective = experiment.objective.build(model).to(device)
    if callable(count_classes := getattr(objective, "count_classes", None)):
        counts = np.bincount(sources.train.labels, minlength=len(sources.train.class_names))
        count_classes(torch.from_numpy(counts).to(device))
    if isinstance(model, ViT):
        model.encoder.activation_checkpointing = training.activation_checkpointing
    return Assembled(
        resolved,
        identity=experiment.identity(),
        sources=sources,
        model=model,
        objective=objective,
        loader=build_loader(resolved, sources.train, model, folder, device),
        evaluators=build_evaluators(experiment, objective, sources.val),
        device=device,
        from_weights=inputs.start is not None,
        base=base_digest(inputs.start) if training.save_adapter and inputs.start is not None else "",
    )


def choose_compile(
    experiment: Experiment, resolved: Experiment, config: Config, device: torch.device
) -> Experiment:
    """Return the resolved experiment with what `compile auto` means for a run of its length."""
    if experiment.training.compile != "auto" or is_worth_compiling(resolved, config, device):
        return resolved
    return replace(resolved, training=replace(resolved.training, compile="off"))


def is_worth_compiling(experiment: Experiment, config: Config, device: torch.device) -> bool:
    """Return whether a run on a GPU takes so long that compiling is won back. `experiment`: resolved."""
    if device.type != "cuda":
        return False
    optimizer, steps = experiment.optimizer, int(experiment.training.steps)
    flops = (
        training_cost(config, optimizer.tune, optimizer.freeze).flops * experiment.data.batch_size / world()
    )
    return steps * max(LAUNCHING, computing_seconds(flops, device)) > COMPILED


def check_fits(experiment: Experiment, train: Source, processes: int) -> None:
    """Raise an error if the settings contradict each other, the data or the number of processes."""
    batch_size, training = experiment.data.batch_size, experiment.training
    if batch_size > len(train):
        raise ConfigError(f"batch_size {batch_size} is larger than the {len(train)} examples of {train.name}")
    check_processes(training, batch_size, processes)
    check_mixing(experiment)
    if targets_of(train) is not None:
        check_several(experiment, train)
    if training.tensorboard:
        summary_writer()  # an error where it is not installed


def check_several(experiment: Experiment, train: Source) -> None:
    """Refuse settings that mean nothing where an image has several labels."""
    data, objective = experiment.data, experiment.objective
    if objective.needs_labels and (loss := getattr(objective, "loss", "sigmoid")) != "sigmoid":
        raise ConfigError(f"{train.name} has several labels for an image: set loss to sigmoid, not {loss}")
    for name in ("mixup", "cutmix", "resident", "fewshot"):
        if getattr(data, name):
            raise ConfigError(f"{train.name} has several labels for an image, which {name} does not take")


def check_mixing(experiment: Experiment) -> None:
    """Refuse mixing for an objective without labels: run.json would say that it acted."""
    mixing = {name: getattr(experiment.data, name) for name in ("mixup", "cutmix")}
    if not experiment.objective.needs_labels and any(mixing.values()):
        used = ", ".join(f"{name} {value:g}" for name, value in mixing.items() if value)
        raise ConfigError(f"{used}: mixes labels, which this objective does not use; set it to 0")


def build_model(experiment: Experiment, train: Source, start: Checkpoint | None) -> Model:
    """Build the model for the data's classes: fresh, or with the weights of `start` and a new head of zeros."""
    settings, names = experiment.model, train.class_names
    classes = len(names) if experiment.objective.needs_labels else 0
    if classes == 1:
        raise DataError(f"{train.name} has only one class, {names[0]}: at least two are needed")
    if start is None:
        model = create(settings.model, classes=classes, **settings.fresh_overrides())
    else:
        overrides = settings.loaded_overrides()
        if overrides.get("dropout") == 0:
            overrides.setdefault("attention_dropout", 0.0)  # 0 is none at all
        body = change_classes(start, 0)
        # Parameters are the checkpoint's own tensors: other runs may start from it too.
        weights = {name: w.clone() for name, w in body.weights.items()}
        body = replace(body, config=replace(body.config, **overrides), weights=weights)
        model = to_model(body, classes=classes, image_size=settings.pixels)
    if settings.image_size == "any":
        take_any_shape(model, settings.max_tokens)
    if experiment.data.evaluate_preprocess:
        model.preprocess = str(pp.parse(experiment.data.evaluate_preprocess))
    model.class_names = list(names) if classes else None
    model.calibration = Calibration(multi_label=bool(classes) and targets_of(train) is not None)
    return model


def model_config(experiment: Experiment, classes: int, start: Checkpoint | None = None) -> Config:
    """Return the config of the model that a run would train: fresh, or from the weights of `start`."""
    settings = experiment.model
    classes = classes if experiment.objective.needs_labels else 0
    if start is None:
        return make_config(settings.model, classes=classes, **settings.fresh_overrides())
    body = change_classes(start, 0)  # its head is never kept
    return change_image_size(change_classes(body, classes), settings.pixels).config


def build_loader(
    experiment: Experiment, train: Source, model: Model, folder: Path, device: torch.device
) -> Loader:
    """Return the loader of this process's part of the batches."""
    data = experiment.data
    if data.num_workers is None:  # on a CPU the model needs the cores itself
        many = min(MOST_WORKERS, os.cpu_count() or 1) // max(1, local_world())
        data = replace(data, num_workers=many if device.type == "cuda" else 0)
    # Each epoch is shared out anew, so that in time each process meets nearly all of the broken examples. What
    # processes of an earlier sitting found, which may have been more of them, the first one counts too.
    first = rank() == 0
    own = folder / ("bad_files.jsonl" if first else f"bad_files.{rank()}.jsonl")
    others = sorted(folder.glob("bad_files.*.jsonl")) if first else []
    settings: dict[str, Any] = {"seed": experiment.seed, "rank": rank(), "world": world()}
    settings["bad_files"] = BadFiles(len(train), data.max_bad, own, others)
    views = experiment.objective.views(model, data)
    if data.resident and any(view.pipeline.strip is not None for view in views.values()):
        raise ConfigError("resident augments images of one size on the device, not those of image_size any")
    if data.resident:
        compile = experiment.training.compile != "off"
        return ResidentLoader(train, views, data, **settings, compile=compile)
    if is_cacheable(model, experiment.objective, views, data, len(train)):
        return FrozenLoader(train, views, data, **settings, model=model)
    return Loader(train, views, data, **settings)


def build_evaluators(experiment: Experiment, objective: nn.Module, val: Source | None) -> list[Evaluator]:
    """Return the evaluators that run during training: none of them uses the test split."""
    evaluators: list[Evaluator] = []
    if val is not None and hasattr(experiment.objective, "evaluators"):
        data = replace(experiment.data, batch_size=evaluation_batch(experiment))
        evaluators += experiment.objective.evaluators(objective, val, data)
    for where in experiment.data.fewshot:
        data_set = DataSet(where)
        train, test = (data_set.part(f"train[{part} per class]") for part in (":90%", "90%:"))
        evaluators.append(FewShot(train, test, shots=(5,), name=plain_name(where)))
    monitor, listed = experiment.training.monitor, all(hasattr(one, "names") for one in evaluators)
    names = [name for one in evaluators for name in getattr(one, "names", ())]
    if monitor and monitor not in names and listed:  # else the loop finds out
        raise ConfigError(f"monitor {monitor!r} is not among the scores: {', '.join(names) or 'none'}")
    return evaluators


def evaluation_batch(experiment: Experiment) -> int:
    """Return the batch size of an evaluation on this process: a size that fits in training fits in evaluation."""
    each = experiment.data.batch_size // world() // experiment.training.grad_accum
    return max(1, min(MOST_EVALUATED, each))


def remarks(experiment: Experiment, sources: Sources) -> list[str]:
    """Return warnings about settings that may be mistakes; the experiment is resolved."""
    texts, train, optimizer = [], sources.train, experiment.optimizer
    absent = without_images(train)
    if absent and experiment.objective.needs_labels:
        texts.append(
            f"{train.name} has no image of {len(absent):,} of {len(train.class_names):,} classes, which cannot be "
            f"learned: {list_some(absent)} (`train[:25% per class]` takes a part of each)"
        )
    if experiment.data.val == "auto" and sources.val is None:
        texts.append(
            "--train without --val: no validation split; --train 'train[:90% per class]' --val "
            "'train[90%: per class]' would hold out a part"
        )
    steps = int(experiment.training.steps)
    left = optimizer.ema**steps if optimizer.ema and not optimizer.ema_ramp else 0.0
    if left > MOST_LEFT:
        texts.append(
            f"ema {optimizer.ema:g} over {steps:,} steps: {left:.0%} of the average is still the initial weights; "
            "--ema-ramp or a lower decay leaves less"
        )
    return texts


def default_folder(*words: str) -> Path:
    """Return runs/DATA-MODEL by the last parts of paths and names; a bundle in a run's folder has the run's name."""
    return Path("runs", "-".join(filter(None, map(plain_name, words))) or "run")


def plain_name(word: str) -> str:
    text = word.partition("?")[0].rstrip("/")
    if (path := Path(text).expanduser()).exists():
        path = path.resolve()
        text = path.parent.name if path.name == "model" else path.stem if path.is_file() else path.name
    else:
        text = text.rpartition(":")[2]
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.").lower()
