"""An experiment -> its parts: data, model, objective, batches, evaluators. Nothing here touches the run's folder,
so that whatever does not fit together is found before anything is written.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.checkpoints.checkpoint import to_model, with_classes
from vitrail.checkpoints.formats import create, has_weights, read
from vitrail.data import preprocess as pp
from vitrail.data.bad_files import BadFiles
from vitrail.data.loader import Loader, Loading
from vitrail.data.masking import Masking
from vitrail.data.resident import ResidentLoader
from vitrail.data.sources import Source, open_source
from vitrail.errors import ConfigError, DataError
from vitrail.evaluators.accuracy import SCORES, Accuracy
from vitrail.evaluators.fewshot import FewShot
from vitrail.evaluators.score import Evaluator
from vitrail.models.names import Model, make_config
from vitrail.models.vit import ViT
from vitrail.objectives.masked_patches import MaskedPatches
from vitrail.objectives.supervised import Supervised
from vitrail.runtime.distributed import local_world, rank, world
from vitrail.runtime.log import summary_writer
from vitrail.train.experiment import DataChoice, Experiment, ModelChoice, ObjectiveChoice, Training
from vitrail.train.folders import plain
from vitrail.train.optim import freeze
from vitrail.train.parallel import check_groups
from vitrail.train.patch_watch import PatchWatch
from vitrail.train.plan import Plan
from vitrail.train.sources import NOTHING, Sources, with_splits

MOST_WORKERS = 16
MOST_EVALUATED = 256  # images at a time on one process


@dataclass(frozen=True)
class Parts:
    """What a run is made of, on its device."""

    experiment: Experiment
    training: Training  # with its durations in steps
    sources: Sources
    model: Model
    objective: nn.Module
    plan: Plan
    loader: Loader
    device: torch.device

    @property
    def evaluation_batch(self) -> int:
        """Images at a time on this process: what fits in training fits in evaluation."""
        return evaluation_batch(self.experiment)

    def used(self) -> dict[str, Any]:
        """What the settings became that an experiment may leave open."""
        splits = {name: None if of is None else of.name for name, of in vars(self.sources).items()}
        lines = {"preprocess": str(self.loader.stream.pipeline), "evaluate_preprocess": self.model.preprocess}
        return {**splits, **lines, "config": asdict(self.model.config)}


def assemble(experiment: Experiment, device: torch.device, folder: Path) -> Parts:
    """All parts, fresh: the weights by the seed. In `folder` the broken files will be listed."""
    sources = Sources.open(experiment.data)
    check_fits(experiment, sources.train)
    torch.manual_seed(experiment.seed)
    model = model_of(experiment, sources.train)
    training = experiment.training.in_steps(len(sources.train), experiment.data.batch)
    objective = objective_of(experiment.objective, model).to(device)
    freeze(model, training.optimization.freeze)
    if isinstance(model, ViT):
        model.encoder.recompute = training.recompute
    plan = plan_of(training, experiment.seed, device)
    loader = training_loader(experiment, sources.train, model, folder, device, compile=plan.compile)
    return Parts(experiment, training, sources, model, objective, plan, loader, device)


def model_of(experiment: Experiment, train: Source) -> Model:
    """An architecture gives fresh weights for the data's classes, a path or a model in the box its own, with a new
    head of zeros."""
    choice, objective = experiment.model, experiment.objective
    classes = 0 if objective.objective == "masked" else len(train.class_names)
    if classes == 1:
        raise DataError(
            f"{train.name} has one class only, {train.class_names[0]}: there is nothing to tell apart"
        )
    fields = ("pool", "dropout", "drop_path", "head_bias")
    given = {name: getattr(choice, name) for name in fields if getattr(choice, name) is not None}
    if has_weights(choice.model):
        check_for_weights(choice)
        model = with_new_head(choice, classes, given)
    else:
        if choice.pre_logits:
            given["pre_logits"] = make_config(choice.model).width
        model = create(choice.model, classes=classes, image_size=choice.image_size, **given)
    if experiment.data.evaluate_preprocess:
        model.preprocess = str(pp.parse(experiment.data.evaluate_preprocess))
    model.class_names = list(train.class_names) if classes else None
    return model


def check_for_weights(choice: ModelChoice) -> None:
    """What would need other weights than those that are loaded is refused."""
    if fixed := [
        name for name in ("pool", "head_bias", "pre_logits") if getattr(choice, name) not in (None, False)
    ]:
        raise ConfigError(f"{', '.join(fixed)} cannot be set for weights that are loaded")


def with_new_head(choice: ModelChoice, classes: int, given: dict[str, Any]) -> Model:
    """Stored weights under another head, with other dropout; 0 is none at all, of attention's too."""
    if given.get("dropout") == 0:
        given = {**given, "attention_dropout": 0.0}
    checkpoint = with_classes(read(choice.model, image_size=choice.image_size), 0)
    checkpoint = replace(checkpoint, config=replace(checkpoint.config, **given))
    return to_model(checkpoint, classes=classes, image_size=choice.image_size)


