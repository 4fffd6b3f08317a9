"""A run small enough to be run many times: a ViT of width 32 on drawn shapes, with everything random switched on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vitrail.train.experiment import DataChoice, Experiment, ModelChoice, ObjectiveChoice, Training
from vitrail.train.optim import Optimization

DATA = "shapes?image_size=16&n=80"


NOTHING: dict[str, Any] = {}


def experiment(
    *,
    model: dict[str, Any] = NOTHING,
    data: dict[str, Any] = NOTHING,
    objective: dict[str, Any] = NOTHING,
    **training: Any,
) -> Experiment:
    """Any field replaced, by part."""
    mixing = {} if objective.get("objective") == "masked" else {"mixup": 0.2, "cutmix": 1.0}
    return Experiment(
        replace(ModelChoice("mu/8@16", dropout=0.1, drop_path=0.1), **model),
        replace(DataChoice(DATA, "train[:80%]", "train[80%:]", batch=8, workers=0, **mixing), **data),
        replace(ObjectiveChoice(), **objective),
        replace(
            Training(
                steps=12,
                warmup=2,
                log_every=1,
                evaluate_every=4,
                save_every=3,
                average=0.9,
                average_ramp=True,
                compile="off",
                optimization=Optimization(weight_decay=0.1),
            ),
            **training,
        ),
    )


def measured(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what depends on the clock."""
    return [{k: v for k, v in row.items() if k not in ("images_per_second", "mfu")} for row in rows]
