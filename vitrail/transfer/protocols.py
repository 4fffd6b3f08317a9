"""Fine-tuning protocols: from facts about the data and the checkpoint to a complete fine-tuning.

    paper     appendix B.1.1 and the published code: SGD, batch 512, 384 px, Table 4's steps and lr by data size
    augreg    the published code's preset for AugReg's checkpoints: the paper's, but 500 steps at lr 0.03, whatever
              the size of the data
    bit       BiT-HyperRule: SGD, batch 512, lr dropping at milestones, image size by the size of the images
    default   for a folder of photographs: a small batch, steps by the size of the data, no higher resolution
              than the images and the machine allow

A fine-tuning is an experiment and a sweep: lr is chosen on a part held out of train, then all of train is used.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from vitrail.data import preprocess as pp
from vitrail.data.decode import decode
from vitrail.data.sources import Source
from vitrail.errors import ConfigError, DataError, ImageError
from vitrail.models.names import make_config
from vitrail.models.vit import ViTConfig
from vitrail.train.assemble import Inputs
from vitrail.train.data_splits import MEDIUM, SMALL, held_part
from vitrail.train.keywords import override
from vitrail.train.settings import Experiment

LOOKED_AT = 20  # images, for their size
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

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds {self.seeds}: must be at least 1")
        if not 0 < self.dev < 1:
            raise ConfigError(
                f"dev {self.dev:g}: the fraction of train that is held out must be between 0 and 1"
            )
        if self.sweep and not self.lrs:
            raise ConfigError("sweep without lrs to choose from: set lrs, such as --lrs 0.001 0.01")


@dataclass(frozen=True)
class Finetuning:
    """A fine-tuning: an experiment on all of train, and how its lr is chosen."""

    experiment: Experiment = field(default_factory=Experiment)
    sweep: Sweep = field(default_factory=Sweep)

    def __post_init__(self) -> None:
        train = self.experiment.data.train
        if self.sweep.sweep and not re.fullmatch(r"[\w.\-]+", train):
            raise ConfigError(
                f"a sweep holds out a part of train, which must be a whole split, not {train!r}"
            )

    def identity(self) -> dict[str, Any]:
        """Return the settings that must be equal for a fine-tuning to be resumed, as run.json has them."""
        return self.experiment.identity() | {"sweep": vars(self.sweep)}


@dataclass(frozen=True)
class Facts:
    """Facts about the data and the checkpoint that a protocol looks at."""

    examples: int = 1000  # to train on
    classes: int = 10
    short_side: int = 224  # of a typical image, in pixels
    area: int = 224 * 224  # likewise
    model_size: int = 224  # image size that the checkpoint was made for
    stride: int = 16  # pixels from one patch to the next; 1 for ResNets
    value_op: str = "to_range(-1, 1)"  # the end of the model's preprocessing line
    gpu: bool = False
    has_dropout: bool = True  # False: a ResNet
    # What the person has set and other settings depend on; None: nothing.
    image_size: int | Literal["any"] | None = None
    optimizer: str | None = None
    schedule: str | None = None
    preprocess: str | None = None
    augment: str | None = None
    sweep: bool = False

    @property
    def pixels(self) -> int | None:
        return None if self.image_size == "any" else self.image_size

    @property
    def small(self) -> bool:
        return self.examples < SMALL


def gather_facts(inputs: Inputs, model: str, train: str, *, gpu: bool, **asked: Any) -> Facts:
    """Look at the data and the checkpoint. `asked`: what the person has set of the last fields of `Facts`."""
    source = inputs.data.part("train" if train == "auto" else train)
    check_counts(source)
    if inputs.start is not None:
        config, line = inputs.start.config, inputs.start.preprocess
    else:
        config, line = make_config(model), "to_range(-1, 1)"
    height, width = config.image_size
    if height != width and asked.get("image_size") is None:
        raise ConfigError(
            f"{model} is for images of {height} x {width} pixels, but fine-tuning crops squares: --image-size "
            f"{min(height, width)} resamples its positions to a square"
        )
    sizes = sample_sizes(source)
    return Facts(
        examples=len(source),
        classes=len(source.class_names),
        short_side=int(statistics.median(min(size) for size in sizes)),
        area=int(statistics.median(h * w for h, w in sizes)),
        model_size=min(height, width),
        stride=config.stride if isinstance(config, ViTConfig) else 1,
        value_op=str(pp.Pipeline((), pp.parse(line).value_op)),
        gpu=gpu,
        has_dropout=isinstance(config, ViTConfig),
        **asked,
    )


def sample_sizes(source: Source) -> list[tuple[int, int]]:
    """Return (H, W) of a few images, evenly taken."""
    sizes: list[tuple[int, int]] = []
    for index in range(0, len(source), max(1, len(source) // LOOKED_AT)):
        try:
            image = source.read(index).image
            height, width = (decode(image) if isinstance(image, bytes) else image).shape[:2]
            sizes.append((height, width))
        except (ImageError, DataError):
            continue  # the loader reports broken files; they have no size
    if not sizes:
        raise DataError(f"{source.name}: none of the images that were sampled for their size can be read")
    return sizes


def check_counts(source: Source) -> None:
    """Raise an error if a class has too few images, before anything is computed."""
    if len(source.class_names) < 2:
        raise DataError(
            f"{source.name} has only one class, {', '.join(source.class_names)}: at least two are needed"
        )
    counts = dict.fromkeys(source.class_names, 0)
    for label in source.labels.tolist():
        counts[source.class_names[label]] += 1
    if few := [name for name, n in counts.items() if n < 2]:
        raise DataError(
            f"{source.name}: {len(few)} classes have fewer than 2 images to train on: {', '.join(few[:5])}; "
            "add images, or leave these classes out"
        )


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


def default(facts: Facts) -> Finetuning:
    n = facts.examples
    size = facts.pixels or photo_size(facts)
    batch_size = min(64, max(4, 2 ** ((n // 8).bit_length() - 1)))  # at least 8 steps in an epoch
    epochs = 20 if n < 5_000 else 10 if n < 50_000 else 5
    settings = {
        "image_size": size,
        "batch_size": batch_size,
        "lr": 0.01,
        "steps": max(200, epochs * n // batch_size),
        "warmup": "10%",
        "augment": "light",
    }
    return complete(facts, settings)


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


def round_to(size: int, stride: int) -> int:
    """Return the nearest size that the patches divide."""
    return max(1, round(size / stride)) * stride


Protocol = Callable[[Facts], Finetuning]
PROTOCOLS: dict[str, Protocol] = {"default": default, "paper": paper, "augreg": augreg, "bit": bit}
