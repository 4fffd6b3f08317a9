"""An update of flat buffers as two functions, each of which a compiler makes one pass over memory.

    norm     of all gradients
    update   clipping, weight decay, SGD or AdamW, the average, and the weights rounded anew to bf16

The numbers are those of torch.optim's optimizers, clip_grad_norm_ and `TrainState.update`, which do the same with a
pass for each; tests compare them. All buffers of a group are 1-D and of one length, changed in place; gradients may
be in bf16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vitrail.train.settings import OptimizerSettings

EPS = 1e-8  # of AdamW, as in torch.optim
LEAST_NORM = 1e-6  # added to the norm, as in clip_grad_norm_


def global_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of all gradients, float32."""
    return torch.stack([g.float().square().sum() for g in gradients]).sum().sqrt()


def shrinkage(norm: Tensor, largest: float) -> Tensor:
    """Return the factor of gradients whose norm may be at most `largest` (0: anything)."""
    return (largest / (norm + LEAST_NORM)).clamp(max=1.0) if largest else torch.ones_like(norm)


def corrections(settings: OptimizerSettings, moments: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Count a step of AdamW; return 1 - b1^t and 1 - b2^t, what a moment has of its full size after t steps."""
    if settings.optimizer == "sgd":
        return ()
    t = moments["step"].add_(1).double()
    return tuple((1 - b**t).float() for b in (settings.momentum, settings.beta2))


def update_group(
    settings: OptimizerSettings,
    decay: float,
    w: Tensor,
    gradient: Tensor,
    shrink: Tensor,
    moments: Mapping[str, Tensor],
    lr: Tensor,
    corrected: Sequence[Tensor],
    average: Tensor | None,
    share: Tensor,
    rounded: Tensor | None,
) -> None:
    """Take a step of a group, whose gradient is scaled by `shrink`. `share`: of the new weights in the average."""
    g = gradient.float() * shrink
    if settings.optimizer == "sgd":
        m = moments["momentum_buffer"]
        m.mul_(settings.momentum).add_(g + decay * w)
        new = w - lr * m
    else:
        m, v = moments["exp_avg"], moments["exp_avg_sq"]
        m.lerp_(g, 1 - settings.momentum)
        v.mul_(settings.beta2).add_(g.square(), alpha=1 - settings.beta2)
        size, square = corrected
        new = w * (1 - lr * decay) - lr / size * m / ((v / square).sqrt() + EPS)
    w.copy_(new)
    if average is not None:
        average.lerp_(new, share)
    if rounded is not None:
        rounded.copy_(new)
