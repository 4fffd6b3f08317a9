"""The optimizer of an objective: the learning rate of a step; SGD or AdamW and its groups of parameters.

Every parameter is in exactly one group, a pair (weight decay or none, factor of lr). Only kernels decay: matrices and
convolutions, not biases, norms, positions, class or mask embeddings. AdamW's decay is decoupled and scaled by lr, in
the paper's units: lr (Adam's direction + decay w).

`layer_decay` c < 1 gives layer l of L the factor c^(L + 1 - l): the head 1, the embedding the least (tuning.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from vitrail.train.settings import OptimizerSettings
from vitrail.train.tuning import find_layers

# The tensors that each keeps of a parameter.
MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}


def lr_at(step: int, steps: int, settings: OptimizerSettings) -> float:
    """Return the learning rate of a step of a run of `steps`, as in the published code.

        p = (step - warmup) / (steps - warmup), clipped to [0, 1]
        linear      end_lr + (lr - end_lr) (1 - p)             end_lr = 1e-5
        cosine      lr (1 + cos(pi p)) / 2
        constant    lr
        milestones  lr x 0.1 for each milestone below step: BiT-HyperRule
        ... times min(1, step / warmup)

    Steps count from 0, so that with a warmup the first update has lr 0, as published.
    """
    lr, warmup = settings.lr, int(settings.warmup)
    p = min(1.0, max(0.0, (step - warmup) / max(1, steps - warmup)))
    if settings.schedule == "linear":
        lr = settings.end_lr + (lr - settings.end_lr) * (1 - p)
    elif settings.schedule == "cosine":
        lr = lr * 0.5 * (1 + math.cos(math.pi * p))
    elif settings.schedule == "milestones":
        lr = lr * 0.1 ** sum(int(at) < step for at in settings.milestones)
    return lr * min(1.0, step / warmup) if warmup else lr


def group_parameters(
    objective: nn.Module, settings: OptimizerSettings
) -> dict[tuple[float, float], dict[str, nn.Parameter]]:
    """Return the parameters that are not frozen, by name, for each pair of weight decay and factor of lr."""
    layers = find_layers(name for name, _ in objective.named_parameters())
    depth = max(layers.values(), default=0)
    groups: dict[tuple[float, float], dict[str, nn.Parameter]] = {}
    for name, p in objective.named_parameters():
        if p.requires_grad:
            is_kernel = name.endswith(".weight") and p.ndim >= 2
            decay_and_scale = (
                settings.weight_decay if is_kernel else 0.0,
                settings.layer_decay ** (depth - layers[name]),
            )
            groups.setdefault(decay_and_scale, {})[name] = p
    return groups


def build_optimizer(
    groups: Mapping[tuple[float, float], Sequence[nn.Parameter]],
    settings: OptimizerSettings,
    device: torch.device,
    flat: bool = False,
) -> torch.optim.Optimizer:
    """Return the optimizer of groups by weight decay and factor of lr, which each of its groups has as `scale`.

    `flat`: only its tensors are used (update.py), learning rates too, which a CUDA graph reads at each replay.
    """
    params = [{"params": ps, "weight_decay": decay, "scale": scale} for (decay, scale), ps in groups.items()]
    fused = device.type == "cuda"
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "sgd":
        optimizer = torch.optim.SGD(params, lr=0.0, momentum=settings.momentum, fused=fused)
    else:
        betas = (settings.momentum, settings.beta2)
        optimizer = torch.optim.AdamW(params, lr=0.0, betas=betas, fused=fused)
    # The moments at zero, as the first step would make them: so that they can be restored before it.
    for group in optimizer.param_groups:
        if flat:
            group["lr"] = torch.zeros((), device=device)
        for p in group["params"]:
            if settings.optimizer == "adamw":
                place = p.device if fused else torch.device("cpu")
                optimizer.state[p]["step"] = torch.zeros((), dtype=torch.float32, device=place)
            for name in MOMENTS[settings.optimizer]:
                optimizer.state[p][name] = torch.zeros_like(p, memory_format=torch.preserve_format)
    return optimizer
