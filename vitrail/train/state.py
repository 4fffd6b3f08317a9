"""What training changes: weights, the optimizer's moments, the average. All of it, by name, is a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from vitrail.train.ema import Average
from vitrail.train.optim import Optimization, optimizer_of


class TrainState:
    """Of an objective; `average` 0: none is kept."""

    def __init__(
        self,
        objective: nn.Module,
        optimization: Optimization,
        average: float,
        device: torch.device,
        *,
        average_ramp: bool = False,
    ) -> None:
        self.objective = objective
        self.optimizer = optimizer_of(objective, optimization, device)
        self.average = Average(objective, average, average_ramp) if average else None
        begin(self.optimizer)

    def tensors(self) -> dict[str, Tensor]:
        """Names -> the tensors themselves, not copies."""
        named = {f"weights.{name}": t for name, t in self.objective.state_dict().items()}
        names = {id(p): name for name, p in self.objective.named_parameters()}
        for p, moments in self.optimizer.state.items():
            named |= {f"optimizer.{names[id(p)]}.{key}": t for key, t in moments.items()}
        if self.average is not None:
            named |= {f"average.{name}": t for name, t in self.average.tensors.items()}
        return named

    def set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["scale"]

    def clip(self, largest: float) -> Tensor:
        """Scale the gradients down to a global norm of at most `largest` (0: leave them); the norm before."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        return nn.utils.clip_grad_norm_(parameters, largest or float("inf"))

    def update(self, step: int) -> None:
        self.optimizer.step()
        if self.average is not None:
            self.average.update(step)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The objective holds the average inside, where there is one."""
        with nullcontext() if self.average is None else self.average.applied():
            yield

    def keep_average(self) -> None:
        if self.average is not None:
            self.average.keep()


def begin(optimizer: torch.optim.Optimizer) -> None:
    """The moments of all parameters, at zero, as the first step would make them: so they can be restored."""
    adam = isinstance(optimizer, torch.optim.AdamW)
    for group in optimizer.param_groups:
        for p in group["params"]:
            if adam:
                where = p.device if group["fused"] else torch.device("cpu")
                optimizer.state[p]["step"] = torch.zeros((), dtype=torch.float32, device=where)
            for name in ("exp_avg", "exp_avg_sq") if adam else ("momentum_buffer",):
                optimizer.state[p][name] = torch.zeros_like(p, memory_format=torch.preserve_format)
