"""The Transformer encoder: Eqs. 2 and 3, with the self-attention of appendix A (Eqs. 5-8).

    z'_l = MSA(LN(z_{l-1})) + z_{l-1}       Eq. 2
    z_l  = MLP(LN(z'_l)) + z'_l             Eq. 3

Attention runs fused (scaled_dot_product_attention). Given a `record` (a dict to fill), it is computed by the
written-out formula instead, so that the weights A exist; a test checks that the two agree. A record's keys:
`block3.attention` (B, h, T, T), `block3.z` (B, T, D); in axial blocks also `block3.row.attention` (over the columns
of each of B * rows rows) and `block3.column.attention` (over the rows of each column).

B batch, T tokens, D width, h heads, d = D / h, z (B, T, D) the tokens. `Layout` has what the layers need to know
about the tokens besides their values: grid, places, mask, relative and rotary positions.

What later ViTs added is off by default, and each in a small file: norms.py, mlp.py, rotary.py, biases.py, blocks.py.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.models.biases import make_qkv
from vitrail.models.choices import Activation
from vitrail.models.fused import dense_gelu, gelu_tanh, is_fusible, is_gelu_fusible, split_heads
from vitrail.models.mlp import ACTIVATIONS, GatedMLP
from vitrail.models.norms import LayerScale, make_norm, make_scale
from vitrail.models.packing import Packed, packed_attention
from vitrail.models.positions import Grid, additive, relative, take
from vitrail.models.rotary import Rotary

if TYPE_CHECKING:
    from vitrail.models.vit import ViTConfig

Record = MutableMapping[str, Tensor]


class Layout(NamedTuple):
    """The places of the tokens in the grid, and which of them may be attended to."""

    grid: Grid  # rows and columns of patches
    places: Tensor | None = None  # (B, T), if only some patches are kept; None: all, in order
    mask: Tensor | None = None  # bool (B, 1, 1 or T, T), by query and key; False: not attended to
    packed: Packed | None = None  # the tokens are those of several sequences, one after the other
    # Of this layer: q (B, h, T, d), places -> (B, h, T, T), added to attention.
    relative: nn.Module | None = None
    rotary: Callable[[Tensor], Tensor] | None = (
        None  # of this layer: turns q or k (B, h, T, d) by their places
    )
    first: int | None = None  # of this layer: how many tokens it returns, from the left; None: all


class Block(nn.Module):
    """One encoder layer: Eqs. 2 and 3, each branch with dropout and, in training, stochastic depth."""

    def __init__(self, c: ViTConfig, drop_path: float) -> None:
        super().__init__()
        self.norm1 = make_norm(c)
        self.attention = SelfAttention(c)
        self.norm2 = make_norm(c)
        self.mlp = make_mlp(c)
        self.scale1, self.scale2 = make_scale(c), make_scale(c)
        self.drop_path = drop_path

    def forward(
        self, z: Tensor, layout: Layout, record: Record | None = None, name: str = "", group: int = 1
    ) -> Tensor:
        """`group`: rows of z that are one example; several in an axial block."""
        y = self.attention(self.norm1(z), layout, record, name)
        z = z[:, : layout.first] + self.branch(y, group, self.scale1)  # Eq. 2
        z = z + self.branch(self.mlp(self.norm2(z)), group, self.scale2)  # Eq. 3
        if record is not None:
            record[f"{name}.z"] = z
        return z

    def branch(self, y: Tensor, group: int = 1, scale: LayerScale | None = None) -> Tensor:
        """Apply stochastic depth: drop a whole branch for an example, and scale the others to keep the mean."""
        y = y if scale is None else scale(y)
        if not self.training or self.drop_path == 0:
            return y
        keep = 1 - self.drop_path
        kept = torch.empty(y.shape[0] // group, 1, 1, device=y.device, dtype=y.dtype).bernoulli_(keep)
        return y * kept.repeat_interleave(group, dim=0) / keep


class SelfAttention(nn.Module):
    """MSA: h heads of softmax(q k^T / sqrt(d)) v, projected back to D."""

    def __init__(self, c: ViTConfig) -> None:
        super().__init__()
        self.qkv, self.has_bias = make_qkv(c), c.qkv_bias == "all"
        self.q_norm = make_norm(c, c.width // c.heads) if c.qk_norm else None
        self.k_norm = make_norm(c, c.width // c.heads) if c.qk_norm else None
        self.norm = make_norm(c) if c.attention_norm else None  # EVA-02's sub-LN
        self.out = nn.Linear(c.width, c.width, bias=c.dense_bias)
        self.dropout = nn.Dropout(c.dropout)
        self.heads, self.attention_dropout = c.heads, c.attention_dropout

    def forward(self, z: Tensor, layout: Layout, record: Record | None = None, name: str = "") -> Tensor:
        if layout.first is not None:
            q, k, v = self.few_queries(z, layout.first)
        elif is_fusible(z, self.qkv):
            q, k, v = split_heads(z, self.qkv.weight, self.qkv.bias, self.heads)
        else:
            qkv = self.qkv(z).unflatten(-1, (3, self.heads, -1))  # (B, T, 3, h, d)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, h, T, d) each         Eq. 5
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if layout.rotary is not None:
            q, k = layout.rotary(q), layout.rotary(k)
        bias = layout.mask  # (B, 1, 1 or T, T)
        if layout.relative is not None:
            logits = layout.relative(q, layout.places)  # (B, h, T, T)
            bias = logits if bias is None else logits.masked_fill(~bias, -torch.inf)  # (B, h, T, T)
        p = self.attention_dropout if self.training else 0.0
        if layout.packed is not None:
            y = packed_attention(q, k, v, layout.packed)  # (1, h, S, d)
        elif record is None:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=p)  # (B, h, T, d)
        else:
            A = attention_weights(q, k, bias)  # (B, h, T, T)                           Eq. 6
            record[f"{name}.attention"] = A
            y = F.dropout(A, p) @ v  # (B, h, T, d)                                     Eq. 7
        y = y.transpose(1, 2).flatten(2)  # (B, T, D)
        y = y if self.norm is None else self.norm(y)
        return self.dropout(self.out(y))  # (B, T, D)                                   Eq. 8

    def few_queries(self, z: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return q of the first tokens (B, h, first, d), k and v of all (B, h, T, d).  Eq. 5"""
        D = z.shape[-1]
        w_q, w_kv = self.qkv.weight.tensor_split([D])
        b_q, b_kv = self.qkv.bias.tensor_split([D]) if self.has_bias else (None, None)
        q = F.linear(z[:, :first], w_q, b_q).unflatten(-1, (self.heads, -1))  # (B, first, h, d)
        kv = F.linear(z, w_kv, b_kv).unflatten(-1, (2, self.heads, -1))  # (B, T, 2, h, d)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, h, T, d) each
        return q.transpose(1, 2), k, v


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """A = softmax(q k^T / sqrt(d) + bias), rows summing to 1; a bool bias is a mask of the keys that count.  Eq. 6"""
    logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5  # (B, h, T, T)
    if bias is not None:
        logits = logits.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else logits + bias
    return logits.softmax(dim=-1)


