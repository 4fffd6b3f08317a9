"""What differs between the codes that wrote Google's `.npz` files, apart from the architecture.

    prefix      what every key begins with: '', 'opt/target/', 'params/', 'params/img/'
    names       of the parts of a block: original (LayerNorm_2, MlpBlock_3) or linen (LayerNorm_1, MlpBlock_0)
    scan        the blocks of all layers in one array each, with a leading axis of depth
    top         pos_embedding at the top level and without a row for the class token (big_vision)
    odd         key: [dtype, order, shape] of the arrays that are not plain float32 in C order

google.py finds it in a file that is read, keeps it in the provenance, and writes by it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoints.checkpoint import listing
from vitrail.checkpoints.google_names import BLOCK_NAMES
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.checking import is_whole

PREFIX = re.compile(r"([\w-]{1,40}/){0,4}", re.ASCII)
DTYPES = ("<f2", "<f4", "<f8", "|V2")  # |V2: bfloat16, which numpy does not know


@dataclass(frozen=True)
class Dialect:
    prefix: str = ""
    names: str = "original"
    scan: bool = False
    top: bool = False
    odd: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """It decides what is written, and may have come with someone's model: nothing but what a file can have."""
        prefix: Any = self.prefix
        names: Any = self.names
        odd: Any = self.odd
        right = {
            "prefix": isinstance(prefix, str) and PREFIX.fullmatch(prefix),
            "names": names in tuple(BLOCK_NAMES),
            "scan": isinstance(self.scan, bool),
            "top": isinstance(self.top, bool),
            "odd": isinstance(odd, dict) and all(is_spec(key, spec) for key, spec in odd.items()),
        }
        if wrong := [f"{name}={getattr(self, name)!r}"[:80] for name, fine in right.items() if not fine]:
            raise ConfigError(f"no file has {listing(wrong)}")


def oddities(arrays: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    odd = {}
    for key, a in arrays.items():
        fortran = a.flags.f_contiguous and not a.flags.c_contiguous
        old_norm = a.ndim == 4 and a.size == a.shape[-1] and key.endswith(("scale", "bias", "gamma", "beta"))
        numbered_key = key != canonical(key)
        if a.dtype != np.float32 or fortran or old_norm or numbered_key:
            odd[key] = [a.dtype.str, "F" if fortran else "C", list(a.shape) if old_norm else None]
    return odd


def is_spec(key: str, spec: Any) -> bool:
    """Whether it is an entry of `oddities`."""
    if len(key) > 200 or not isinstance(spec, list) or len(spec) != 3:
        return False
    dtype, order, shape = spec
    whole = shape is None or (
        isinstance(shape, list) and len(shape) == 4 and all(is_whole(n) and n >= 0 for n in shape)
    )
    return dtype in DTYPES and order in ("C", "F") and whole


def canonical(key: str) -> str:
    """Some BiT files count their convolutions: standardized_conv2d_17."""
    return re.sub(r"standardized_conv2d_\d+", "standardized_conv2d", key)


def spelled(key: str, dialect: Dialect) -> tuple[str, list[Any]]:
    """The key as the file had it, and how its array was stored."""
    for name, spec in dialect.odd.items():
        if canonical(name) == key:
            return name, spec
    return key, ["<f4", "C", None]


def tensor_of(a: np.ndarray, where: str) -> Tensor:
    """A view. numpy knows no bfloat16: such arrays come as two opaque bytes."""
    if a.dtype.kind == "V" and a.dtype.itemsize == 2:
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    if a.dtype.str not in DTYPES:
        raise CheckpointError(f"{where} is {a.dtype}; weights are float16, bfloat16, float32 or float64")
    return torch.from_numpy(a)


def as_stored(a: np.ndarray, spec: list[Any]) -> tuple[np.ndarray, bool]:
    """The array as the dialect stores it; False where its type would change values, and float32 is kept."""
    dtype, order, shape = spec
    stored: np.ndarray
    if np.dtype(dtype).kind == "V":
        stored = torch.from_numpy(a).to(torch.bfloat16).view(torch.int16).numpy().view(np.dtype(dtype))
        exact = torch.equal(torch.from_numpy(a), torch.from_numpy(a).to(torch.bfloat16).float())
    else:
        with np.errstate(over="ignore"):
            stored = a.astype(dtype)
        exact = np.array_equal(stored.astype(np.float32), a, equal_nan=True)
    if not exact:
        stored = a
    if shape is not None and math.prod(shape) == stored.size:
        stored = stored.reshape(shape)
    return np.asarray(stored, order=order), exact
