"""Ours -> what other libraries have: one learned table of positions at the stem, a last norm in the encoder.

Some of our architectures are written differently there but compute the same; `plain` turns them into that
form, exactly. What computes something else has no counterpart, and is refused.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vitrail.checkpoints.checkpoint import Checkpoint
from vitrail.errors import CheckpointError
from vitrail.models import positions
from vitrail.models.vit import ViTConfig


def plain(checkpoint: Checkpoint, to: str) -> Checkpoint:
    """The same function with positions 1-D (or none) at the stem; `to`: the format, for messages."""
    c = checkpoint.config
    assert isinstance(c, ViTConfig)
    if c.block != "standard":
        raise CheckpointError(f"{to} has no counterpart for {c.block} blocks")
    if c.positions == "relative" or (c.positions != "none" and c.positions_at != "stem"):
        raise CheckpointError(
            f"{to} has no counterpart for positions={c.positions!r}, positions_at={c.positions_at!r}: "
            "it adds one table at the stem"
        )
    weights = dict(checkpoint.weights)
    if c.positions in ("2d", "sincos"):
        weights |= {"positions.table": table_of(c, weights)}
        weights = {name: w for name, w in weights.items() if name not in ("positions.x", "positions.y")}
    if c.pool == "token" and c.norm_at == "pooled":
        # LayerNorm sees one token at a time: before or after picking one is the same.
        for part in ("weight", "bias"):
            weights[f"encoder.norm.{part}"] = weights.pop(f"pooled_norm.{part}")
    config = dataclasses.replace(
        c,
        positions="none" if c.positions == "none" else "1d",
        positions_at="stem",
        norm_at="encoder" if c.pool == "token" else c.norm_at,
    )
    return dataclasses.replace(checkpoint, config=config, weights=weights)


def with_table(checkpoint: Checkpoint) -> Checkpoint:
    """No positions -> positions of zeros, for formats that always have some."""
    c = checkpoint.config
    assert isinstance(c, ViTConfig)
    if c.positions != "none":
        return checkpoint
    weights = {**checkpoint.weights, "positions.table": torch.zeros(1, c.tokens, c.width)}
    return dataclasses.replace(checkpoint, config=dataclasses.replace(c, positions="1d"), weights=weights)


@torch.no_grad()
def table_of(c: ViTConfig, weights: dict[str, Tensor]) -> Tensor:
    """Return the E_pos (1, T, D) of an additive kind of positions."""
    module = positions.additive(c.positions, c.grid, c.width, c.prefix)
    assert module is not None
    module.load_state_dict({n: weights[f"positions.{n}"] for n in module.state_dict()})
    return module(c.grid)


def refuse_unless_token(c: ViTConfig, to: str) -> None:
    """For libraries whose ViT always classifies by its class token."""
    if c.pool != "token":
        raise CheckpointError(
            f"{to} has no counterpart for pool={c.pool!r}: its ViTs classify by the class token"
        )
