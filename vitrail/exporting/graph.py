"""The module that is traced: images -> {logits, probabilities, features, rollout}.

    traceable(model, settings)      a copy of the model with what a file needs: preprocessing in front, outputs by
                                    name; some parts are replaced by others with the same numbers that trace well
    trace(model, settings)          its graph, for any batch, and for any image size where the settings say so

B images, D width, K classes, T tokens, h heads.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vitrail.data.preprocess import parse
from vitrail.exporting.pixels import MOST_SIDE, Prepare
from vitrail.exporting.settings import ExportSettings
from vitrail.inference.fp8 import fp8_layers, set_part
from vitrail.models.encoder import MLP, SelfAttention
from vitrail.models.fused import gelu_tanh
from vitrail.models.names import Model
from vitrail.models.positions import Grid, Learned1D, Learned2D, SinCos2D
from vitrail.models.resnet import StdConv, ZeroPaddedMaxPool, pad_same, standardise
from vitrail.models.vit import ViT

DTYPES = {"float16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16}  # outside of fp8 layers
BIT_STRIDE = 32  # sides of images of any size are multiples of it, for a ResNet


class Traceable(nn.Module):
    """images -> outputs by name."""

    def __init__(self, model: Model, settings: ExportSettings) -> None:
        super().__init__()
        self.prepare = Prepare(parse(model.preprocess)) if settings.input == "pixels" else None
        self.model, self.rollout = model, settings.rollout

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        model = self.model
        x = images if self.prepare is None else self.prepare(images)
        x = x.to(next(model.parameters()).dtype)
        outputs: dict[str, Tensor] = {}
        if self.rollout:
            assert isinstance(model, ViT)
            y, outputs["rollout"] = rollout(model, x)
        else:
            y = model.features(x)
        y = model.head.representation(y)  # (B, D)
        if model.head.classifier is not None:
            logits = model.head.classifier(y).float()  # (B, K)
            p = model.calibration.probabilities(logits)  # (B, K)
            outputs = {"logits": logits, "probabilities": p} | outputs
        return outputs | {"features": y.float()}


def rollout(vit: ViT, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pooled features (B, D) and the attention rollout (B, rows, columns), as inspection has it."""
    grid, record = vit.grid(x), dict[str, Tensor]()
    z = vit.encode(vit.tokens(vit.patches(x), grid), grid, record=record)  # (B, T, D)
    seen = vit.pooling_weights(z)[:, None]  # (B, 1, T)
    for i in reversed(range(vit.config.depth)):
        A = record[f"block{i}.attention"].mean(dim=1).float()  # (B, T, T)
        seen = (seen @ A + seen) / 2  # (B, 1, T)
    return vit.pool(z), seen[:, 0, vit.config.prefix :].unflatten(1, grid)


def traceable(model: Model, settings: ExportSettings) -> Traceable:
    """Return the module of a copy of the model."""
    model = copy.deepcopy(model).eval().requires_grad_(False)
    if settings.precision == "fp8":
        for name, dense8 in fp8_layers(model).items():
            set_part(model, name, dense8)
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if (better := replacement(part, settings)) is not None:
                setattr(parent, name, better)
        if isinstance(parent, MLP) and parent.activation is gelu_tanh:
            operator = partial(F.gelu, approximate="tanh")
            parent.activation = sigmoid_gelu if settings.to == "executorch" else operator
    if settings.to != "openvino":  # it stores weights in float16 by itself
        model = model.to(DTYPES.get(settings.precision, torch.float32))
    return Traceable(model, settings).eval()


def replacement(part: nn.Module, settings: ExportSettings) -> nn.Module | None:
    """Return a part with the same numbers that traces well; None to keep it."""
    dynamic_size = settings.dynamic_size
    if isinstance(part, StdConv):
        return FixedConv(part)
    if isinstance(part, SelfAttention) and is_plain(part):
        return Attention(part, fused=settings.to in ("torch", "aoti"))
    if isinstance(part, nn.GroupNorm) and takes_plain_norms(settings):
        return PlainGroupNorm(part)
    if isinstance(part, ZeroPaddedMaxPool):
        return JoinedMaxPool()
    if isinstance(part, nn.Dropout):
        return nn.Identity()
    if dynamic_size and isinstance(part, Learned1D):
        return Resampled1D(part)
    if dynamic_size and isinstance(part, Learned2D):
        return Resampled2D(part)
    return Computed(part) if dynamic_size and isinstance(part, SinCos2D) else None


