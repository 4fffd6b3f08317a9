"""Facts about the data, the checkpoint and the machine, which a fine-tuning protocol looks at."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

from vitrail.data import preprocess as pp
from vitrail.data.decode import decode
from vitrail.data.several_labels import class_counts, targets_of
from vitrail.data.sources import DataSet, Source
from vitrail.errors import ConfigError, DataError, ImageError
from vitrail.models.names import Config, make_config
from vitrail.models.vit import ViTConfig
from vitrail.train.assemble import Inputs
from vitrail.train.data_splits import NOTHING, SMALL, held_part
from vitrail.train.tuning import training_cost

LOOKED_AT = 20  # images, for their size


@dataclass(frozen=True)
class Speed:
    """The speed of a machine, which a budget counts on: measured when a run begins, and kept in its run.json."""

    flops: float  # of training, per second
    reading: float  # seconds to read and prepare an image


@dataclass(frozen=True)
class Facts:
    """Facts about the data and the checkpoint that a protocol looks at."""

    examples: int = 1000  # to train on
    classes: int = 10
    short_side: int = 224  # of a typical image, in pixels
    area: int = 224 * 224  # likewise
    model_size: int = 224  # image size that the checkpoint was made for
    resizable: bool = (
        True  # it gains from larger images: its weights are trained, and its positions can be resampled
    )
    stride: int = 16  # pixels from one patch to the next; 1 for ResNets
    value_op: str = "to_range(-1, 1)"  # the end of the model's preprocessing line
    gpu: bool = False
    has_dropout: bool = True  # False: a ResNet
    layers: int = 12  # of Transformers
    # training FLOPs of an image, by its size and what is trained
    flops: Callable[[int, str], float] = lambda size, tune: 2.1e6 * size**2 / (3 if tune == "head" else 1)
    imbalance: float = 1.0  # images of the largest class for one of the smallest
    several: bool = False  # an image may have several labels
    val: str = "none"  # split that the run can be watched on
    val_examples: int = 0
    test_examples: int = 0
    speed: Speed | None = None
    runs: int = 1  # that share the time
    # What the person has set and other settings depend on; None: nothing.
    image_size: int | Literal["any"] | None = None
    optimizer: str | None = None
    schedule: str | None = None
    preprocess: str | None = None
    augment: str | None = None
    tune: str | None = None
    loss: str | None = None
    sweep: bool = False
    budget: str = ""

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
    counts = class_counts(source)
    return Facts(
        examples=len(source),
        classes=len(source.class_names),
        short_side=int(statistics.median(min(size) for size in sizes)),
        area=int(statistics.median(h * w for h, w in sizes)),
        model_size=min(height, width),
        resizable=inputs.start is not None and getattr(config, "positions", "") != "relative",
        stride=config.stride if isinstance(config, ViTConfig) else 1,
        value_op=str(pp.Pipeline((), pp.parse(line).value_op)),
        gpu=gpu,
        has_dropout=isinstance(config, ViTConfig),
        layers=config.depth if isinstance(config, ViTConfig) else 0,
        flops=partial(training_flops, replace(config, classes=len(source.class_names))),
        imbalance=float(counts.max() / counts.min()),
        several=targets_of(source) is not None,
        **asked,
    )


@cache
def training_flops(config: Config, size: int, tune: str) -> float:
    return float(training_cost(replace(config, image_size=(size, size)), tune).flops)


def find_val(data: DataSet, facts: Facts) -> Facts:
    """Return the facts with a split to watch a run on: a validation split that is not tested on, of a large data set
    without one a part of train."""
    if {"validation", "test"} <= set(data.splits):
        with suppress(DataError):  # it has no labels, or no images
            val = data.whole("validation")
            if val.class_names == data.whole("train").class_names:
                return replace(facts, val="validation", val_examples=len(val))
    elif not facts.small and not facts.sweep:
        held = held_part(facts.examples)
        part = f"train[{100 * (1 - held):g}%: per class]"
        return replace(facts, val=part, val_examples=round(held * facts.examples))
    return facts


def count_tested(data: DataSet, train: str, test: str) -> int:
    """Return the number of images that a run will be tested on."""
    test = (data.unseen_split(train) or "none") if test == "auto" else test
    return 0 if test in NOTHING else len(data.part(test))


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
    counts = dict(zip(source.class_names, class_counts(source).tolist(), strict=True))
    if few := [name for name, n in counts.items() if n < 2]:
        raise DataError(
            f"{source.name}: {len(few)} classes have fewer than 2 images to train on: {', '.join(few[:5])}; "
            "add images, or leave these classes out"
        )
