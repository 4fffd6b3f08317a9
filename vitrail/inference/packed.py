"""features() of a ViT on x86 CPUs, faster: the same products by oneDNN's kernels, on weights packed for them.

    with packed_features(model):          model.features(x), and so model(x), run as below
        ...

Against the plain text in models/, which a test holds it to:
    - the weights of each dense layer are laid out once for the kernel, and its GELU is applied within the product;
    - where only the class token is pooled, the last layer computes the others no further than their keys and values.

The operators are private ones of PyTorch, those that torch.compile uses on CPUs. Where they are missing or give other
numbers, and for layers of another form, the plain text runs. Packed weights are a copy: they need as much memory
again. In bf16, attention is computed in float32, which is faster there. B images, T tokens, D width, h heads,
d = D / h.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.encoder import MLP, Block, SelfAttention
from vitrail.models.vit import ViT

GELU = {"gelu_tanh": "tanh", "gelu": "none"}  # activation: the algorithm, as the operators and F.gelu name it


@contextmanager
def packed_features(model: nn.Module) -> Iterator[None]:
    """Replace model.features by the packed one within the block, where that is possible."""
    if not (isinstance(model, ViT) and can_pack(model)):
        yield
        return
    # An attribute of the instance hides the method of the class until it is removed.
    vars(model)["features"] = PackedFeatures(model)
    try:
        yield
    finally:
        vars(model).pop("features", None)


def can_pack(model: ViT) -> bool:
    """Return whether the layers are those that this file knows, and nobody watches or replaced one of them."""
    c = model.config
    layers = [m for block in model.encoder.blocks for m in block.modules()]
    dtype = next(model.encoder.parameters()).dtype
    return (
        c.has_plain_layers
        and (c.positions_at, c.norm_at != "none") == ("stem", True)
        and c.activation in GELU
        and {type(m) for m in layers} <= {Block, SelfAttention, MLP, nn.LayerNorm, nn.Linear, nn.Dropout}
        and not any(m._forward_hooks or m._forward_pre_hooks for m in [model.encoder, *layers])
        and all(w.dtype == dtype and w.device.type == "cpu" for w in model.encoder.parameters())
        and operators_work(dtype)
    )


@cache
def operators_work(dtype: torch.dtype = torch.float32) -> bool:
    """Try the operators on a small product."""
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():
        return False
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.05}.get(dtype)
    if tolerance is None:
        return False
    x = torch.linspace(-3, 3, 5 * 48).reshape(5, 48).to(dtype)
    W, b = torch.eye(32, 48, dtype=dtype), torch.linspace(-1, 1, 32).to(dtype)
    try:
        with torch.no_grad():
            pairs = [(PackedLinear(W, b)(x), F.linear(x, W, b))]
            for gelu in GELU.values():
                pairs.append((PackedLinear(W, b, gelu)(x), F.gelu(F.linear(x, W, b), approximate=gelu)))
    except (AttributeError, RuntimeError):
        return False
    return all(torch.allclose(ours, plain, rtol=tolerance, atol=tolerance) for ours, plain in pairs)


class PackedFeatures:
    """images (B, C, H, W) -> y (B, D), as ViT.features."""

    def __init__(self, model: ViT) -> None:
        self.model = model
        self.blocks = [PackedBlock(block, GELU[model.config.activation]) for block in model.encoder.blocks]
        if model.config.pool == "token":
            self.blocks[-1].queries = 1

    def __call__(self, x: Tensor) -> Tensor:
        grid = self.model.grid(x)
        z = self.model.tokens(self.model.patches(x), grid)  # (B, T, D)
        for block in self.blocks:
            z = block(z)  # (B, T, D); with one query, (B, 1, D)
        return self.model.pool(self.model.encoder.norm(z))  # (B, D)


class PackedBlock:
    """z -> z of the first `queries` tokens (None: all), as Block.forward in evaluation mode: Eqs. 2 and 3."""

    def __init__(self, block: nn.Module, gelu: str) -> None:
        assert isinstance(block, Block)
        attention, mlp = block.attention, block.mlp
        assert isinstance(mlp, MLP)
        D = attention.out.in_features
        W, b = attention.qkv.weight, attention.qkv.bias
        self.norm1, self.norm2, self.heads = block.norm1, block.norm2, attention.heads
        self.q, self.kv = PackedLinear(W[:D], b[:D]), PackedLinear(W[D:], b[D:])
        self.out = PackedLinear(attention.out.weight, attention.out.bias)
        self.fc1 = PackedLinear(mlp.fc1.weight, mlp.fc1.bias, gelu)
        self.fc2 = PackedLinear(mlp.fc2.weight, mlp.fc2.bias)
        self.queries: int | None = None

    def __call__(self, z: Tensor) -> Tensor:
        h, n = self.heads, self.queries
        y = self.norm1(z)  # (B, T, D)
        q = self.q(y[:, :n]).unflatten(-1, (h, -1)).transpose(1, 2)  # (B, h, n, d)
        k, v = self.kv(y).unflatten(-1, (2, h, -1)).permute(2, 0, 3, 1, 4).unbind(0)  # (B, h, T, d) each
        y = F.scaled_dot_product_attention(q.float(), k.float(), v.float()).to(z)  # (B, h, n, d)
        y = y.transpose(1, 2).flatten(2)  # (B, n, D)
        z = self.out(y).add_(z[:, :n])  # (B, n, D)                                     Eq. 2
        return self.fc2(self.fc1(self.norm2(z))).add_(z)  # (B, n, D)                   Eq. 3


class PackedLinear:
    """x -> x W^T + b, then a GELU if its algorithm is given."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, gelu: str | None = None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
        self.bias = None if bias is None else bias.detach()
        self.after, self.algorithm = ("none", "") if gelu is None else ("gelu", gelu)

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, self.after, [], self.algorithm
        )
        return y
