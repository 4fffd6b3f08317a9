"""SGD with momentum and AdamW, with every parameter in exactly one group.

A group is a pair (weight decay or none, factor of lr). Only kernels decay: matrices and convolutions, not biases,
norms, positions, class or mask embeddings. AdamW's decay is decoupled and scaled by lr, in the paper's units:
lr (Adam's direction + decay w).

`layer_decay` c < 1 gives layer l of L the factor c^(L + 1 - l): the head 1, the embedding the least. A table of
positions at each layer goes with its layer, one that all layers share with the first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from vitrail.errors import ConfigError
from vitrail.train.duration import Duration

# The tensors that each keeps of a parameter.
MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}


@dataclass(frozen=True)
class OptimizerSettings:
    optimizer: Literal["adamw", "sgd"] = "adamw"  # AdamW, or SGD with momentum
    lr: float = 1e-3  # peak learning rate
    # how lr falls after the warmup
    schedule: Literal["cosine", "linear", "constant", "milestones"] = "cosine"
    warmup: Duration = "5%"  # how long lr rises from 0: steps, epochs (2ep) or a part of the run (5%)
    end_lr: float = 1e-5  # learning rate at which schedule linear ends
    milestones: tuple[Duration, ...] = ()  # for schedule milestones: steps after which lr drops to a tenth
    momentum: float = 0.9  # momentum of SGD; first beta of AdamW
    beta2: float = 0.999  # second beta of AdamW
    weight_decay: float = 0.0  # decay of kernels (not biases, norms, positions), scaled by lr
    layer_decay: float = 1.0  # factor of lr from one layer to the one below
    grad_clip: float = 1.0  # largest global norm of the gradient; 0: no clipping
    ema: float = 0.0  # decay of the exponential moving average of the weights, such as 0.9999; 0: off
    ema_ramp: bool = False  # let the decay rise to its value as (1 + t) / (10 + t) after t steps
    freeze: tuple[str, ...] = ()  # what stays fixed: body (all but the head), or prefixes of parameter names

    def __post_init__(self) -> None:
        if self.optimizer not in MOMENTS:
            raise ConfigError(f"optimizer {self.optimizer!r} is not one of {', '.join(MOMENTS)}")
        for name in ("lr", "end_lr", "weight_decay", "grad_clip"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} {getattr(self, name)}: must be finite and not negative")
        for name in ("momentum", "beta2", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)}: must be in [0, 1)")
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"layer_decay {self.layer_decay}: must be in (0, 1]")
        if (self.schedule == "milestones") != bool(self.milestones):
            raise ConfigError(
                f"schedule {self.schedule} with milestones {list(self.milestones)}: the two belong together, such as "
                "schedule milestones with milestones 30% 60% 90%"
            )


def build_optimizer(
    objective: nn.Module, settings: OptimizerSettings, device: torch.device
) -> torch.optim.Optimizer:
    """Return the optimizer of all parameters that are not frozen. Each group carries `scale`, its factor of lr."""
    layers = [find_layer(name) for name, _ in objective.named_parameters()]
    depth = 1 + max((layer for layer in layers if layer is not None), default=-1)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, p in objective.named_parameters():
        if p.requires_grad:
            decay = settings.weight_decay if is_kernel(name, p) else 0.0
            groups.setdefault((decay, lr_scale(name, depth, settings.layer_decay)), []).append(p)
    params = [{"params": ps, "weight_decay": decay, "scale": scale} for (decay, scale), ps in groups.items()]
    fused = device.type == "cuda"
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "sgd":
        optimizer = torch.optim.SGD(params, lr=0.0, momentum=settings.momentum, fused=fused)
    else:
        betas = (settings.momentum, settings.beta2)
        optimizer = torch.optim.AdamW(params, lr=0.0, betas=betas, eps=1e-8, fused=fused)
    # The moments at zero, as the first step would make them: so that they can be restored before it.
    for group in optimizer.param_groups:
        for p in group["params"]:
            if settings.optimizer == "adamw":
                place = p.device if fused else torch.device("cpu")
                optimizer.state[p]["step"] = torch.zeros((), dtype=torch.float32, device=place)
            for name in MOMENTS[settings.optimizer]:
                optimizer.state[p][name] = torch.zeros_like(p, memory_format=torch.preserve_format)
    return optimizer


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    """Freeze `body`, all but the head, or the parameters whose names begin so, whole words at a time."""
    for part in parts:
        matched = False
        for name, p in model.named_parameters():
            in_body = part == "body" and not name.startswith("head.")
            if in_body or f"{name}.".startswith(f"{part}."):
                p.requires_grad_(False)
                matched = True
        if not matched:
            first = ", ".join(dict.fromkeys(name.split(".")[0] for name, _ in model.named_parameters()))
            raise ConfigError(f"freeze {part!r}: no parameter begins so; there are body, {first}")
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError(f"freeze {', '.join(parts)} leaves nothing to train")
    classifier = dict(model.named_parameters()).get("head.classifier.weight")
    if classifier is not None and not classifier.requires_grad and not classifier.any():
        raise ConfigError(
            f"freeze {', '.join(parts)}: the head is new and all zeros, through which nothing below it learns; "
            "freeze other parts (body trains the head alone)"
        )


def is_kernel(name: str, p: nn.Parameter) -> bool:
    return name.endswith(".weight") and p.ndim >= 2


def find_layer(name: str) -> int | None:
    if ".stem." in f".{name}":
        return None  # of a hybrid: below all layers, as the embedding that reads it
    match = re.search(r"(?:encoder\.(?:blocks|positions)|stages)\.(\d+)\.", name)
    return None if match is None else int(match[1])


def lr_scale(name: str, depth: int, layer_decay: float) -> float:
    """Return the factor of lr: the layers 0 ... depth - 1 lie between what feeds them and what reads them."""
    layer = find_layer(name)
    if layer is None:
        below = re.search(r"(^|\.)(embedding|cls|positions|stem|root|mask)(\.|$)", name)
        layer = -1 if below else depth
    return layer_decay ** (depth - layer)
