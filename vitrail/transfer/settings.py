"""How VTAB and the transfer suite are done: what their flags set. Free of torch, so that `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitrail.errors import ConfigError
from vitrail.evaluators.draws import Draws
from vitrail.train.duration import Duration

Method = Literal["fewshot", "linear", "knn", "finetune"]


@dataclass(frozen=True)
class Protocol:
    """How the tasks are done; the defaults are the paper's."""

    image_size: int | None = None  # pixels of a side; None: 384, or the nearest that the patches divide
    steps: int = 2500
    batch: int = 512
    rates: tuple[float, ...] = (0.01,)  # of several, the best on val200 after training on train800
    seeds: int = 1  # runs of each task
    augment: Literal["by-task", "none"] = "by-task"  # crops and mirror images where they keep the label; none
    train_examples: int = 800  # other than 800 and 200: to try things out, not VTAB-1k
    val_examples: int = 200
    workers: int | None = None  # processes that decode; None: by the machine
    keep_models: bool = False  # keep the weights of each task

    def __post_init__(self) -> None:
        if self.seeds < 1 or not self.rates or min(self.rates) <= 0:
            raise ConfigError(f"seeds {self.seeds} must be at least 1, rates {self.rates} positive")

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.train_examples, self.val_examples)


@dataclass(frozen=True)
class Sizes:
    """Examples of a task; others than these are another benchmark."""

    train: int = 800
    val: int = 200

    @property
    def cut(self) -> tuple[str, str, str]:
        """What the splits of the cut form are called."""
        return f"train{self.train}", f"val{self.val}", "test"


@dataclass(frozen=True)
class Suite:
    """How the methods are done; what is None is decided by the method."""

    seeds: int = 3  # of few-shot and of fine-tuning
    shots: tuple[int, ...] | None = None  # None: those of 1, 5, 10, 25 that every class has examples for
    draws: Draws = "vitrail"  # which examples few-shot learns from; big_vision's by seed, scenic's first ones
    # of few-shot: 2^10; test-rank: one of 2^-10 ... 2^19 for all data, by mean rank on the TEST sets, as scenic
    fewshot_l2: Literal["fixed", "test-rank"] = "fixed"
    l2: tuple[float, ...] = (10.0, 1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)  # of the linear probe, and
    k: tuple[int, ...] | None = None  # of kNN (None: what fits of 1, 5, 10, 20, 50): best on a held-out fifth
    train_split: str = "train"
    test_split: str | None = None  # None: test, or else validation
    protocol: Literal["default", "paper", "augreg", "bit"] = "default"  # of fine-tuning, as these are
    image_size: int | None = None
    steps: Duration | None = None
    batch: int | None = None
    rate: float | None = None
    sweep: bool = False  # choose the rate on a part held out of train
    workers: int | None = None  # processes that decode
    max_bad: float = 0.01  # part of the images that may be broken before it stops

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds {self.seeds}: at least 1 is needed")
        if self.fewshot_l2 not in ("fixed", "test-rank"):
            raise ConfigError(f"fewshot_l2 {self.fewshot_l2!r}: allowed are fixed, test-rank")


PROTOCOL = Protocol()
SUITE = Suite()
