"""Fine-tuning protocols: from facts about the data and the checkpoint to a complete fine-tuning.

    paper     appendix B.1.1 and the published code: SGD, batch 512, 384 px, Table 4's steps and lr by data size
    augreg    the published code's preset for AugReg's checkpoints: the paper's, but 500 steps at lr 0.03, whatever
              the size of the data
    bit       BiT-HyperRule: SGD, batch 512, lr dropping at milestones, image size by the size of the images
    default   for a folder of photographs: a small batch, and by rules (docs/finetuning.md says why) the image size,
              the steps, what is trained, the augmentation, and how uneven classes are evened out; within --budget,
              the time that a person has
    plain     what the default was before it looked at the images: steps by the size of the data, on a CPU the
              checkpoint's own image size

A fine-tuning is an experiment and a sweep: lr is chosen on a part held out of train, then all of train is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from vitrail.errors import ConfigError
from vitrail.train.data_splits import MEDIUM, held_part
from vitrail.train.keywords import override
from vitrail.train.settings import Experiment
from vitrail.transfer.facts import Facts, Speed
from vitrail.transfer.plans import EVALUATIONS, choose_plan, in_seconds, photo_batch, photo_steps, round_to

UNEVEN = 2.0  # images of the largest class for one of the smallest, above which classes are evened out
CURVE, CHOOSE_BY = 100, 500  # validation images to watch a run on; to choose by, which needs more
PATIENCE = (
    5  # evaluations, half of a run: scores fluctuate as long as lr is high, and rise again when it falls
)
GRID = (0.001, 0.003, 0.01, 0.03)
IMAGENET_GRID = (0.003, 0.01, 0.03, 0.06)
ADAMW_LR, ADAMW_GRID = 3e-4, (1e-4, 3e-4, 1e-3, 3e-3)  # the protocols have those of SGD


@dataclass(frozen=True)
class Sweep:
    """The choice of lr, and the number of runs made with it."""

    sweep: bool = False  # choose lr on a part held out of train
    lrs: tuple[float, ...] = GRID  # learning rates that --sweep chooses from
    dev: float = 0.1  # fraction of train that --sweep holds out
    seeds: int = 1  # number of runs, for mean and spread; the first has --seed
    # time for all of the training, such as 30s, 10m or 2h; protocol default chooses what fits
    budget: str = ""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds {self.seeds}: must be at least 1")
        if not 0 < self.dev < 1:
            raise ConfigError(
                f"dev {self.dev:g}: the fraction of train that is held out must be between 0 and 1"
            )
        if self.sweep and not self.lrs:
            raise ConfigError("sweep without lrs to choose from: set lrs, such as --lrs 0.001 0.01")
        if self.budget:
            in_seconds(self.budget)


@dataclass(frozen=True)
class Finetuning:
    """A fine-tuning: an experiment on all of train, and how its lr is chosen."""

    experiment: Experiment = field(default_factory=Experiment)
    sweep: Sweep = field(default_factory=Sweep)
    speed: Speed | None = None  # of the machine, where there is a budget
    remarks: tuple[str, ...] = ()  # to be said before training

    def __post_init__(self) -> None:
        train = self.experiment.data.train
        if self.sweep.sweep and not re.fullmatch(r"[\w.\-]+", train):
            raise ConfigError(
                f"a sweep holds out a part of train, which must be a whole split, not {train!r}"
            )

    def identity(self) -> dict[str, Any]:
        """Return the settings that must be equal for a fine-tuning to be resumed, as run.json has them."""
        speed = {} if self.speed is None else {"speed": vars(self.speed)}
        return self.experiment.identity() | {"sweep": vars(self.sweep), **speed}


def paper(facts: Facts) -> Finetuning:
    size = facts.pixels or round_to(384, facts.stride)
    settings = {
        "image_size": size,
        "batch_size": 512,
        "lr": 0.01 if facts.small else 0.03,
        "lrs": GRID if facts.examples < MEDIUM else IMAGENET_GRID,
        "preprocess": f"inception_crop({size})|flip_lr|{facts.value_op}",
        "evaluate_preprocess": f"resize({size})|{facts.value_op}",
    }
    return complete(facts, settings | published_length(facts) | no_dropout(facts))


def augreg(facts: Facts) -> Finetuning:
    tuning = paper(facts)
    lr = tuning.experiment.optimizer.lr if facts.optimizer == "adamw" else 0.03
    return override(tuning, {"lr": lr, "warmup": "20%", "steps": 500})


def bit(facts: Facts) -> Finetuning:
    resize, crop = (160, 128) if facts.area < 96 * 96 else (512, 480)
    size = facts.pixels or round_to(crop, facts.stride)
    settings: dict[str, Any] = {
        "image_size": size,
        "batch_size": 512,
        "lr": 0.003,
        "preprocess": f"resize({round(size * resize / crop)})|random_crop({size})|flip_lr|{facts.value_op}",
        "evaluate_preprocess": f"resize({size})|{facts.value_op}",
        "grad_clip": 0.0,
        "mixup": 0.0 if facts.small else 0.1,
    }
    if facts.schedule in (None, "milestones"):
        # Of 500 steps; of 10,000 or 20,000.
        milestones = ("40%", "60%", "80%") if facts.small else ("30%", "60%", "90%")
        settings |= {"schedule": "milestones", "milestones": milestones}
    return complete(facts, settings | published_length(facts) | no_dropout(facts))


def plain(facts: Facts) -> Finetuning:
    size, batch_size = facts.pixels or photo_size(facts), photo_batch(facts)
    settings = {
        "image_size": size,
        "batch_size": batch_size,
        "lr": 0.01,
        "steps": photo_steps(facts),
        "warmup": "10%",
        "augment": "light",
    }
    return complete(facts, settings)


def default(facts: Facts) -> Finetuning:
    plan, remarks = choose_plan(facts)
    settings: dict[str, Any] = {
        "image_size": plan.image_size,
        "batch_size": photo_batch(facts),
        "lr": 0.01,
        "steps": plan.steps(facts),
        "warmup": "10%",
        "tune": plan.tune,
        "augment": "none" if plan.tune == "head" else "light",
        "balance": 1.0 if facts.imbalance > UNEVEN and facts.loss != "sigmoid" and not facts.several else 0.0,
    }
    if plan.tune == "head":
        settings |= no_dropout(facts)  # so that features are computed once
    settings |= watch(facts, plan.steps(facts) * photo_batch(facts))
    return replace(complete(facts, settings), speed=facts.speed, remarks=remarks)


def watch(facts: Facts, seen: int) -> dict[str, Any]:
    """Measure scores during a run that sees so many images; with enough of them stop early, and keep the best."""
    if facts.val_examples < CURVE:
        return {}
    often = "10%" if EVALUATIONS * facts.val_examples <= seen else "25%"
    settings: dict[str, Any] = {"val": facts.val, "evaluate_every": often}
    if facts.val.startswith("train["):
        settings["train"] = facts.val.replace(": per", " per").replace("[", "[:")
    if facts.val_examples >= CHOOSE_BY:
        settings |= {"monitor": "val_map" if facts.several else "val_top1", "patience": PATIENCE}
    return settings


def complete(facts: Facts, settings: dict[str, Any]) -> Finetuning:
    """Return the fine-tuning with what all protocols share: SGD without weight decay, all of train, no validation."""
    dev = held_part(facts.examples)
    usable = int(facts.examples * (1 - dev)) - facts.classes if facts.sweep else facts.examples
    if settings["batch_size"] > usable:
        # Published batch sizes on small data: as large as the data allows, in powers of two.
        settings["batch_size"] = 2 ** (max(1, usable).bit_length() - 1)
    if facts.optimizer == "adamw":
        settings |= {"lr": ADAMW_LR, "lrs": ADAMW_GRID}
    if facts.image_size == "any":  # the lines above make squares, and a mixture needs images of one shape
        settings = {name: value for name, value in settings.items() if not name.endswith("preprocess")}
        settings |= {"image_size": "any", "mixup": 0.0}
    for asked, other in (("augment", "preprocess"), ("preprocess", "augment")):  # one of them names the line
        if getattr(facts, asked):
            settings.pop(other, None)
    if facts.several:
        if facts.sweep:
            raise ConfigError("the images have several labels, which a sweep does not take: set lr")
        settings |= {"loss": "sigmoid", "mixup": 0.0}
    optimizer = "adamw" if facts.optimizer == "adamw" else "sgd"
    shared = {"train": "train", "val": "none", "optimizer": optimizer, "save_every": "25%"}
    return override(Finetuning(), {**shared, "sweep": facts.sweep, "dev": dev, **settings})


def published_length(facts: Facts) -> dict[str, Any]:
    """Return steps and warmup by the size of the data, in the paper as in BiT-HyperRule: warmups of 100, 500, 500."""
    if facts.small:
        return {"steps": 500, "warmup": "20%"}
    medium = facts.examples < MEDIUM
    return {"steps": 10_000, "warmup": "5%"} if medium else {"steps": 20_000, "warmup": "2.5%"}


def no_dropout(facts: Facts) -> dict[str, Any]:
    """Turn dropout off, whatever the checkpoint was trained with."""
    return {"dropout": 0.0, "drop_path": 0.0} if facts.has_dropout else {}


def photo_size(facts: Facts) -> int:
    """Return up to 12/7 of the checkpoint's size on a GPU (224 -> 384), no larger than the images; else its own."""
    if not facts.gpu:
        return facts.model_size
    limit = min(facts.model_size * 12 // 7, max(facts.model_size, facts.short_side))
    return round_to(limit, facts.stride)


Protocol = Callable[[Facts], Finetuning]
PROTOCOLS: dict[str, Protocol] = {
    "default": default,
    "plain": plain,
    "paper": paper,
    "augreg": augreg,
    "bit": bit,
}
