"""MODEL, DATA -> IMAGES PER SECOND: training, inference and loading on this machine, and other libraries beside it.

    subject.py   what is measured: a model, a batch size, a device
    train.py     the loop's own step        infer.py   the engine        loader.py   the loader of a training run
    peers.py     the same with timm and torchvision
    rounds.py    the clock: contestants by turns, round by round
    bench.py     all of it, in the order above

It stands beside `transfer` and `inspection`: it imports `train` and everything below, and only the command line
imports it. Here are its settings, without torch, so that `--help` answers at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vitrail.errors import ConfigError

Kind = Literal["train", "infer", "loader"]
KINDS: tuple[Kind, ...] = ("train", "infer", "loader")


@dataclass(frozen=True)
class BenchSettings:
    """Settings of the measurement."""

    # architecture such as B/16, an included model, or any checkpoint; if unset, B/16 on CUDA, else Ti/16
    model: str | None = None
    # images for the loader: a folder, shards, or a name; if unset, photographs that are drawn for it
    data: str = ""
    peers: bool = False  # also measure timm and torchvision, in the same run
    batch_size: int | None = None  # images at a time; if unset, 256 on CUDA, else 8
    # another size of the images; one number, or height and width
    image_size: tuple[int, ...] = ()
    # auto: bf16 on CUDA, else float32; fp8, for infer: its scales are measured on the random images
    precision: Literal["auto", "float32", "bf16", "fp8"] = "auto"
    num_workers: int | None = None  # decoding processes of the loader; if unset, as in training
    rounds: int = 5  # how often each is measured, by turns
    round_seconds: float = 1.0  # about how long it is measured in a round
    seed: int = 0  # seed of weights, images, labels and crops

    def __post_init__(self) -> None:
        for name in ("batch_size", "rounds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        if not 0 < self.round_seconds < math.inf:
            raise ConfigError(f"round_seconds must be positive and finite, not {self.round_seconds:g}")
        for name in ("num_workers", "seed"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name} must be at least 0, not {value}")


BENCH = BenchSettings()