def is_plain(part: SelfAttention) -> bool:
    """Return whether it is the paper's: biases everywhere, and no norm inside; and not in 8-bit floats."""
    qkv: nn.Module = part.qkv
    return (
        isinstance(qkv, nn.Linear)
        and part.has_bias
        and part.q_norm is None
        and part.k_norm is None
        and part.norm is None
    )


def takes_plain_norms(settings: ExportSettings) -> bool:
    """Return whether PlainGroupNorm is better.

    PyTorch's own operator is as exact. And NNCF keeps a norm that is one operator in float32, but would make 8 bits
    of its parts, too: a hybrid of random weights then gives every second image another class.
    """
    return settings.to not in ("torch", "aoti") and settings.precision != "int8"


def sigmoid_gelu(x: Tensor) -> Tensor:
    """gelu_tanh by another operator: XNNPACK's own is 5e-4 away from it."""
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


class FixedConv(nn.Module):
    """StdConv with its filters standardised once."""

    def __init__(self, conv: StdConv) -> None:
        super().__init__()
        self.weight = nn.Parameter(standardise(conv.weight, conv.form, conv.eps), requires_grad=False)
        self.same, self.stride, self.padding = conv.same, conv.stride, conv.padding

    def forward(self, x: Tensor) -> Tensor:
        if self.same:
            x = pad_same(x, self.weight.shape[-1], self.stride[0])
        return F.conv2d(x, self.weight, None, self.stride, self.padding)


class JoinedMaxPool(nn.Module):
    """ZeroPaddedMaxPool with its zeros joined to the image: ONNX Runtime merges a padding with zeros into the pool
    after it, whose own padding is -inf."""

    def forward(self, x: Tensor) -> Tensor:
        for dim in (2, 3):
            zeros = torch.zeros_like(x.narrow(dim, 0, 1))
            x = torch.cat([zeros, x, zeros], dim=dim)
        return F.max_pool2d(x, 3, 2)


class PlainGroupNorm(nn.Module):
    """GroupNorm by means along one side after the other.

    Runtimes add the thousands of numbers of a group one by one in float32, and what that loses in the first layers of
    a ResNet grows with each that follows, to 1e-4 of the logits and more.
    """

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.groups, self.eps = norm.num_groups, norm.eps
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, x: Tensor) -> Tensor:
        z = x.float()  # (B, C, H, W); squares do not fit into float16
        z = z - self.mean(z)
        z = z * (self.mean(z * z) + self.eps).rsqrt()
        return z.to(x.dtype) * self.weight[:, None, None] + self.bias[:, None, None]

    def mean(self, z: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, 1, 1): the mean of each channel's group."""
        means = z.mean(dim=3).mean(dim=2).unflatten(1, (self.groups, -1))  # (B, groups, C / groups)
        return means.mean(dim=2, keepdim=True).expand_as(means).flatten(1)[:, :, None, None]


class Attention(nn.Module):
    """SelfAttention with a dense layer each for q, k and v: nothing is sliced. The scale is in the weights of q.

    `fused`: as PyTorch's own operator, which other runtimes take apart in a slower way.
    """

    def __init__(self, attention: SelfAttention, *, fused: bool) -> None:
        super().__init__()
        D = attention.qkv.in_features
        self.heads, self.out, self.fused = attention.heads, attention.out, fused
        weights, biases = attention.qkv.weight.split(D), attention.qkv.bias.split(D)
        self.q, self.k, self.v = (dense(W, b) for W, b in zip(weights, biases, strict=True))
        scale = (self.heads / D) ** 0.5  # 1 / sqrt(d)
        self.q.weight.data *= scale
        self.q.bias.data *= scale

    def forward(
        self, z: Tensor, layout: Any, record: dict[str, Tensor] | None = None, name: str = ""
    ) -> Tensor:
        q, k, v = (
            layer(part).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, part in ((self.q, z[:, : layout.first]), (self.k, z), (self.v, z))
        )  # (B, h, T, d) each
        if layout.rotary is not None:
            q, k = layout.rotary(q), layout.rotary(k)
        bias = None
        if layout.relative is not None:
            bias = layout.relative(q * q.shape[-1] ** 0.5, layout.places)  # (B, h, T, T)
        if record is None and self.fused:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)  # (B, h, T, d)
        else:
            logits = q @ k.transpose(-1, -2)  # (B, h, T, T)
            A = (logits if bias is None else logits + bias).softmax(dim=-1)
            if record is not None:
                record[f"{name}.attention"] = A
            y = A @ v
        return self.out(y.transpose(1, 2).flatten(2))  # (B, T, D)


def dense(weight: Tensor, bias: Tensor) -> nn.Linear:
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return layer


