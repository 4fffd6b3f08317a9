"""Their names <-> ours: a format is a list of entries, read in both directions.

    Entry("encoder.blocks.0.attention.qkv.weight", ("…/query/kernel", "…/key/kernel", "…/value/kernel"), …)

Several of theirs are stacked along the first dimension of ours. `into` turns one of theirs to our orientation,
`back` returns it. Reading consumes every key and sets every parameter, or says which it could not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.checkpoints.checkpoint import listing
from vitrail.errors import CheckpointError


def same(w: Tensor) -> Tensor:
    return w


@dataclass(frozen=True)
class Entry:
    ours: str
    theirs: tuple[str, ...]
    into: Callable[[Tensor], Tensor] = same
    back: Callable[[Tensor], Tensor] = same


def read(
    entries: list[Entry], tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], where: str
) -> dict[str, Tensor]:
    """Their tensors -> ours, as float32 copies. `shapes`: what the architecture asks for, by our names."""
    assert {e.ours for e in entries} == set(shapes), {e.ours for e in entries} ^ set(shapes)
    wanted = [key for entry in entries for key in entry.theirs]
    problems = [f"missing {key}" for key in wanted if key not in tensors]
    problems += [f"extra {key}" for key in sorted(set(tensors) - set(wanted))]
    problems += [
        f"{key} is {list(tensors[key].shape)}, which does not give {list(shapes[entry.ours])}"
        for entry in entries
        for key in entry.theirs
        if key in tensors and not fits(entry, tensors[key], shapes[entry.ours])
    ]
    if problems:
        raise CheckpointError(f"{where}: {listing(problems)}")
    return {entry.ours: stacked(entry, tensors, shapes[entry.ours]) for entry in entries}


def fits(entry: Entry, tensor: Tensor, shape: tuple[int, ...]) -> bool:
    rows, odd = divmod(shape[0], len(entry.theirs)) if shape else (0, 0)
    try:
        return not odd and tuple(entry.into(tensor).shape) == (rows, *shape[1:])
    except (RuntimeError, IndexError):  # not even the number of dimensions is right
        return False


def stacked(entry: Entry, tensors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Tensor:
    """One pass over memory: each part is turned and converted as it is copied into its place."""
    made = torch.empty(shape, dtype=torch.float32)
    for part, key in zip(made.chunk(len(entry.theirs)), entry.theirs, strict=True):
        part.copy_(entry.into(tensors[key]))
    return made


def write(entries: list[Entry], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Ours -> theirs."""
    assert {e.ours for e in entries} == set(weights), {e.ours for e in entries} ^ set(weights)
    return {
        key: entry.back(part).contiguous()
        for entry in entries
        for part, key in zip(weights[entry.ours].chunk(len(entry.theirs)), entry.theirs, strict=True)
    }
