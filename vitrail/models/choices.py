"""The choices of an architecture, by name. Without torch, so that `vitrail --help` answers at once."""

from __future__ import annotations

from typing import Literal

Pool = Literal["token", "mean", "attention"]  # what the head reads
Positions = Literal["none", "1d", "2d", "relative", "sincos"]  # position embeddings (Table 8)
PositionsAt = Literal["stem", "every", "shared"]  # once, at every layer with its own tables, or one for all
BlockKind = Literal["standard", "axial"]  # attention over all tokens, or by rows and columns (D.6)
Activation = Literal["gelu_tanh", "gelu"]  # the published code's tanh form, or the exact one
NormAt = Literal["encoder", "pooled"]  # the last LayerNorm: before pooling (Eq. 4), or after
Standardisation = Literal["sqrt_var", "std"]  # of a ResNet's filters: over sqrt(var + eps), or over std + eps
