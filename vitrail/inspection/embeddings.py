"""Weights as pictures, without any image: the filters of E (Fig. 7 left), the similarity of E_pos (centre).

    filters(model)               principal components of the first layer's filters, with the share of variance of each
    position_similarity(model)   cosine similarity of the position embeddings of every two patches

The first layer is the patch embedding E; in a hybrid or a ResNet, where pictures go through convolutions first, the
root convolution of 7 x 7, its filters standardised as they are used.
D filters, C channels, P patch, E_pos (N, D), N = rows * columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from vitrail.errors import ConfigError
from vitrail.inference.engine import check_finite
from vitrail.inspection.attention import with_attention
from vitrail.models.hybrid import Hybrid
from vitrail.models.names import Model
from vitrail.models.resnet import BiT, StdConv, standardise

COMPONENTS = 28  # as many as the paper shows


@dataclass(frozen=True)
class Filters:
    """Principal components of a bank of filters."""

    components: np.ndarray  # float32 (k, P, P, C), orthonormal, strongest first; the largest value positive
    variance: np.ndarray  # float32 (k,): the share of the variance of the filters that each explains
    layer: str  # that has them


def filters(model: Model, components: int = COMPONENTS) -> Filters:
    """Return the principal components of the first layer's filters: of D points in R^(P P C), less their mean."""
    if isinstance(model, BiT | Hybrid):
        conv = (model if isinstance(model, BiT) else model.stem).root["conv"]
        assert isinstance(conv, StdConv)
        weight = standardise(conv.weight.detach().cpu(), conv.form, conv.eps)  # (D, C, P, P)
        layer = "the root convolution"
    else:
        weight, layer = model.embedding.weight.detach().cpu(), "the patch embedding E"
    check_finite(weight, f"weights in {layer}")
    D, C, P, _ = weight.shape
    bank = weight.permute(0, 2, 3, 1).reshape(D, -1).double()  # (D, P*P*C)
    bank = bank - bank.mean(dim=0)
    _, s, v = torch.linalg.svd(bank, full_matrices=False)  # (r,), (r, P*P*C)
    k = min(components, len(s))
    v = v[:k]  # (k, P*P*C)
    v = v * v.gather(1, v.abs().argmax(dim=1, keepdim=True)).sign()  # a component has no sign of its own
    variance = s.square() / s.square().sum().clamp(min=torch.finfo(torch.float64).tiny)  # (r,)
    return Filters(v.reshape(k, P, P, C).float().numpy(), variance[:k].float().numpy(), layer)


def position_similarity(model: Model, layer: int = 0) -> np.ndarray:
    """Return for each patch position the cosine similarity of its E_pos to all: (rows, columns, rows, columns).

    The class token's row is left out. Where layers add a table, that of block `layer`, counted from 0.
    """
    vit = with_attention(model)
    c = vit.config
    if c.positions == "none" or c.positions.startswith("relative"):
        why = "relative ones, which are part of attention"
        if c.positions == "none":
            why = "none at all" if c.rotary is None else "rotary ones, which are part of attention"
        raise ConfigError(
            f"position similarity needs position embeddings that are added; this model has {why}"
        )
    # Added once, before all blocks, or before each of them: by one table for all, or by a table for each.
    tables = [vit.positions] if vit.positions is not None else list(vit.encoder.positions)
    last = 0 if vit.positions is not None else c.depth - 1
    if not 0 <= layer <= last:
        allowed = f"layers 0 to {last}" if last else "layer 0 alone"
        raise ConfigError(f"layer={layer} adds no position embeddings; this model has them at {allowed}")
    N = c.grid[0] * c.grid[1]
    with torch.inference_mode():
        E_pos = tables[layer % len(tables)](c.grid)[0, -N:].detach()  # (N, D)
    check_finite(E_pos, "position embeddings")
    E_pos = F.normalize(E_pos.double().cpu(), dim=1)
    return (E_pos @ E_pos.T).float().numpy().reshape(*c.grid, *c.grid)  # (rows, columns, rows, columns)
