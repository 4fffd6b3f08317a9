"""From logits to probabilities and answers: how sure a model is, which its weights alone do not say.

    p = softmax(y / T)      an image has one class
    p = sigma(y / T)        an image has any number of classes (`multi_label`)

    answers     the most probable class, if its p is at least its threshold; else none: the model is unsure
                of any number: every class whose p is at least its threshold

T, the temperature, and thresholds are fitted on held-out images (evaluators/temperature.py), and stored with a model.
T > 0 keeps the order of the classes, so no prediction changes. Whatever shows a probability takes it from here.
y (B, K) logits, p (B, K).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from vitrail.errors import ConfigError

UNSURE = "unsure"  # instead of a class, where there is no answer


@dataclass(frozen=True)
class Calibration:
    temperature: float = 1.0
    # (K,), probabilities; none: the most probable class is always an answer, of several labels all from 0.5 on
    thresholds: tuple[float, ...] = ()
    multi_label: bool = False
    fitted: dict[str, Any] = field(default_factory=dict)  # on which images, and with what result

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ConfigError(f"temperature {self.temperature}: must be a number above 0")
        if wrong := [value for value in self.thresholds if not 0 <= value <= 1]:
            raise ConfigError(f"threshold {wrong[0]}: must be a probability, from 0 to 1")

    def probabilities(self, y: Tensor) -> Tensor:
        """Map logits (B, K) to probabilities (B, K)."""
        y = self.scaled(y)
        return y.sigmoid() if self.multi_label else y.softmax(dim=1)

    def scaled(self, y: Tensor) -> Tensor:
        """Return logits (B, K) divided by the temperature."""
        return y if self.temperature == 1 else y / self.temperature

    def decide(self, y: Tensor, least: float = 0.0) -> tuple[Tensor, Tensor]:
        """Map logits (B, K) to probabilities (B, K) and answers, bool (B, K), which need a probability of `least`."""
        p = self.probabilities(y)  # (B, K)
        sure = p >= self.floors(y, least)  # (B, K)
        if not self.multi_label:
            first = y.argmax(dim=1, keepdim=True)  # (B, 1)
            sure &= sure.new_zeros(sure.shape).scatter(1, first, True)
        return p, sure

    def floors(self, y: Tensor, least: float = 0.0) -> Tensor:
        """Return the probability (K,) from which on each class is an answer, for logits (B, K)."""
        usual = 0.5 if self.multi_label and not self.thresholds else 0.0
        floors = y.new_full(y.shape[1:], max(least, usual))
        return floors.maximum(y.new_tensor(self.thresholds)) if self.thresholds else floors

    @property
    def may_be_unsure(self) -> bool:
        return self.multi_label or any(self.thresholds)

    def unfitted(self) -> Calibration:
        """Return what stays true of a model with other weights or another image size."""
        return Calibration(multi_label=self.multi_label)

    def check(self, classes: int) -> None:
        """Raise ConfigError unless it fits a model of so many classes."""
        if self.thresholds and len(self.thresholds) != classes:
            raise ConfigError(f"{len(self.thresholds)} thresholds for {classes} classes")

    def as_json(self) -> dict[str, Any]:
        """Return what differs from a model of which nothing is known."""
        usual = asdict(Calibration())
        entries = {name: value for name, value in asdict(self).items() if value != usual[name]}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in entries.items()}

    @classmethod
    def from_json(cls, entries: dict[str, Any]) -> Calibration:
        """Read what `as_json` returned; ConfigError if it is anything else."""
        kinds: dict[str, Any] = {
            "temperature": float | int, "thresholds": list, "multi_label": bool, "fitted": dict,
        }  # fmt: skip
        for name, value in entries.items():
            flag = name == "multi_label"  # True is an int too
            if name not in kinds or not isinstance(value, kinds[name]) or isinstance(value, bool) != flag:
                raise ConfigError(f"calibration: {name} is unknown or of a wrong type")
        thresholds = entries.get("thresholds", [])
        if not all(isinstance(value, float | int) and not isinstance(value, bool) for value in thresholds):
            raise ConfigError("calibration: thresholds must be numbers")
        return replace(cls(**entries), thresholds=tuple(thresholds))
