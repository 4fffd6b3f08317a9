"""LoRA, adapters of low rank (Hu et al., arXiv:2106.09685): dense layers whose weights are fixed, and corrected.

    y = x W^T + b + s (x A^T) B^T       A (r, in) `down`, B (out, r) `up`, s = 16 / r

A is drawn as torch draws the weights of a dense layer, B is zero: at first nothing changes. `adapt` gives an adapter
to every dense layer of the encoder's blocks; the fused qkv has one A for all three. `merge` gives the weights of the
plain model, W + s B A, by its own names. s falls with the rank, so that the learning rate need not follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.init import kaiming_uniform_, zeros_

from vitrail.errors import ConfigError

SCALE = 16  # s r
BASE, DOWN, UP = ".base.", ".down.weight", ".up.weight"  # in the names of an adapted layer's parameters


class Adapted(nn.Module):
    """A dense layer and its adapter; `weight` and `bias` are those of the layer that the two amount to."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        place = base.weight.device
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False, device=place)
        self.up = nn.Linear(rank, base.out_features, bias=False, device=place)
        self.scale = SCALE / rank
        kaiming_uniform_(self.down.weight, a=5**0.5)
        zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.scale * self.up(self.down(x))
        return y

    @property
    def weight(self) -> Tensor:
        return self.base.weight + self.scale * (self.up.weight @ self.down.weight)

    @property
    def bias(self) -> Tensor:
        return self.base.bias


def dense_layers(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the dense layers of the encoder's blocks, by name."""
    for name, part in model.named_modules():
        if name.startswith("encoder.blocks.") and isinstance(part, nn.Linear):
            yield name, part


def adapt(model: nn.Module, rank: int) -> None:
    """Put an adapter beside each dense layer of the encoder's blocks."""
    layers = list(dense_layers(model))
    if not layers:
        raise ConfigError("adapters of low rank are for the layers of a Transformer; this model has none")
    least = min(min(layer.weight.shape) for _, layer in layers)
    if not 1 <= rank <= least:
        raise ConfigError(f"rank {rank} of the adapters: must be from 1 to {least}, the narrowest layer")
    for name, layer in layers:
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, Adapted(layer, rank))


def is_adapted(model: nn.Module) -> bool:
    return any(isinstance(part, Adapted) for part in model.modules())


def base_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model without its adapters, by the names of the plain model."""
    return {name.replace(BASE, "."): w for name, w in weights.items() if not name.endswith((DOWN, UP))}


@torch.no_grad()
def merge(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the plain model that an adapted one amounts to: W + s B A, on the CPU, and exact but for
    the last rounding."""
    merged = {name: w.cpu() for name, w in base_weights(weights).items()}
    for name in weights:
        if name.endswith(DOWN):
            layer = name.removesuffix(DOWN)
            down, up = (weights[layer + end].cpu().double() for end in (DOWN, UP))  # (r, in), (out, r)
            W = merged[f"{layer}.weight"]
            merged[f"{layer}.weight"] = (W.double() + SCALE / len(down) * (up @ down)).to(W.dtype)
    return merged
