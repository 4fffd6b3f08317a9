"""The training state: weights, gradients, the optimizer's moments, the average of the weights.

    weights      float32: what is trained, saved and evaluated; the parameters of the objective
    copies       the same in bf16, rounded anew after each update: what the passes compute with, for precision bf16
    gradients    of the copies, or else of the weights

On one GPU the state is `flat`: all parameters of a group are views of one buffer, and so are their copies, gradients,
moments and averages. Norm, update and average are then a kernel or two (update.py), not a few for each parameter. On
a CPU and on several processes every parameter has tensors of its own, torch.optim updates them, and autocast does
the rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vitrail.checkpoints.run.state import local
from vitrail.models.resnet import StdConv
from vitrail.runtime.distributed import launched
from vitrail.train.optim import build_optimizer, group_parameters
from vitrail.train.settings import Experiment, OptimizerSettings
from vitrail.train.update import corrections, global_norm, shrinkage, update_group

ALIGNMENT = 64  # elements: parameters of a multiple of it come first, and so begin where GPUs read fast


class TrainState:
    """The weights of an objective's module, the optimizer's moments, and the exponential moving average of the
    weights (Polyak averaging; the paper's ImageNet numbers use 0.9999).

        average <- d average + (1 - d) weights      d = ema, as in the paper
                                                    d = min(ema, (1 + t) / (10 + t)) after t updates, with a ramp

    The average begins as the first weights, of which ema^steps is left at the end: 13.5% of the paper's 20,000 steps.
    A ramp lets a short run forget them. It ends after about 9 / (1 - ema) updates; 20,000 get to 0.99955.
    """

    def __init__(
        self,
        objective: nn.Module,
        settings: OptimizerSettings,
        device: torch.device,
        *,
        flat: bool = False,
        copies: bool = False,
        compile: bool = False,  # the update of a flat state
    ) -> None:
        assert flat or not (copies or compile)
        self.objective, self.settings, self.flat = objective, settings, flat
        groups = {
            group: sorted(members.items(), key=lambda item: flat and item[1].numel() % ALIGNMENT > 0)
            for group, members in group_parameters(objective, settings).items()
        }
        # For each of the optimizer's tensors, the names and shapes of the parameters in it.
        self.layout: list[list[tuple[str, torch.Size]]] = []
        for members in groups.values():
            shapes = [(name, p.shape) for name, p in members]
            self.layout += [shapes] if flat else [[one] for one in shapes]
        trained = {group: [p for _, p in members] for group, members in groups.items()}
        if flat:
            trained = {group: [flatten(members)] for group, members in trained.items()}
        self.optimizer = build_optimizer(trained, settings, device, flat=flat)
        self.weights = [p.detach() for members in trained.values() for p in members]
        self.average = [w.clone() for w in self.weights] if settings.ema else []
        self.share = torch.zeros((), device=device)  # 1 - d
        self.rounded = [w.to(torch.bfloat16) for w in self.weights] if copies else []
        self.copies = {name: t.detach().requires_grad_() for name, t in self.named(self.rounded).items()}
        # Of a flat state: the gradients of each group, as the passes left them, and the factor that clips them.
        self.gradients: list[Tensor] = []
        self.shrink = torch.ones((), device=device)
        self.global_norm, self.update_group = global_norm, update_group
        if compile:
            self.global_norm = torch.compile(global_norm, dynamic=False)
            self.update_group = torch.compile(update_group, dynamic=True)  # groups of any length

    @classmethod
    def build(cls, objective: nn.Module, experiment: Experiment, device: torch.device) -> TrainState:
        """Return the state of a run: flat on one GPU, with copies for precision bf16."""
        flat = device.type == "cuda" and not launched()
        # BiT's convolutions standardise their weights, which are not to be rounded before.
        standardised = any(isinstance(part, StdConv) for part in objective.modules())
        copies = flat and experiment.training.precision == "bf16" and not standardised
        compile = flat and experiment.training.compile in ("on", "graphs")
        return cls(objective, experiment.optimizer, device, flat=flat, copies=copies, compile=compile)

    def named(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return by the names of the parameters what is laid out as the weights; an empty sequence gives nothing."""
        named: dict[str, Tensor] = {}
        for t, members in zip(tensors, self.layout, strict=False):
            parts = t.split([shape.numel() for _, shape in members]) if self.flat else [t]
            for part, (name, shape) in zip(parts, members, strict=True):
                named[name] = part.view(shape) if self.flat else part
        return named

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, as a checkpoint has them; they are not copies."""
        named = {f"weights.{name}": t for name, t in self.objective.state_dict().items()}
        moments = list(self.optimizer.state.values())  # in the order of the weights
        for key in moments[0]:
            if key == "step":  # equal for all
                named["optimizer.step"] = moments[0][key]
                continue
            each = self.named([one[key] for one in moments])
            named |= {f"optimizer.{name}.{key}": t for name, t in each.items()}
        return named | {f"ema.{name}": t for name, t in self.named(self.average).items()}

    def changed_by_update(self) -> dict[str, Tensor]:
        """Return all tensors that a step changes: also those that `tensors` leaves out, which follow from it."""
        counts = [moments["step"] for moments in self.optimizer.state.values() if "step" in moments]
        others = {f"step {i}": count for i, count in enumerate(counts)}
        return self.tensors() | others | {f"copies {i}": t for i, t in enumerate(self.rounded)}

    def forward(self, batch: dict[str, Tensor]) -> Any:
        """Return the objective's loss and metrics, computed with the copies of the weights."""
        return functional_call(self.objective, self.copies, (batch,))

    def add_gradients(self, loss: Tensor) -> None:
        """Compute the gradients of a loss, and add them to those of the parts of the batch before."""
        if not self.flat:
            loss.backward()
            return
        inputs = self.copies or dict(self.objective.named_parameters())
        names = [name for members in self.layout for name, _ in members]
        each = torch.autograd.grad(loss, [inputs[name] for name in names], materialize_grads=True)
        gradients = iter(each)
        flat = [torch.cat([next(gradients).flatten() for _ in members]) for members in self.layout]
        before = self.gradients
        self.gradients = [g + s.float() for g, s in zip(flat, before, strict=True)] if before else flat

    def clip(self, largest: float) -> Tensor:
        """Scale the gradients down to a global norm of at most `largest` (0: leave them); return the norm before."""
        if self.flat:
            norm = self.global_norm(self.gradients)
            self.shrink = shrinkage(norm, largest)
            return norm
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        return nn.utils.clip_grad_norm_(parameters, largest or float("inf"))

    def schedule(self, step: int, lr: float) -> None:
        """Set the learning rate and the decay of the average for an update."""
        for group in self.optimizer.param_groups:
            scaled = lr * group["scale"]
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(scaled)
            else:
                group["lr"] = scaled
        d = self.settings.ema
        self.share.fill_(1 - (min(d, (1 + step) / (10 + step)) if self.settings.ema_ramp else d))

    @torch.no_grad()
    def update(self) -> None:
        """Take a step with the gradients, which are used up, and average."""
        if self.flat:
            for i, group in enumerate(self.optimizer.param_groups):
                moments = self.optimizer.state[group["params"][0]]
                self.update_group(
                    self.settings, group["weight_decay"], self.weights[i], self.gradients[i], self.shrink,
                    moments, group["lr"], corrections(self.settings, moments),
                    self.average[i] if self.average else None, self.share,
                    self.rounded[i] if self.rounded else None,
                )  # fmt: skip
        else:
            self.optimizer.step()
            for average, w in zip(self.average, self.weights, strict=False):
                local(average).lerp_(local(w), self.share)
        self.forget_gradients()

    def forget_gradients(self) -> None:
        self.gradients = []
        self.optimizer.zero_grad(set_to_none=True)

    def restored(self) -> None:
        """Bring up to date what `tensors` leaves out, after they were read from a checkpoint."""
        counts = [moments["step"] for moments in self.optimizer.state.values() if "step" in moments]
        for count in counts[1:]:
            count.copy_(counts[0])
        for rounded, w in zip(self.rounded, self.weights, strict=False):
            rounded.copy_(w)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Context in which the objective has the averaged weights, if there are any; restore its own afterwards."""
        own = [w.clone() for w in self.weights] if self.average else []
        self.keep_average()
        try:
            yield
        finally:
            for w, before in zip(self.weights, own, strict=False):
                w.copy_(before)

    def keep_average(self) -> None:
        """Give the objective the averaged weights for good, if there are any."""
        for average, w in zip(self.average, self.weights, strict=False):
            w.copy_(average)


def flatten(parameters: Sequence[nn.Parameter]) -> nn.Parameter:
    """Move parameters into one buffer, of which they become views; return it."""
    buffer = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters]))
    for p, part in zip(parameters, buffer.detach().split([p.numel() for p in parameters]), strict=True):
        p.data = part.view(p.shape)
    return buffer
