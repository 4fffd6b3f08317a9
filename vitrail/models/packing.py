"""Sequences of several lengths without padding: their tokens one after the other, each attending to its own.

torch has a kernel for it on CUDA, in half precision (strips.py says where it is used).
B sequences of at most T tokens, S tokens in all, h heads of width d.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn


class Packed(NamedTuple):
    """The places of the S tokens of a packed sequence in rows (B, T)."""

    mask: Tensor  # bool (B, T): the places that are filled
    places: Tensor  # (S,): their numbers, row by row
    ends: Tensor  # int32 (B + 1,): where each sequence begins, then S
    longest: int

    def tokens(self, rows: Tensor) -> Tensor:
        """(B, T, D) -> (S, D)."""
        return Tokens.apply(rows.flatten(0, 1), self.places)  # type: ignore[no-untyped-call]

    def rows(self, tokens: Tensor) -> Tensor:
        """(S, D) -> (B, T, D), with zeros for padding."""
        B, T = self.mask.shape
        return (
            tokens.new_zeros(B * T, tokens.shape[1]).index_copy(0, self.places, tokens).unflatten(0, (B, T))
        )


class Tokens(torch.autograd.Function):
    """x[places], whose gradient is copied back: each place occurs once, and nothing has to be added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.length = len(x)
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return dy.new_zeros(ctx.length, dy.shape[1]).index_copy_(0, places, dy), None


def pack(mask: Tensor) -> Packed:
    """(B, T), True for tokens and False for padding."""
    lengths = mask.sum(dim=1)  # (B,)
    places = mask.flatten().nonzero()[:, 0]  # (S,)
    return Packed(mask, places, F.pad(lengths.cumsum(0), (1, 0)).int(), int(lengths.max()))


def packed_attention(q: Tensor, k: Tensor, v: Tensor, packed: Packed) -> Tensor:
    """(1, h, S, d) each -> (1, h, S, d): attention within each sequence."""
    q, k, v = (t[0].transpose(0, 1) for t in (q, k, v))  # (S, h, d)
    y = varlen_attn(q, k, v, packed.ends, packed.ends, packed.longest, packed.longest)  # (S, h, d)
    assert isinstance(y, Tensor)
    return y.transpose(0, 1)[None]