def check_fits(experiment: Experiment, train: Source) -> None:
    batch, training = experiment.data.batch, experiment.training
    if batch > len(train):
        raise ConfigError(f"a batch of {batch} is larger than the {len(train)} examples of {train.name}")
    if batch % (world() * training.accumulate):
        raise ConfigError(
            f"a batch of {batch} on {world()} processes cannot be accumulated in {training.accumulate} equal parts"
        )
    check_groups(training.parallel, training.replicas)
    check_used(experiment)
    if training.tensorboard:
        summary_writer()  # an error where it is not installed
    known = watchable(experiment)
    if training.watch and training.watch not in known:
        raise ConfigError(f"watch {training.watch!r} is not among the scores: {', '.join(known) or 'none'}")


def check_used(experiment: Experiment) -> None:
    """What the objective does not look at, or is misled by, is refused: run.json would say that it acted."""
    masked = experiment.objective.objective == "masked"
    settings = vars(experiment.objective) | vars(experiment.data)
    unused = ("smoothing", "mixup", "cutmix") if masked else ("target", "corrupted", "masked", "replaced")
    fresh = vars(ObjectiveChoice()) | vars(DataChoice())
    if given := [name for name in unused if settings[name] != fresh[name]]:
        said = ", ".join(f"{name} {settings[name]}" for name in given)
        without = ", ".join(f"{name} {fresh[name]}" for name in given)
        raise ConfigError(
            f"the objective {experiment.objective.objective} does not use {said}: set {without}"
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
    if t.compile == "graphs" and (world() > 1 or t.accumulate > 1 or not cuda):
        raise ConfigError(
            f"compile=graphs is for one process on cuda that computes its batch at once; here: {world()} on "
            f"{device.type}, accumulate={t.accumulate}"
        )
    assert (
        isinstance(t.log_every, int) and isinstance(t.evaluate_every, int) and isinstance(t.save_every, int)
    )
    return Plan(
        t.schedule(),
        seed=seed,
        accumulate=t.accumulate,
        clip=t.clip,
        bf16=t.precision == "bf16" or (t.precision == "auto" and cuda),
        compile=t.compile in ("on", "graphs") or (t.compile == "auto" and cuda),
        graphs=t.compile == "graphs",
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
    experiment: Experiment, train: Source, model: Model, folder: Path, device: torch.device, *, compile: bool
) -> Loader:
    """This process's part of the batches."""
    choice = experiment.data
    line = choice.preprocess or training_line(model)
    pipeline = pp.parse(line)
    if pipeline.image_size != tuple(model.config.image_size):
        raise ConfigError(f"'{line}' makes {pipeline.image_size}, the model takes {model.config.image_size}")
    if pipeline.value_op != pp.parse(model.preprocess).value_op:
        raise ConfigError(
            f"preprocess '{line}' and the model's own '{model.preprocess}' end in different values; a model is used "
            "with those that it was trained on: give evaluate_preprocess too"
        )
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
    # Each epoch is shared out anew, so that in time each process meets nearly all of the broken examples. What
    # processes of an earlier sitting found, which may have been more of them, the first one counts too.
    first = rank() == 0
    own = folder / ("bad_files.jsonl" if first else f"bad_files.{rank()}.jsonl")
    others = sorted(folder.glob("bad_files.*.jsonl")) if first else []
    bad_files = BadFiles(len(train), choice.max_bad, own, others)
    if choice.resident:
        return ResidentLoader(train, pipeline, loading, bad_files=bad_files, compile=compile)
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


def evaluation_batch(experiment: Experiment) -> int:
    each = experiment.data.batch // world() // experiment.training.accumulate
    return max(1, min(MOST_EVALUATED, each))


def evaluators_of(parts: Parts, figures: Path) -> list[Evaluator]:
    """What is looked at while training: nothing of the test split."""
    made: list[Evaluator] = []
    choice, val, batch = parts.experiment.data, parts.sources.val, parts.evaluation_batch
    if val is not None and isinstance(parts.objective, MaskedPatches):
        masking = masking_of(parts.experiment.objective, parts.model)
        assert masking is not None
        made.append(PatchWatch(parts.objective, val, masking, batch, figures))
    elif val is not None:
        made.append(Accuracy(val, None, batch, choice.workers, name="val", max_bad=choice.max_bad))
    for where in choice.fewshot:
        train, test = (open_source(where, f"train[{part} per class]") for part in (":90%", "90%:"))
        made.append(FewShot(train, test, shots=(5,), name=plain(where)))
    return made


def watchable(experiment: Experiment) -> list[str]:
    """The names of the scores that a run's evaluators give."""
    few = [f"{plain(where)}_5-shot" for where in experiment.data.fewshot]
    if with_splits(experiment.data).val in NOTHING:
        return few
    masked = experiment.objective.objective == "masked"
    return [*(["val_loss"] if masked else [f"val_{name}" for name in SCORES]), *few]
