"""Settings and flags of VTAB and of the transfer suite. Without torch, so that `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitrail.errors import ConfigError
from vitrail.evaluators.draws import Draws
from vitrail.train.duration import Duration

Method = Literal["fewshot", "linear", "knn", "finetune"]


@dataclass(frozen=True)
class VTABSettings:
    """Settings of the VTAB tasks; the defaults are the paper's."""

    image_size: int | None = None  # pixels of a side; None: 384, or the nearest size that the patches divide
    steps: int = 2500  # training steps
    batch_size: int = 512  # images in a step
    # learning rates; of several, the best on val200 after training on train800
    lrs: tuple[float, ...] = (0.01,)
    seeds: int = 1  # runs of each task
    # random crops and mirror images where they keep the label
    augment: Literal["by-task", "none"] = "by-task"
    train_examples: int = 800  # with other numbers than 800 and 200 it is not VTAB-1k, but a trial
    val_examples: int = 200  # examples to choose lr by
    num_workers: int | None = None  # processes that decode images; None: chosen for the machine
    keep_models: bool = False  # keep the weights of each task

    def __post_init__(self) -> None:
        if self.seeds < 1 or not self.lrs or min(self.lrs) <= 0:
            raise ConfigError(f"seeds {self.seeds} must be at least 1, lrs {self.lrs} positive")


@dataclass(frozen=True)
class SuiteSettings:
    """Settings of the methods of the transfer suite."""

    seeds: int = 3  # runs of few-shot and of fine-tuning
    shots: tuple[int, ...] | None = None  # None: 1, 5, 10, 25 as far as every class has so many examples
    # examples of few-shot: our own, big_vision's by seed, or scenic's, the first ones
    draws: Draws = "vitrail"
    # regularisation of few-shot: 2^10; test-rank: one of 2^-10 ... 2^19 by mean rank on the TEST sets, as scenic
    fewshot_l2: Literal["fixed", "test-rank"] = "fixed"
    # regularisation of the linear probe; of several, the best on a held-out fifth
    l2: tuple[float, ...] = (10.0, 1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
    # neighbours of kNN, chosen likewise; None: what fits of 1, 5, 10, 20, 50
    k: tuple[int, ...] | None = None
    train_split: str = "train"  # split to learn from
    test_split: str | None = None  # split to test on; None: test, or else validation
    protocol: Literal["default", "paper", "augreg", "bit"] = "default"  # sets unset options of fine-tuning
    image_size: int | None = None  # pixels of a side in fine-tuning; None: by the protocol
    steps: Duration | None = None  # length of fine-tuning: 500 (steps) or 20ep; None: by the protocol
    batch_size: int | None = None  # images in a step of fine-tuning; None: by the protocol
    lr: float | None = None  # highest learning rate of fine-tuning; None: by the protocol
    sweep: bool = False  # choose the lr of fine-tuning on a held-out part of train
    num_workers: int | None = None  # processes that decode images; None: chosen for the machine
    max_bad: float = 0.01  # share of the images that may be broken before it stops

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds {self.seeds} must be at least 1")
        if self.fewshot_l2 not in ("fixed", "test-rank"):
            raise ConfigError(f"fewshot_l2 {self.fewshot_l2!r} must be fixed or test-rank")


VTAB = VTABSettings()
SUITE = SuiteSettings()
