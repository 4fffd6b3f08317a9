"""Their names <-> ours: a format is a list of entries, read in both directions.

    Entry("encoder.blocks.0.attention.qkv.weight", ("…/query/kernel", "…/key/kernel", "…/value/kernel"), …)

Several of theirs are stacked along the first dimension of ours. `into` turns one of theirs to our orientation,
`back` returns it. Reading consumes every key and sets every parameter, or names those it could not.

Some of our architectures are written differently elsewhere but compute the same: `make_plain` turns them into that
form, exactly. What computes something else has no counterpart, and is refused.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.checkpoints.checkpoint import Checkpoint, listing, parameter_shapes
from vitrail.errors import CheckpointError
from vitrail.models import positions
from vitrail.models.names import Config
from vitrail.models.vit import ViTConfig


def unchanged(w: Tensor) -> Tensor:
    return w


@dataclass(frozen=True)
class Entry:
    ours: str
    theirs: tuple[str, ...]
    into: Callable[[Tensor], Tensor] = unchanged
    back: Callable[[Tensor], Tensor] = unchanged


def layer(ours: str, *theirs: str) -> Iterator[Entry]:
    """Yield weight and bias of a linear layer, a norm or a convolution with the same orientation on both sides."""
    for name in ("weight", "bias"):
        yield Entry(f"{ours}.{name}", tuple(f"{their}.{name}" for their in theirs))


def read_weights(
    entries: Iterable[Entry], tensors: Mapping[str, Tensor], config: Config, where: str
) -> dict[str, Tensor]:
    """Return their tensors as ours, float32 copies in the shapes of `config`."""
    table, shapes = list(entries), parameter_shapes(config)
    assert {e.ours for e in table} == set(shapes), {e.ours for e in table} ^ set(shapes)
    expected = [key for entry in table for key in entry.theirs]
    problems = [f"missing {key}" for key in expected if key not in tensors]
    problems += [f"extra {key}" for key in sorted(set(tensors) - set(expected))]
    problems += [
        f"{key} is {list(tensors[key].shape)}, which does not give {list(shapes[entry.ours])}"
        for entry in table
        for key in entry.theirs
        if key in tensors and not fits(entry, tensors[key], shapes[entry.ours])
    ]
    if problems:
        raise CheckpointError(f"{where}: {listing(problems)}")
    weights = {name: torch.empty(shape, dtype=torch.float32) for name, shape in shapes.items()}
    for (
        entry
    ) in table:  # one pass over memory: each part is turned and converted as it is copied into its place
        for part, key in zip(weights[entry.ours].chunk(len(entry.theirs)), entry.theirs, strict=True):
            part.copy_(entry.into(tensors[key]))
    return weights


def fits(entry: Entry, tensor: Tensor, shape: tuple[int, ...]) -> bool:
    rows, odd = divmod(shape[0], len(entry.theirs)) if shape else (0, 0)
    try:
        return not odd and tuple(entry.into(tensor).shape) == (rows, *shape[1:])
    except (RuntimeError, IndexError):  # not even the number of dimensions is right
        return False


def write_weights(entries: Iterable[Entry], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return our weights as theirs."""
    table = list(entries)
    assert {e.ours for e in table} == set(weights), {e.ours for e in table} ^ set(weights)
    return {
        key: entry.back(part).contiguous()
        for entry in table
        for part, key in zip(weights[entry.ours].chunk(len(entry.theirs)), entry.theirs, strict=True)
    }


def rename(tensors: Mapping[str, Tensor], new: Callable[[str], str], where: str) -> dict[str, Tensor]:
    """Rename tensors where two spellings are in use; a file must keep to one of them."""
    renamed = {new(name): w for name, w in tensors.items()}
    if len(renamed) < len(tensors):
        spellings = Counter(new(name) for name in tensors)
        twice = [name for name in tensors if spellings[new(name)] > 1]
        raise CheckpointError(f"{where} holds tensors under two spellings of a name: {listing(twice)}")
    return renamed


def add_zero_biases(tensors: Mapping[str, Tensor], biases: list[str], size: int) -> dict[str, Tensor]:
    """Add these biases to a model that was made without any of them; zeros compute the same."""
    if any(key in tensors for key in biases):
        return dict(tensors)
    return {**tensors, **{key: torch.zeros(size) for key in biases}}


# --- our architectures in the form that other libraries have ---


def make_plain(
    checkpoint: Checkpoint, to: str, *, with_positions: bool = False, with_token: bool = False
) -> Checkpoint:
    """Return the same function with one learned table of positions (or none) at the stem, as the format `to` has it.

    `with_positions`: a model without positions gets a table of zeros, for formats that always have one.
    `with_token`: the format's models always classify by the class token; others are refused.
    """
    c = checkpoint.config
    assert isinstance(c, ViTConfig)
    if with_token and c.pool != "token":
        raise CheckpointError(
            f"{to} has no counterpart for pool={c.pool!r}: its ViTs classify by the class token"
        )
    if c.block != "standard":
        raise CheckpointError(f"{to} has no counterpart for {c.block} blocks")
    if c.positions == "relative" or (c.positions != "none" and c.positions_at != "stem"):
        raise CheckpointError(
            f"{to} has no counterpart for positions={c.positions!r}, positions_at={c.positions_at!r}: "
            "it adds one table at the stem"
        )
    weights = dict(checkpoint.weights)
    if c.positions in ("2d", "sincos"):
        weights |= {"positions.table": position_table(c, weights)}
        weights = {name: w for name, w in weights.items() if name not in ("positions.x", "positions.y")}
    elif c.positions == "none" and with_positions:
        weights["positions.table"] = torch.zeros(1, c.tokens, c.width)
    if c.pool == "token" and c.norm_at == "pooled":
        # LayerNorm sees one token at a time: before or after picking one is the same.
        for name in ("weight", "bias"):
            weights[f"encoder.norm.{name}"] = weights.pop(f"pooled_norm.{name}")
    config = dataclasses.replace(
        c,
        positions="none" if c.positions == "none" and not with_positions else "1d",
        positions_at="stem",
        norm_at="encoder" if c.pool == "token" else c.norm_at,
    )
    return dataclasses.replace(checkpoint, config=config, weights=weights)


@torch.no_grad()
def position_table(c: ViTConfig, weights: dict[str, Tensor]) -> Tensor:
    """Return the E_pos (1, T, D) of an additive kind of positions."""
    module = positions.additive(c.positions, c.grid, c.width, c.prefix)
    assert module is not None
    module.load_state_dict({n: weights[f"positions.{n}"] for n in module.state_dict()})
    return module(c.grid)
