"""SGD with momentum and AdamW, with every parameter in exactly one group.

A group is a pair (weight decay or none, factor of the rate). Kernels alone decay: matrices and convolutions, not
biases, norms, positions, class or mask embeddings. AdamW's decay is decoupled and scaled by the rate, in the
paper's units: rate (Adam's direction + decay w).

`layer_decay` c < 1 gives layer l of L the rate c^(L + 1 - l): the head 1, the embedding the least. A table of
positions at each layer goes with its layer, one that all layers share with the first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from vitrail.errors import ConfigError


@dataclass(frozen=True)
class Optimization:
    optimizer: Literal["adamw", "sgd"] = "adamw"  # how the weights follow their gradients
    momentum: float = 0.9  # decay of sgd's momentum; Adam's first beta
    beta2: float = 0.999  # decay of Adam's second moment
    weight_decay: float = 0.0  # decay of the kernels (not of biases, norms, positions), scaled by the rate
    layer_decay: float = 1.0  # factor of the rate from one layer to the one below
    freeze: tuple[str, ...] = ()  # parts that stay as they are: prefixes of parameter names, or `body`

    def __post_init__(self) -> None:
        if self.optimizer not in ("adamw", "sgd"):
            raise ConfigError(f"optimizer {self.optimizer!r} is not one of adamw, sgd")
        if not (0 <= self.momentum < 1 and 0 <= self.beta2 < 1 and self.weight_decay >= 0):
            raise ConfigError(
                f"momentum {self.momentum} and beta2 {self.beta2} must be in [0, 1), weight_decay "
                f"{self.weight_decay} not negative"
            )
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"layer_decay {self.layer_decay} must be in (0, 1]")


def optimizer_of(objective: nn.Module, config: Optimization, device: torch.device) -> torch.optim.Optimizer:
    """Over all parameters that are not frozen. Each group carries `scale`, by which the loop sets its rate."""
    layers = [layer_of(name) for name, _ in objective.named_parameters()]
    depth = 1 + max((layer for layer in layers if layer is not None), default=-1)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, p in objective.named_parameters():
        if p.requires_grad:
            decay = config.weight_decay if is_kernel(name, p) else 0.0
            groups.setdefault((decay, rate_scale(name, depth, config.layer_decay)), []).append(p)
    made = [{"params": ps, "weight_decay": decay, "scale": scale} for (decay, scale), ps in groups.items()]
    fused = device.type == "cuda"
    if config.optimizer == "sgd":
        return torch.optim.SGD(made, lr=0.0, momentum=config.momentum, fused=fused)
    return torch.optim.AdamW(made, lr=0.0, betas=(config.momentum, config.beta2), eps=1e-8, fused=fused)


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    """`body`: all but the head; else the parameters whose names begin so, whole words at a time."""
    for part in parts:
        found = False
        for name, p in model.named_parameters():
            in_body = part == "body" and not name.startswith("head.")
            if in_body or f"{name}.".startswith(f"{part}."):
                p.requires_grad_(False)
                found = True
        if not found:
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


def layer_of(name: str) -> int | None:
    if ".stem." in f".{name}":
        return None  # of a hybrid: below all layers, as the embedding that reads it
    match = re.search(r"(?:encoder\.(?:blocks|positions)|stages)\.(\d+)\.", name)
    return None if match is None else int(match[1])


def rate_scale(name: str, depth: int, layer_decay: float) -> float:
    """The layers 0 ... depth - 1 lie between what feeds them and what reads them."""
    layer = layer_of(name)
    if layer is None:
        below = re.search(r"(^|\.)(embedding|cls|positions|stem|root|mask)(\.|$)", name)
        layer = -1 if below else depth
    return layer_decay ** (depth - layer)
