"""Cost of a model, from its config alone: nothing is built or run.

Counted as usual: 1 multiply-add = 1 MAC = 2 FLOPs; only matrix products and convolutions (norms,
activations and additions are below 1%); a training step is 3 x forward (backward is twice forward).

    MACs of a ViT layer on T tokens:   4 T D^2  (q, k, v, out)  +  2 T^2 D  (q k^T, A v)  +  2 T D mlp_dim

`activation_bytes` counts what a training step keeps for the backward pass, per image, with fused attention: a
layer keeps the inputs of its two norms (2D), of qkv and fc1 (2D), q, k, v and the attention's output (4D), and
the MLP's hidden layer before and after the GELU (2 mlp_dim).

These are the costs of the equations, as papers print them. With a class token's head the last layer computes its
queries, its projection and its MLP for that token alone, which saves most of one layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vitrail.errors import ConfigError
from vitrail.models.hybrid import HybridConfig
from vitrail.models.names import Config
from vitrail.models.resnet import BiTConfig, StemConfig, stage_width
from vitrail.models.vit import ViTConfig


@dataclass(frozen=True)
class Cost:
    """Cost of one image at the config's image size."""

    parameters: int
    tokens: int  # 0 for ResNets
    macs: int  # forward
    activations: int  # values kept for the backward pass

    @property
    def flops(self) -> int:
        """FLOPs of the forward pass."""
        return 2 * self.macs

    @property
    def training_flops(self) -> int:
        """FLOPs of the forward and backward pass."""
        return 3 * self.flops

    def activation_bytes(self, bytes_per_value: int = 2) -> int:
        """Return the bytes kept for the backward pass; 2 per value in bf16."""
        return self.activations * bytes_per_value

    def pretraining_flops(self, examples: int, epochs: float) -> float:
        """Return the FLOPs of `epochs` passes over `examples` images; Table 6 gives them as exaFLOPs (1e18)."""
        if examples < 0:
            raise ConfigError(f"examples must be at least 0, not {examples:,}")
        if not 0 <= epochs < float("inf"):
            raise ConfigError(f"epochs must be finite and at least 0, not {epochs:g}")
        return self.training_flops * examples * epochs


def cost(config: Config) -> Cost:
    if not isinstance(config, BiTConfig):
        return vit_cost(config)
    body, head = resnet_cost(config, config.channels, config.image_size), config.width * config.classes
    return replace(body, parameters=body.parameters + head + config.classes, macs=body.macs + head)


def layer_cost(config: ViTConfig) -> Cost:
    """Return the cost of one layer of the encoder."""
    less, more = cost(config), cost(replace(config, depth=config.depth + 1))
    return Cost(
        more.parameters - less.parameters, 0, more.macs - less.macs, more.activations - less.activations
    )


def accelerator_days(flops: float, peak_flops: float, utilisation: float) -> float:
    """Return the days on one accelerator. The paper's TPUv3 core: a peak of 61.5e12 (half a chip's 123e12) in bf16;
    its H/14 took 2,500 core-days for 14 epochs of JFT, a utilisation of 0.32, its L/16 680, 0.43."""
    if not 0 < peak_flops < float("inf"):
        raise ConfigError(f"the peak must be finite and above 0, not {peak_flops / 1e12:g} TFLOP/s")
    if not 0 < utilisation <= 1:
        raise ConfigError(f"utilisation must be in (0, 1], not {utilisation:g}")
    return flops / (peak_flops * utilisation * 86_400)


