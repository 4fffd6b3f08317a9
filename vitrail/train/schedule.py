"""The learning rate at each step, as in the published code.

    p = (step - warmup) / (steps - warmup), clipped to [0, 1]
    linear      end_lr + (lr - end_lr) (1 - p)             end_lr = 1e-5
    cosine      lr (1 + cos(pi p)) / 2
    constant    lr
    milestones  lr x 0.1 for each milestone below step: BiT-HyperRule
    ... times min(1, step / warmup)

Steps count from 0, so that with a warmup the first update has lr 0, as published.
"""

from __future__ import annotations

import math

from vitrail.train.optim import OptimizerSettings


def lr_at(step: int, steps: int, settings: OptimizerSettings) -> float:
    """Return the learning rate of a step of a run of `steps`; warmup and milestones are in steps."""
    lr, warmup = settings.lr, int(settings.warmup)
    p = min(1.0, max(0.0, (step - warmup) / max(1, steps - warmup)))
    if settings.schedule == "linear":
        lr = settings.end_lr + (lr - settings.end_lr) * (1 - p)
    elif settings.schedule == "cosine":
        lr = lr * 0.5 * (1 + math.cos(math.pi * p))
    elif settings.schedule == "milestones":
        lr = lr * 0.1 ** sum(int(at) < step for at in settings.milestones)
    return lr * min(1.0, step / warmup) if warmup else lr
