"""The choices of an architecture, by name. Without torch, so that `vitrail --help` answers at once."""

from __future__ import annotations

from typing import Literal

# What the head reads: the class token, the mean of the patches or of all tokens, a probe that attends to all tokens
# or to the patches; or, side by side, the class token and the distillation token, or the mean of the patches.
Pool = Literal[
    "token", "mean", "attention", "mean_all", "attention_patches", "token_and_distillation", "token_and_mean"
]
# Position embeddings (Table 8); relative_bias: BEiT's
Positions = Literal["none", "1d", "2d", "relative", "sincos", "relative_bias"]
PositionsAt = Literal["stem", "every", "shared"]  # once, at every layer with its own tables, or one for all
# Attention over all tokens, or by rows and columns (D.6); norms after each branch; both branches at once; in pairs
BlockKind = Literal["standard", "axial", "post_norm", "parallel", "twin"]
# The published code's tanh form of GELU, the exact one, CLIP's x sigmoid(1.702 x), and x sigmoid(x)
Activation = Literal["gelu_tanh", "gelu", "quick_gelu", "silu"]
NormAt = Literal["encoder", "pooled", "none"]  # the last norm: before pooling (Eq. 4), after, or left out
Norm = Literal["layer", "rms"]  # LayerNorm, or RMSNorm, which has no mean and no bias
MLPKind = Literal["dense", "gated"]  # two dense layers, or the first one doubled: half of it gates the other
QKVBias = Literal["all", "qv", "none"]  # which of q, k and v have biases
Rotary = Literal[
    "grid", "unit", "learned"
]  # rotary positions: by patches, in [-1, 1], or learned frequencies
Pairs = Literal["adjacent", "halves"]  # numbers that rotary positions turn together: 0, 1 or 0, d/2
Standardisation = Literal["sqrt_var", "std"]  # of a ResNet's filters: over sqrt(var + eps), or over std + eps
