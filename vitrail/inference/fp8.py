"""Dense layers on 8-bit floats: twice the matrix products per second of bf16 on GPUs that have them.

    y = (s_x x_8) (s_w W_8)^T + b      x_8 = round(x / s_x), W_8 = round(W / s_w) to e4m3, whose largest value is 448

One scale for a layer's weights, one for its inputs. The scale of the inputs is measured on images (`calibrate`) and
stored with the model, so that rounding is part of the operation before it: a compiler fuses it into LayerNorm and
GELU. What differs from float32 is measured before it is used (evaluators/fp8_check.py).

All dense layers of the encoder are converted, but q, k, v of a last layer that computes only the class token. On
devices without 8-bit products the same numbers are multiplied in float32: slower, for checking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.checkpoints.checkpoint import model_digest
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.fused import is_plain
from vitrail.models.names import Model
from vitrail.models.vit import ViT

LARGEST = 448.0  # of e4m3
MULTIPLE = 16  # of both sides of a weight, which the GPU's products need


class Dense8(nn.Module):
    """nn.Linear of which weights and inputs are rounded to e4m3; `largest`: of the inputs' magnitudes."""

    def __init__(self, linear: nn.Linear, largest: float) -> None:
        super().__init__()
        w = linear.weight.detach().float()
        self.s_x = torch.tensor(largest / LARGEST, device=w.device)
        self.s_w = w.abs().amax().clamp(min=1e-12) / LARGEST
        self.w = (w / self.s_w).to(torch.float8_e4m3fn)  # (N, K)
        self.b = linear.bias.detach().bfloat16()  # (N,)

    def forward(self, x: Tensor) -> Tensor:
        x8 = (x.float() / self.s_x).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)  # (..., K)
        if x.device.type != "cuda":
            return F.linear(x8.float() * self.s_x, self.w.float() * self.s_w, self.b.float()).to(x.dtype)
        y = torch._scaled_mm(
            x8.flatten(0, -2), self.w.t(), self.s_x, self.s_w, self.b, out_dtype=torch.bfloat16
        )
        return y.unflatten(0, x.shape[:-1])  # (..., N)


def convertible_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the dense layers that can compute in fp8, by name."""
    if not isinstance(model, ViT):
        raise ConfigError("fp8 is for ViTs; use bf16")
    last = f"encoder.blocks.{model.config.depth - 1}.attention.qkv"
    return {
        name: part
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and is_plain(part) and name.startswith("encoder.blocks.")
        and not any(n % MULTIPLE for n in part.weight.shape)
        and not (name == last and model.config.pool == "token")
    }  # fmt: skip


def calibrate(model: Model, run: Callable[[], Any]) -> dict[str, float]:
    """Return the largest magnitude of the inputs of each dense layer while `run` passes images through the model."""
    layers = convertible_layers(model)
    if not layers:
        raise ConfigError(f"fp8: no dense layer of this model has sides that are multiples of {MULTIPLE}")
    largest = {name: torch.zeros((), device=part.weight.device) for name, part in layers.items()}

    def watch(name: str) -> Callable[..., None]:
        def note_largest(part: nn.Module, inputs: tuple[Tensor]) -> None:
            largest[name].copy_(torch.maximum(largest[name], inputs[0].detach().abs().amax().float()))

        return note_largest

    hooks = [part.register_forward_pre_hook(watch(name)) for name, part in layers.items()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return {name: max(float(value), 1e-12) for name, value in largest.items()}


def measure_scales(model: Model, run: Callable[[], Any]) -> dict[str, Any]:
    """Return what `model.fp8` holds: the magnitudes that `calibrate` finds, and the weights that they are for."""
    return {"largest": calibrate(model, run), "weights": model_digest(model)}


def fp8_layers(model: nn.Module) -> dict[str, Dense8]:
    """Return the dense layers of the encoder in fp8, by name, with the scales that are stored with the model."""
    assert isinstance(model, Model)
    if not (stored := model.fp8.get("largest", {})):
        raise ConfigError(
            "precision fp8: this model has no scales for it. `vitrail calibrate MODEL OUT --data DATA --verify DATA` "
            "measures them and checks them"
        )
    layers = convertible_layers(model)
    if layers.keys() != stored.keys() or model.fp8.get("weights") != model_digest(model):
        raise ConfigError("precision fp8: the scales of this model are for other weights; calibrate it again")
    if not all(isinstance(value, float) and 0 < value < math.inf for value in stored.values()):
        raise CheckpointError(f"the scales for fp8 must be positive numbers: {str(stored)[:200]}")
    return {name: Dense8(part, stored[name]) for name, part in layers.items()}


@contextmanager
def dense_layers_in_fp8(model: nn.Module) -> Iterator[None]:
    """Context in which the dense layers of the encoder are in fp8."""
    converted = fp8_layers(model)
    layers = {name: model.get_submodule(name) for name in converted}
    try:
        for name, dense8 in converted.items():
            set_part(model, name, dense8)
        yield
    finally:
        for name, part in layers.items():
            set_part(model, name, part)


def set_part(model: nn.Module, name: str, part: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, part)
