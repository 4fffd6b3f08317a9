"""Sequences of several lengths without padding: their tokens one after the other, each attending to its own.

torch has a kernel for it on CUDA, in half precision (strips.py says where it is used).
B sequences of at most T tokens, S tokens in all, h heads of width d.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn


class Packed(NamedTuple):
    """The places of the S tokens of a packed sequence in rows (B, T)."""

    mask: Tensor  # bool (B, T): the places that are filled
    ends: Tensor  # int32 (B + 1,): where each sequence begins, then S
    longest: int

    def rows(self, tokens: Tensor) -> Tensor:
        """(S, ...) -> (B, T, ...), with zeros for padding."""
        rows = tokens.new_zeros(*self.mask.shape, *tokens.shape[1:])
        return rows.masked_scatter(self.mask.view(*self.mask.shape, *[1] * (tokens.ndim - 1)), tokens)


def pack(mask: Tensor) -> Packed:
    """(B, T), True for tokens and False for padding."""
    lengths = mask.sum(dim=1)  # (B,)
    return Packed(mask, F.pad(lengths.cumsum(0), (1, 0)).int(), int(lengths.max()))


def packed_attention(q: Tensor, k: Tensor, v: Tensor, packed: Packed) -> Tensor:
    """(1, h, S, d) each -> (1, h, S, d): attention within each sequence."""
    q, k, v = (t[0].transpose(0, 1) for t in (q, k, v))  # (S, h, d)
    y = varlen_attn(q, k, v, packed.ends, packed.ends, packed.longest, packed.longest)  # (S, h, d)
    assert isinstance(y, Tensor)
    return y.transpose(0, 1)[None]
