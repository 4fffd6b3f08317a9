"""The state that training changes: weights, the optimizer's moments, the average. A checkpoint is all of it, by
name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from vitrail.train.ema import EMA
from vitrail.train.optim import OptimizerSettings, build_optimizer


class TrainState:
    """The weights of an objective's module, its optimizer and the average."""

    def __init__(self, objective: nn.Module, settings: OptimizerSettings, device: torch.device) -> None:
        self.objective = objective
        self.optimizer = build_optimizer(objective, settings, device)
        self.ema = EMA(objective, settings.ema, settings.ema_ramp) if settings.ema else None

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name; they are not copies."""
        named = {f"weights.{name}": t for name, t in self.objective.state_dict().items()}
        names = {id(p): name for name, p in self.objective.named_parameters()}
        for p, moments in self.optimizer.state.items():
            named |= {f"optimizer.{names[id(p)]}.{key}": t for key, t in moments.items()}
        if self.ema is not None:
            named |= {f"ema.{name}": t for name, t in self.ema.tensors.items()}
        return named

    def set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["scale"]

    def clip(self, largest: float) -> Tensor:
        """Scale the gradients down to a global norm of at most `largest` (0: leave them); return the norm before."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        return nn.utils.clip_grad_norm_(parameters, largest or float("inf"))

    def update(self, step: int) -> None:
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update(step)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the objective hold the average inside, where there is one."""
        with nullcontext() if self.ema is None else self.ema.applied():
            yield

    def keep_average(self) -> None:
        if self.ema is not None:
            self.ema.keep()
