"""What the names of timm, transformers and torchvision have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from vitrail.checkpoints.checkpoint import listing
from vitrail.checkpoints.mapping import Entry
from vitrail.errors import CheckpointError


def layer(ours: str, *theirs: str) -> Iterator[Entry]:
    """The weight and the bias of a linear layer, a norm or a convolution; oriented alike on both sides."""
    for part in ("weight", "bias"):
        yield Entry(f"{ours}.{part}", tuple(f"{name}.{part}" for name in theirs))


def renamed(tensors: Mapping[str, Tensor], how: Callable[[str], str], where: str) -> dict[str, Tensor]:
    """The tensors by other names, where two spellings of them are in use; a file must keep to one."""
    made = {how(name): w for name, w in tensors.items()}
    if len(made) < len(tensors):
        spellings = Counter(how(name) for name in tensors)
        twice = [name for name in tensors if spellings[how(name)] > 1]
        raise CheckpointError(f"{where} holds tensors by two spellings of a name: {listing(twice)}")
    return made


def with_zero_biases(tensors: Mapping[str, Tensor], biases: list[str], size: int) -> dict[str, Tensor]:
    """Models made without these biases have none of them; zeros compute the same."""
    if any(key in tensors for key in biases):
        return dict(tensors)
    return {**tensors, **{key: torch.zeros(size) for key in biases}}
