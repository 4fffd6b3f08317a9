"""Dense layers in bf16 on a CUDA device: fast paths beside the plain text of encoder.py.

In a compiled training step (with Triton) large gradients are read once; without gradients a GELU is part of the
product before it. The values are those of the plain text, up to the order of sums and one rounding; tests compare
them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

try:
    from vitrail.models import kernels
except ImportError:  # there is no Triton for this platform
    kernels = None  # type: ignore[assignment]


def is_fusible(z: Tensor, layer: nn.Module) -> bool:
    """Return True for a dense layer in bf16, in a compiled training step on a CUDA device."""
    if not torch.compiler.is_compiling() or not torch.is_grad_enabled() or kernels is None:
        return False
    if z.device.type != "cuda" or not is_plain(layer):
        return False
    return isinstance(layer, nn.Linear) and layer.weight.dtype == torch.bfloat16


def is_gelu_fusible(z: Tensor, layer: nn.Module) -> bool:
    """Return True for a dense layer whose GELU needs no pass of its own: in a training step, or without gradients."""
    if torch.is_grad_enabled() or torch.compiler.is_exporting():
        return is_fusible(z, layer)
    return z.device.type == "cuda" and is_plain(layer) and layer.weight.dtype == torch.bfloat16


def is_plain(layer: nn.Module) -> bool:
    """Return True for x W^T + b: not for layers without a bias, or with more than these."""
    return type(layer) is nn.Linear and layer._parameters["bias"] is not None


def gelu_tanh(x: Tensor) -> Tensor:
    """x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3). Compiled, as the equal x sigmoid(2u): an
    exponential costs the generated kernels less than a hyperbolic tangent."""
    if torch.compiler.is_compiling():
        return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
    return F.gelu(x, approximate="tanh")


def dense_gelu(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return gelu(z W^T + b), (B, T, N), for z (B, T, K), W (N, K), b (N,)."""
    if not torch.is_grad_enabled():
        return product_with_gelu(z.to(weight.dtype), weight, bias)
    return DenseGELU.apply(z.to(weight.dtype), weight, bias)  # type: ignore[no-untyped-call]


def split_heads(z: Tensor, weight: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v (B, h, T, d) of z W^T + b for z (B, T, D), W (3 D, D), b (3 D,)."""
    return Heads.apply(z.to(weight.dtype), weight, bias, heads)  # type: ignore[no-untyped-call]


def multiply_with_gelu(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y = torch._addmm_activation(bias, z.flatten(0, -2), weight.t(), use_gelu=True)  # the tanh form
    return y.unflatten(0, z.shape[:-1])


# An operation to the compiler, which would take it apart.
product_with_gelu = torch.library.custom_op(
    "vitrail::product_with_gelu",
    multiply_with_gelu,
    mutates_args=(),
    schema="(Tensor z, Tensor weight, Tensor bias) -> Tensor",
)
product_with_gelu.register_fake(lambda z, weight, bias: z.new_empty(*z.shape[:-1], len(bias)))


class DenseGELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        h = F.linear(z, weight, bias)  # (B, T, N)
        ctx.save_for_backward(z, weight, h)
        return gelu_tanh(h)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z, weight, h = ctx.saved_tensors
        dh, sums = kernels.gelu_backward(h.flatten(0, 1), dy.flatten(0, 1).contiguous())  # (B T, N), (N,)
        return (dh @ weight).view_as(z), dh.T @ z.flatten(0, 1), sums.to(weight.dtype)


class Heads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, weight: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, ...]:
        ctx.save_for_backward(z, weight)
        qkv = F.linear(z, weight, bias).unflatten(-1, (3, heads, -1))  # (B, T, 3, h, d)
        return qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, h, T, d) each

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        z, weight = ctx.saved_tensors
        dqkv, sums = kernels.pack(*gradients)  # (B T, 3 D), (3 D,)
        return (dqkv @ weight).view_as(z), dqkv.T @ z.flatten(0, 1), sums.to(weight.dtype), None
