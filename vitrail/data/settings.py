"""Settings of the data of a run: which images, how they are prepared, how batches are made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vitrail.errors import ConfigError


@dataclass(frozen=True)
class DataSettings:
    data: str = ""  # a folder of images, Parquet or tar shards, or a name
    train: str = "auto"  # split to train on; auto: train without what is held out
    val: str = "auto"  # split to choose by, or none; auto: 10%, 2% or 1% of each class, none with --train
    test: str = "auto"  # split to evaluate once, at the end, or none; auto: test or validation
    # split to fit the temperature on at the end, or none; auto: val, else an unused validation split
    calibrate: str = "auto"
    preprocess: str = ""  # training line; if unset, inception crop and flip, to the model's size
    # a training line by its strength: the evaluation line, crops and flips, more with random distortions; if unset,
    # preprocess says
    augment: Literal["none", "light", "medium", "strong"] | None = None
    evaluate_preprocess: str = ""  # evaluation line, stored with the model; if unset, the model's own
    batch_size: int = 256  # examples per step, over all processes
    mixup: float = 0.0  # alpha of mixup: weights from Beta(alpha, alpha); 0: off
    # alpha of cutmix: areas from Beta(alpha, alpha); 0: off; with mixup: one or the other
    cutmix: float = 0.0
    max_bad: float = 0.01  # fraction of examples that may be broken before the run stops
    num_workers: int | None = None  # decoding processes; if unset, on CUDA one per core, at most 16, else 0
    resident: bool = False  # keep the images on the device and augment them there; for small images
    fewshot: tuple[str, ...] = ()  # data sets to evaluate 5-shot during training

    def __post_init__(self) -> None:
        allowed = {
            "batch_size": (self.batch_size >= 1, "be at least 1"),
            "num_workers": (self.num_workers is None or self.num_workers >= 0, "not be negative"),
            "mixup": (0 <= self.mixup < math.inf, "be finite and not negative"),
            "cutmix": (0 <= self.cutmix < math.inf, "be finite and not negative"),
            "max_bad": (0 <= self.max_bad <= 1, "be in [0, 1]"),
        }
        for name, (valid, rule) in allowed.items():
            if not valid:
                raise ConfigError(f"{name} {getattr(self, name)}: must {rule}")
        if self.preprocess and self.augment:
            raise ConfigError(
                f"augment {self.augment} and preprocess '{self.preprocess}' are two training lines: set one of them"
            )
