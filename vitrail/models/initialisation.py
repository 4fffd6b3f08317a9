"""Initialisation of every parameter of a fresh model: one table, as in the published code.

Each parameter matches exactly one row (asserted). `lecun_normal` is Flax's: a normal of variance 1 / fan_in,
truncated at two standard deviations. q, k and v are each Xavier-uniform on (D, D): a Xavier bound taken from
the fused (3D, D) matrix would be too small by sqrt(2).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.init import constant_, normal_, ones_, xavier_uniform_, zeros_

# The standard deviation of a unit normal truncated at +-2.
TRUNCATED_STD = 0.87962566103423978


def lecun_normal(w: Tensor) -> None:
    """Weights (out, in, ...): the fan-in is everything but the first dimension."""
    s = (w[0].numel() ** -0.5) / TRUNCATED_STD
    # By the inverse of the normal distribution; torch's own draws again and again, and takes 20 times as long.
    inside = math.erf(2 / math.sqrt(2))
    w.uniform_(-inside, inside).erfinv_().mul_(s * math.sqrt(2)).clamp_(-2 * s, 2 * s)


def xavier_each(count: int) -> Callable[[Tensor], object]:
    """Return Xavier-uniform for each of `count` matrices that are stored as one."""
    return lambda w: [xavier_uniform_(part) for part in w.chunk(count)]


def rotated_frequencies(f: Tensor, base: float = 10.0) -> None:
    """f (2, L, h, d/2): base^(-4 i / d), along two axes that are at right angles and turned at random by layer and
    head (Heo et al. 2024, arXiv:2403.13298, section 3.2)."""
    _, layers, heads, half = f.shape
    size = base ** (-torch.arange(half // 2) / (half // 2))  # (d/4)
    turn = 2 * math.pi * torch.rand(layers, heads, 1)
    turns = torch.cat([turn.expand(-1, -1, half // 2), (turn + math.pi / 2).expand(-1, -1, half // 2)], dim=2)
    f.copy_(torch.stack([turns.cos(), turns.sin()]) * torch.cat([size, size]))


# regular expression for the whole name of a parameter: its initialisation
INITIALISATION: dict[str, Callable[[Tensor], object]] = {
    # Eq. 1
    r"embedding\.weight": lecun_normal,
    r"embedding\.bias": zeros_,
    r"cls": zeros_,
    r"(encoder\.)?positions\.(\d+\.)?(table|x|y)": partial(normal_, std=0.02),
    r"distillation|registers": partial(normal_, std=0.02),  # as DeiT and DINOv2 have them
    r"(embedding_norm|pre_norm)\.weight": ones_,
    r"(embedding_norm|pre_norm)\.bias": zeros_,
    # Eqs. 2, 3
    r"encoder\..*norm\d?\.weight": ones_,
    r"encoder\..*norm\d?\.bias": zeros_,
    r"encoder\..*\.qkv\.weight": xavier_each(3),
    r"encoder\..*\.out\.weight": xavier_uniform_,
    r"encoder\..*\.(qkv|out)\.(qv_)?bias": zeros_,
    r"encoder\..*\.scale[12]\.gamma": ones_,  # times the config's layer_scale
    r"encoder\..*\.mlp\.gated\.weight": xavier_each(2),
    r"encoder\..*\.mlp\.gated\.bias": partial(normal_, std=1e-6),
    r"encoder\.rotary\.frequencies": rotated_frequencies,  # of the config's base
    r"(encoder\..*|attention_pool)\.mlp\.fc[12]\.weight": xavier_uniform_,
    r"(encoder\..*|attention_pool)\.mlp\.fc[12]\.bias": partial(normal_, std=1e-6),
    # Eq. 4
    r"pooled_norm\.weight": ones_,
    r"pooled_norm\.bias": zeros_,
    r"attention_pool\.probe": lambda w: xavier_uniform_(w[0]),  # Flax on (1, 1, D): fans of 1 and D
    r"attention_pool\.(q|out)\.weight": xavier_uniform_,
    r"attention_pool\.kv\.weight": xavier_each(2),
    r"attention_pool\.(q|kv|out|norm)\.bias": zeros_,
    r"attention_pool\.norm\.weight": ones_,
    r"head\.pre_logits\.weight": lecun_normal,
    r"head\.pre_logits\.bias": zeros_,
    r"head\.classifier\.weight": zeros_,
    r"head\.classifier\.bias": zeros_,  # or the config's head_bias
    # ResNets and hybrid stems
    r"(stem\.)?(root|stages\..*)\.(conv\d?|projection)\.weight": lecun_normal,
    r"(stem\.)?(root|stages\..*)\.(norm[12]?|projection_norm)\.weight": ones_,
    r"stem\.stages\..*\.norm3\.weight": zeros_,  # each residual branch of the stem starts at zero
    r"stages\..*\.norm3\.weight": ones_,
    r"(stem\.)?(root|stages\..*)\.(norm\d?|projection_norm)\.bias": zeros_,
    r"norm\.weight": ones_,
    r"norm\.bias": zeros_,
}


@torch.no_grad()
def initialise(
    model: nn.Module,
    *,
    prefix: str = "",
    head_bias: float = 0.0,
    layer_scale: float = 0.0,
    rotary_base: float = 0.0,
) -> None:
    """Set every parameter of `model` by the table, in which its names begin with `prefix`."""
    for name, parameter in model.named_parameters(prefix=prefix.rstrip(".")):
        rows = [row for pattern, row in INITIALISATION.items() if re.fullmatch(pattern, name)]
        assert len(rows) == 1, f"{name}: {len(rows)} rows of the initialisation table"
        if parameter.is_meta:
            continue
        rows[0](parameter)
        if name == "head.classifier.bias":
            constant_(parameter, head_bias)
        elif name.endswith(".gamma"):
            constant_(parameter, layer_scale)
        elif name.endswith(".frequencies"):
            rotated_frequencies(parameter, rotary_base)
