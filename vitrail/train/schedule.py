"""The learning rate at each step, as the published code has it.

    p = (step - warmup) / (steps - warmup), clipped to [0, 1]
    linear     end + (rate - end) (1 - p)              end = 1e-5
    cosine     rate (1 + cos(pi p)) / 2
    constant   rate
    stairs     rate x 0.1 for each of `stairs` that is below step: BiT-HyperRule
    ... times min(1, step / warmup)

Steps count from 0, so that with a warm-up the first update has rate 0, as published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vitrail.errors import ConfigError

Decay = Literal["cosine", "linear", "constant", "stairs"]


@dataclass(frozen=True)
class Schedule:
    rate: float  # the highest
    steps: int  # of the whole run
    decay: Decay = "cosine"
    warmup: int = 0  # steps
    end: float = 1e-5  # where `linear` ends
    stairs: tuple[int, ...] = ()  # the last steps before the rate drops to a tenth

    def __post_init__(self) -> None:
        if not 0 <= self.rate < float("inf"):
            raise ConfigError(f"a learning rate of {self.rate}: it must be finite, and not negative")
        if self.steps < 1 or not 0 <= self.warmup <= self.steps:
            raise ConfigError(
                f"a warm-up of {self.warmup} steps in a run of {self.steps}: a run has at least 1, a warm-up at most "
                "as many"
            )

    def __call__(self, step: int) -> float:
        p = min(1.0, max(0.0, (step - self.warmup) / max(1, self.steps - self.warmup)))
        rate = {
            "linear": self.end + (self.rate - self.end) * (1 - p),
            "cosine": self.rate * 0.5 * (1 + math.cos(math.pi * p)),
            "constant": self.rate,
            "stairs": self.rate * 0.1 ** sum(at < step for at in self.stairs),
        }[self.decay]
        return rate * min(1.0, step / self.warmup) if self.warmup else rate
