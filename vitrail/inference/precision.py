"""The precision of a forward pass: float32, bf16, or fp8 in the encoder's dense layers.

bf16 rounds the weights once and computes in it; BiT's convolutions standardise their weights in float32, so models
with them are computed under autocast. fp8 needs scales that were measured on images and checked (fp8.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal, NamedTuple

import torch
from torch import nn

from vitrail.errors import ConfigError
from vitrail.inference.fp8 import dense_layers_in_fp8
from vitrail.models.resnet import StdConv

Precision = Literal["auto", "float32", "bf16", "fp8"]


def choose_precision(precision: Precision, device: torch.device) -> Precision:
    """Return what `auto` means on a device: bf16 on a GPU that computes in it, else float32. Never fp8."""
    if precision not in ("auto", "float32", "bf16", "fp8"):
        raise ConfigError(f"precision {precision!r} is not one of auto, float32, bf16, fp8")
    if precision != "auto":
        return precision
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(False) else "float32"


class Numbers(NamedTuple):
    """How a forward pass computes: the type of its input, and whether autocast rounds (in each thread, by itself)."""

    dtype: torch.dtype
    autocast: bool = False


@contextmanager
def in_precision(model: nn.Module, precision: Precision) -> Iterator[Numbers]:
    """Context in which a model's weights are as a precision needs them; afterwards they are as before."""
    weight = next(model.parameters())
    precision = choose_precision(precision, weight.device)
    if precision == "float32":
        yield Numbers(weight.dtype)
        return
    if any(isinstance(part, StdConv) for part in model.modules()):
        if precision == "fp8":
            raise ConfigError("precision fp8 is for ViTs without a ResNet; use bf16")
        yield Numbers(weight.dtype, autocast=True)
        return
    own = {p: p.data for p in model.parameters()}
    with dense_layers_in_fp8(model) if precision == "fp8" else nullcontext():
        for p in model.parameters():
            p.data = p.data.bfloat16()
        try:
            yield Numbers(torch.bfloat16)
        finally:
            for p, w in own.items():
                p.data = w