def vit_cost(c: ViTConfig) -> Cost:
    D, M, T, N = c.width, c.mlp_dim, c.tokens, c.grid[0] * c.grid[1]
    g = 2 if c.mlp == "gated" else 1  # matrices before the MLP's activation
    norms = 1 if c.norm == "rms" else 2  # parameters of a norm, for each number that it scales
    d, norm = D // c.heads, norms * D
    # Parameters of attention and of an MLP, with what the config adds to them.
    attention = 4 * D * D + {"all": 3 * D, "qv": 2 * D, "none": 0}[c.qkv_bias] + D * c.dense_bias
    attention += 2 * norms * d * c.qk_norm + norm * c.attention_norm
    mlp = (g + 1) * D * M + (D + g * M) * c.dense_bias + norms * M * c.mlp_norm
    E = c.patch_size**2 * c.embedded_channels * D
    layers = c.depth * (2 if c.block in ("axial", "twin") else 1)

    rows, columns = c.grid
    table = {
        "none": 0,
        "sincos": 0,
        "1d": T * D,
        "2d": (rows + columns) * (D // 2),
        "relative": (2 * T - 1) * D,
        "relative_bias": ((2 * rows - 1) * (2 * columns - 1) + 3) * c.heads,
    }
    parameters = E + D * c.embedding_bias + D * c.prefix + norm * (c.embedding_norm + c.pre_norm)
    parameters += table[c.positions] * (c.depth if c.positions_at == "every" else 1)
    scales = (1 if c.block == "parallel" else 2) * D * bool(c.layer_scale)
    parameters += layers * (attention + mlp + (1 if c.block == "parallel" else 2) * norm + scales)
    parameters += {"encoder": norm, "pooled": norms * c.pooled_width, "none": 0}[c.norm_at]
    parameters += c.depth * D if c.rotary is not None and c.rotary.kind == "learned" else 0
    # Axial blocks attend within rows, then within columns.
    pairs = N * (rows + columns) if c.block == "axial" else T * T
    macs = N * E + layers * (4 * T * D * D + (g + 1) * T * D * M)
    macs += (layers if c.block == "twin" else c.depth) * 2 * pairs * D
    activations = N * E // D + layers * T * (8 * D + kept_by_parts(c)) + T * D
    if c.positions == "relative":
        macs += layers * T * (2 * T - 1) * D  # q . r for every offset
        activations += layers * c.heads * T * T
    if c.pool.startswith("attention"):
        pooled, M = T if c.pool == "attention" else N, c.pool_mlp_dim or M
        parameters += D + 4 * (D * D + D) + 2 * D * M + D + M + norm
        macs += 2 * D * D + 2 * pooled * D * D + 2 * pooled * D + 2 * D * M
        activations += 2 * pooled * D
    W, R = c.pooled_width, c.pre_logits or c.pooled_width
    parameters += (W * c.pre_logits + c.pre_logits) + (R * c.classes + c.classes)
    macs += W * c.pre_logits + R * c.classes
    if isinstance(c, HybridConfig):
        stem = resnet_cost(c.stem, c.channels, c.image_size)
        parameters += stem.parameters
        macs += stem.macs
        activations += stem.activations
    return Cost(parameters, T, macs, activations)


def kept_by_parts(c: ViTConfig) -> int:
    """Return the values of a token that a layer's MLP keeps, and the parts that the config adds."""
    D, M = c.width, c.mlp_dim
    kept = 4 * M if c.mlp == "gated" else 2 * M  # gate, its activation, x, their product
    kept += 2 * D * bool(c.layer_scale) + 2 * D * c.qk_norm + D * c.attention_norm + M * c.mlp_norm
    kept += 2 * D * (c.norm == "rms")  # it keeps its output too
    return kept + (4 * D if c.rotary is not None else 0) - (D if c.block == "parallel" else 0)


def resnet_cost(c: BiTConfig | StemConfig, channels: int, image_size: tuple[int, int]) -> Cost:
    """Return the cost of a ResNet without a classifier: each convolution and norm keeps its input."""
    pre, width, size = isinstance(c, BiTConfig), int(64 * c.width_factor), halved(image_size)
    root = math.prod(size)
    # inputs, outputs, kernel, pixels before and after
    convs = [(channels, width, 7, math.prod(image_size), root)]
    norms = [] if pre else [(width, root)]  # channels, pixels
    # Before its max-pool the stem keeps the rectified map, and its padded copy.
    activations = 0 if pre else 2 * width * root
    inputs, size = width, halved(size)
    for s, count in enumerate(c.units):
        outputs = stage_width(c.width_factor, s)
        middle = outputs // 4
        for u in range(count):
            before = math.prod(size)
            size = halved(size) if s and not u else size
            after = math.prod(size)
            convs += [(inputs, middle, 1, before, before), (middle, middle, 3, before, after)]
            convs += [(middle, outputs, 1, after, after)] + [(inputs, outputs, 1, before, after)] * (not u)
            if pre:
                norms += [(inputs, before), (middle, before), (middle, after)]
            else:
                norms += [(middle, before), (middle, after), (outputs, after)] + [(outputs, after)] * (not u)
            inputs = outputs
    norms += [(inputs, math.prod(size))] if pre else []
    return Cost(
        parameters=sum(i * o * k * k for i, o, k, _, _ in convs) + sum(2 * n for n, _ in norms),
        tokens=0,
        macs=sum(i * o * k * k * after for i, o, k, _, after in convs),
        activations=activations + sum(i * n for i, _, _, n, _ in convs) + sum(i * n for i, n in norms),
    )


def halved(size: tuple[int, int]) -> tuple[int, int]:
    return -(-size[0] // 2), -(-size[1] // 2)