class Resampled1D(nn.Module):
    """Learned1D at any grid: rows and columns by matrices that are the identity at its own."""

    def __init__(self, positions: Learned1D) -> None:
        super().__init__()
        self.table, self.grid = positions.table, positions.grid

    def forward(self, grid: Grid) -> Tensor:
        rows, columns = self.grid
        prefix = self.table.shape[1] - rows * columns
        R, C = hat(rows, grid[0]).to(self.table), hat(columns, grid[1]).to(self.table)
        E = self.table[0, prefix:].reshape(rows, -1)  # (rows, columns * D)
        E = (R @ E).unflatten(1, (columns, -1))  # (R, columns, D)
        E = (C[None] @ E).flatten(0, 1)[None]  # (1, N, D)
        return torch.cat([self.table[:, :prefix], E], dim=1)  # (1, T, D)


class Resampled2D(nn.Module):
    """Learned2D at any grid."""

    def __init__(self, positions: Learned2D) -> None:
        super().__init__()
        self.x, self.y, self.prefix = positions.x, positions.y, positions.prefix

    def forward(self, grid: Grid) -> Tensor:
        X = hat(len(self.x), grid[1]).to(self.x) @ self.x  # (columns, D/2)
        Y = hat(len(self.y), grid[0]).to(self.y) @ self.y  # (rows, D/2)
        return beside(X, Y, self.prefix)


class Computed(nn.Module):
    """SinCos2D at any grid."""

    def __init__(self, positions: SinCos2D) -> None:
        super().__init__()
        quarter = positions.table.shape[-1] // 4
        w = 1.0 / 10_000 ** (torch.arange(quarter, dtype=torch.float64) / (quarter - 1))
        self.register_buffer("w", w.to(positions.table), persistent=False)
        self.prefix = positions.prefix
        self.w: Tensor

    def forward(self, grid: Grid) -> Tensor:
        y, x = (torch.arange(n, device=self.w.device).to(self.w)[:, None] * self.w for n in grid)
        Y, X = (torch.cat([v.sin(), v.cos()], dim=1) for v in (y, x))  # (side, D/2) each
        return beside(X, Y, self.prefix)


def beside(X: Tensor, Y: Tensor, prefix: int) -> Tensor:
    """Return [X[x], Y[y]] for every patch, after zeros for the tokens before them: (1, T, D)."""
    rows, columns = Y.shape[0], X.shape[0]
    E_pos = torch.cat(
        [X.expand(rows, -1, -1), Y[:, None].expand(-1, columns, -1)], dim=2
    )  # (rows, columns, D)
    return F.pad(E_pos.flatten(0, 1), (0, 0, prefix, 0))[None]


def hat(old: int, new: int) -> Tensor:
    """Return the matrix (new, old) of linear interpolation with aligned corners."""
    last = torch.scalar_tensor(new - 1, dtype=torch.float64).clamp(min=1)
    centre = torch.arange(new, dtype=torch.float64) * (old - 1) / last  # (new,)
    return (1 - (centre[:, None] - torch.arange(old, dtype=torch.float64)).abs()).clamp(min=0)


def stride_of(model: Model) -> int:
    """Return what must divide the sides of images of any size."""
    return model.config.stride if isinstance(model, ViT) else BIT_STRIDE


def example(model: Model, settings: ExportSettings) -> Tensor:
    """Return images to trace with, other than any that a graph could be specialised to."""
    H, W = model.config.image_size
    batch = settings.batch or 2
    generator = torch.Generator().manual_seed(0)
    if settings.input == "pixels":
        return torch.randint(0, 256, (batch, 3 * H + 5, 2 * W + 3, 3), generator=generator, dtype=torch.uint8)
    if settings.dynamic_size:
        stride = stride_of(model)
        H, W = H + stride * 2, W + stride * 3
    return torch.randn(batch, 3, H, W, generator=generator)


def trace(model: Model, settings: ExportSettings) -> ExportedProgram:
    """Return the graph of a model."""
    module, x = traceable(model, settings), example(model, settings)
    device = next(model.parameters()).device
    sizes: dict[int, Any] = {} if settings.batch else {0: Dim("batch", min=1, max=settings.most_batch)}
    if settings.input == "pixels":
        sizes |= {1: Dim("height", min=2, max=MOST_SIDE), 2: Dim("width", min=2, max=MOST_SIDE)}
    elif settings.dynamic_size:
        stride = stride_of(model)
        most = MOST_SIDE // stride
        sizes |= {2: stride * Dim("rows", min=2, max=most), 3: stride * Dim("columns", min=2, max=most)}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of torch about itself
        return torch.export.export(module, (x.to(device),), dynamic_shapes=(sizes,), strict=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what the exporter prints of its progress and warns of about torch itself."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
