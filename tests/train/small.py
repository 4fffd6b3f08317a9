"""A run small enough to be run many times: a ViT of width 32 on drawn shapes, with everything random switched on."""

from __future__ import annotations

from typing import Any

from vitrail.train.keywords import override
from vitrail.train.settings import Experiment

DATA = "shapes?image_size=16&n=80"
SMALL = {
    "model": "mu/8@16",
    "dropout": 0.1,
    "drop_path": 0.1,
    "data": DATA,
    "train": "train[:80%]",
    "val": "train[80%:]",
    "batch_size": 8,
    "num_workers": 0,
    "steps": 12,
    "warmup": 2,
    "log_every": 1,
    "evaluate_every": 4,
    "save_every": 3,
    "ema": 0.9,
    "ema_ramp": True,
    "compile": "off",
    "weight_decay": 0.1,
}


def experiment(**settings: Any) -> Experiment:
    """Return the small experiment with any setting replaced."""
    labels = settings.get("objective", "classification") == "classification"
    mixing = {"mixup": 0.2, "cutmix": 1.0} if labels else {}
    return override(Experiment(), SMALL | mixing | settings)


def measured(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop what depends on the clock."""
    return [{k: v for k, v in row.items() if k not in ("images_per_second", "mfu")} for row in rows]