class MLP(nn.Module):
    """Two dense layers with a GELU between: the published code's is the tanh approximation."""

    def __init__(
        self,
        width: int,
        mlp_dim: int,
        activation: Activation,
        dropout: float,
        bias: bool = True,
        norm: nn.Module | None = None,
    ) -> None:
        """`norm`: of the hidden layer, before fc2."""
        super().__init__()
        self.fc1 = nn.Linear(width, mlp_dim, bias=bias)
        self.norm = norm
        self.fc2 = nn.Linear(mlp_dim, width, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.activation = ACTIVATIONS[activation]

    def forward(self, z: Tensor) -> Tensor:
        if self.activation is gelu_tanh and is_gelu_fusible(z, self.fc1):
            y = dense_gelu(z, self.fc1.weight, self.fc1.bias)
        else:
            y = self.activation(self.fc1(z))  # (B, T, mlp_dim)
        y = self.dropout(y)
        y = y if self.norm is None else self.norm(y)
        return self.dropout(self.fc2(y))  # (B, T, D)


def make_mlp(c: ViTConfig) -> MLP | GatedMLP:
    if c.mlp == "gated":
        return GatedMLP(c)
    norm = make_norm(c, c.mlp_dim) if c.mlp_norm else None
    return MLP(c.width, c.mlp_dim, c.activation, c.dropout, c.dense_bias, norm)


class AxialBlock(nn.Module):
    """Axial-ViT (appendix D.6): attention along rows + MLP, then attention along columns + MLP."""

    def __init__(self, row: Block, column: Block) -> None:
        super().__init__()
        self.row, self.column = row, column

    def forward(self, z: Tensor, layout: Layout, record: Record | None = None, name: str = "") -> Tensor:
        assert layout.relative is None and layout.places is None and layout.mask is None
        B, (rows, columns) = z.shape[0], layout.grid
        z = z.unflatten(1, layout.grid).flatten(0, 1)  # (B*rows, columns, D)
        z = self.row(z, layout, record, f"{name}.row", group=rows)
        z = z.unflatten(0, (B, rows)).transpose(1, 2).flatten(0, 1)  # (B*columns, rows, D)
        z = self.column(z, layout, record, f"{name}.column", group=columns)
        z = z.unflatten(0, (B, columns)).transpose(1, 2).flatten(1, 2)  # (B, N, D)
        if record is not None:
            record[f"{name}.z"] = z
        return z


def make_block(c: ViTConfig, drop_path: float) -> nn.Module:
    """Return a layer of the config's kind; those that are not of the paper are in blocks.py."""
    if c.block == "standard":
        return Block(c, drop_path)
    if c.block == "axial":
        return AxialBlock(Block(c, drop_path), Block(c, drop_path))
    from vitrail.models.blocks import OTHER_BLOCKS  # which are made of these layers

    return OTHER_BLOCKS[c.block](c, drop_path)


class Encoder(nn.Module):
    """The layers in order, then the last LayerNorm (or none, where it comes after the pooling).

    `positions`: modules for the inputs of the layers: none (they are added at the stem), one shared by all, or one
    for each. Relative ones are handed to attention, others add to z.
    """

    def __init__(self, c: ViTConfig) -> None:
        super().__init__()
        blocks = [make_block(c, c.drop_path * i / max(1, c.depth - 1)) for i in range(c.depth)]
        self.relative = c.positions in ("relative", "relative_bias")
        positions: list[nn.Module] = []
        for _ in range({"stem": 0, "shared": 1, "every": c.depth}[c.positions_at or "stem"]):
            if self.relative:
                positions.append(relative(c.positions, c.grid, c.width, c.heads, c.prefix))
            elif (added := additive(c.positions, c.grid, c.width, c.prefix)) is not None:
                positions.append(added)
        self.blocks = nn.ModuleList(blocks)
        self.positions = nn.ModuleList(positions)
        self.rotary = Rotary(c) if c.rotary is not None else None
        self.may_shorten = not self.relative and c.rotary is None and c.qkv_bias != "qv"
        self.norm = make_norm(c) if c.norm_at == "encoder" else nn.Identity()
        self.activation_checkpointing = False  # keep only the inputs of layers, and compute the rest again

    def forward(
        self, z: Tensor, layout: Layout, record: Record | None = None, first: int | None = None
    ) -> Tensor:
        """Return all tokens, or at least the `first`: the last layer needs the others only as keys and values."""
        if record is not None or layout.mask is not None or not self.may_shorten:
            first = None  # not worth the code
        turns = None if self.rotary is None else self.rotary(layout.grid, layout.places, z.device)
        for i, block in enumerate(self.blocks):
            at_layer = self.positions[i % len(self.positions)] if len(self.positions) else None
            if self.relative:
                layout = layout._replace(relative=at_layer)
            elif at_layer is not None:
                E_pos = at_layer(layout.grid).to(z.dtype)  # (1, prefix + N, D)
                z = z + (E_pos if layout.places is None else take(E_pos, layout.places))
            if self.rotary is not None and turns is not None:
                turn = turns[:, i % turns.shape[1]]  # (2, B or 1, h or 1, T, d)
                layout = layout._replace(rotary=partial(self.rotary.rotate, turn=turn))
            if type(block) is Block and i == len(self.blocks) - 1:
                layout = layout._replace(first=first)
            if self.activation_checkpointing and self.training and record is None:
                z = checkpoint(block, z, layout, use_reentrant=False)
            else:
                z = block(z, layout, record, f"block{i}")
        return self.norm(z)
