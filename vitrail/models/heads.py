"""Pooling and the classifier: encoded, normalised tokens -> logits (Eq. 4 and section 3.1).

    token       y = z_L^0, the class token
    mean        y = the mean of the patch tokens
    attention   y = a learned probe attending to all tokens, then an MLP (big_vision's MAP head)

`Head`: in pre-training an MLP with one tanh hidden layer (`pre_logits`), in fine-tuning one zero-initialised
linear layer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.choices import Activation
from vitrail.models.encoder import MLP


class AttentionPool(nn.Module):
    """z (B, T, D) -> y (B, D): y' = MSA(probe, z); y = y' + MLP(LN(y'))."""

    def __init__(self, width: int, heads: int, mlp_dim: int, norm_eps: float, activation: Activation) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, 1, width))
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.mlp = MLP(width, mlp_dim, activation, dropout=0.0)
        self.heads = heads

    def forward(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mask` (B, T): False for tokens that do not count."""
        mask = None if mask is None else mask[:, None, None]  # (B, 1, 1, T)
        q = self.q(self.probe).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (1, h, 1, d)
        q = q.expand(z.shape[0], -1, -1, -1)  # (B, h, 1, d)
        k, v = self.kv(z).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)  # (B, h, T, d)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)  # (B, 1, D)
        y = self.out(y)[:, 0]  # (B, D)
        return y + self.mlp(self.norm(y))


class Head(nn.Module):
    """y (B, D) -> logits (B, classes). `pre_logits` 0: no hidden layer. `classes` 0: no classifier."""

    def __init__(self, width: int, pre_logits: int, classes: int) -> None:
        super().__init__()
        self.pre_logits = nn.Linear(width, pre_logits) if pre_logits else None
        self.classifier = nn.Linear(pre_logits or width, classes) if classes else None

    def forward(self, y: Tensor) -> Tensor:
        y = self.representation(y)
        return y if self.classifier is None else self.classifier(y)  # (B, classes)

    def representation(self, y: Tensor) -> Tensor:
        """Return the input of the classifier: tanh of the hidden layer, if there is one, else y."""
        return y if self.pre_logits is None else self.pre_logits(y).tanh()  # (B, pre_logits or D)
