"""The Vision Transformer: Eqs. 1-4 of the paper.

    z_0  = [x_cls; x_p^1 E; ...; x_p^N E] + E_pos       Eq. 1   patches(), tokens()
    z'_l = MSA(LN(z_{l-1})) + z_{l-1}                   Eq. 2   encode()
    z_l  = MLP(LN(z'_l)) + z'_l                         Eq. 3   encode()
    y    = LN(z_L^0)                                    Eq. 4   LN ends encode(), pool() takes the token

What the head reads, y, is the class token (`token`), the mean of the patch tokens (`mean`), or a learned probe that
attends to all tokens, then an MLP (`attention`: big_vision's MAP head). Later ViTs have more tokens, norms and kinds
of layers: everything of ViTConfig from `registers` on, off by default (docs/family.md).

These methods are the interface: masking, probes, figures and export use only them. Images may have any size that the
patches divide; positions follow the grid. `keep` encodes only some of the patches; `mask` allows padded sequences.
B batch, C channels, H x W pixels, P patch, N = HW / P^2 patches, T = prefix + N tokens (prefix: 1 with a class token,
and those of distillation and registers), n patches kept, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models import checking, positions
from vitrail.models.calibration import Calibration
from vitrail.models.choices import (
    Activation,
    BlockKind,
    MLPKind,
    Norm,
    NormAt,
    Pool,
    Positions,
    PositionsAt,
    QKVBias,
)
from vitrail.models.encoder import MLP, Encoder, Layout, Record, attention_weights
from vitrail.models.initialisation import initialise
from vitrail.models.norms import make_norm
from vitrail.models.positions import Grid
from vitrail.models.rotary import RotaryConfig, rotary_config
from vitrail.models.strips import strip_features

# name: (width D, depth L, mlp_dim, heads). Ti, S: DeiT and AugReg; B, L, H: the paper's Table 1; the others:
# big_vision. B-half is Figure 4's ViT-b, "all hidden dimensions halved": the 12 heads of B, of 32 each.
# (6 heads of 64 would be S.)
VARIANTS: dict[str, tuple[int, int, int, int]] = {
    "mu": (32, 1, 128, 2),
    "Ti": (192, 12, 768, 3),
    "S": (384, 12, 1536, 6),
    "B-half": (384, 12, 1536, 12),
    "M": (512, 12, 2048, 8),
    "B": (768, 12, 3072, 12),
    "L": (1024, 24, 4096, 16),
    "So400m": (1152, 27, 4304, 16),
    "H": (1280, 32, 5120, 16),
    "g": (1408, 40, 6144, 16),
    "g-opt": (1536, 40, 6144, 16),
    "G": (1664, 48, 8192, 16),
    "G-opt": (1536, 48, 8192, 16),
    "e": (1792, 56, 15360, 16),
}


@dataclass(frozen=True)
class ViTConfig:
    """Everything that the architecture depends on. The defaults are B/16 at 224, as published."""

    width: int = 768  # D
    depth: int = 12  # L, the number of layers
    mlp_dim: int = 3072  # hidden width of the MLP
    heads: int = 12  # h; each has width D / h
    patch_size: int = 16  # P
    image_size: tuple[int, int] = (224, 224)  # (H, W); an int means a square
    channels: int = 3  # C
    classes: int = 1000  # outputs of the classifier; 0: none, forward() gives the representation
    pool: Pool = "token"
    class_token: bool | None = None  # None: only when pool is "token"
    pre_logits: int = 0  # width of the tanh layer before the classifier (pre-training); 0: none
    positions: Positions = "1d"
    positions_at: PositionsAt | None = None  # None: stem; "every" for relative
    block: BlockKind = "standard"
    activation: Activation = "gelu_tanh"  # the published code's; "gelu" is the exact one of timm and others
    norm_eps: float = 1e-6
    norm_at: NormAt = "encoder"  # the last LayerNorm: before pooling (Eq. 4), or after
    dropout: float = 0.0  # after every dense layer but qkv, and after adding E_pos
    attention_dropout: float = 0.0  # on the attention weights
    drop_path: float = 0.0  # stochastic depth: rate of the last layer, rising linearly from 0
    head_bias: float = 0.0  # initial bias of the classifier (-10 for sigmoid loss on ImageNet-21k)
    # Parts of later ViTs.
    registers: int = 0  # learned tokens after the class token, without a place (arXiv:2309.16588)
    distillation_token: bool = False  # after the class token (DeiT, arXiv:2012.12877)
    patch_stride: int = 0  # pixels from one patch to the next; 0: the patch size
    embedding_bias: bool = True  # b of x_p E + b
    embedding_norm: bool = False  # a norm of x_p E + b, before positions are added (AIMv2, arXiv:2411.14402)
    pre_norm: bool = False  # a norm of z_0 (CLIP, arXiv:2103.00020)
    norm: Norm = "layer"  # the kind of all norms
    layer_scale: float = 0.0  # initial scale of each branch; 0: none
    mlp: MLPKind = "dense"  # gated: mlp_dim is the width behind the gate
    mlp_norm: bool = False  # a norm of the hidden layer (EVA-02, arXiv:2303.11331)
    attention_norm: bool = False  # a norm of the heads' outputs (EVA-02)
    qk_norm: bool = False  # norms of the queries and keys of each head
    qkv_bias: QKVBias = "all"  # qv: BEiT and EVA
    dense_bias: bool = True  # biases of `out` and of the MLP
    rotary: RotaryConfig | None = None  # a kind, by its name, or all settings; models/rotary.py
    pool_heads: int = 0  # heads of attention pooling; 0: as in the layers
    pool_mlp_dim: int = 0  # of attention pooling; 0: as in the layers

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", checking.image_size(self.image_size))
        object.__setattr__(self, "rotary", rotary_config(self.rotary))
        if self.class_token is None:
            object.__setattr__(self, "class_token", self.pool.startswith("token"))
        if self.positions_at is None:
            inside = self.positions in ("relative", "relative_bias")
            object.__setattr__(self, "positions_at", "every" if inside else "stem")
        checking.check_fields(vars(self))
        (H, W), D, stride = self.image_size, self.width, self.stride
        overlap = self.overlap
        if misfit := next((side for side in (H, W) if side <= overlap or (side - overlap) % stride), 0):
            n = (misfit - overlap) // stride
            near = [stride * m + overlap for m in (n, n + 1) if m > 0]
            of = f"{overlap} more than a multiple" if overlap else "a multiple"
            raise ConfigError(
                f"image_size {H}x{W} is not {of} of {stride}, the pixels from one patch to the next; "
                f"for {misfit} take {' or '.join(map(str, near))}"
            )
        if D % self.heads:
            raise ConfigError(f"width {D} is not divisible into {self.heads} heads")
        if self.positions == "2d" and D % 2:
            raise ConfigError(f"positions='2d' need an even width, half of it for x and half for y, not {D}")
        if self.positions == "sincos" and (D % 4 or D < 8):
            raise ConfigError(f"positions='sincos' need a width of 8 or more that 4 divides, not {D}")
        if self.positions in ("relative", "relative_bias") and self.positions_at == "stem":
            raise ConfigError(
                "relative positions are part of attention: positions_at must be 'every' or 'shared'"
            )
        if self.pool.startswith("token") and not self.class_token:
            raise ConfigError(
                f"pool={self.pool!r} needs the class token; use pool='mean' or 'attention' without it"
            )
        if self.distillation_token and not self.class_token:
            raise ConfigError("distillation_token needs the class token, which it comes after")
        if self.pool == "token_and_distillation" and not self.distillation_token:
            raise ConfigError("pool='token_and_distillation' needs distillation_token")
        if self.positions == "relative_bias" and (self.prefix != 1 or not self.class_token):
            raise ConfigError("positions='relative_bias' have one token before the patches: the class token")
        if self.rotary is not None and (D // self.heads) % 4:
            raise ConfigError(f"rotary positions need heads of a width that 4 divides, not {D // self.heads}")
        if D % (self.pool_heads or self.heads):
            raise ConfigError(f"width {D} is not divisible into pool_heads={self.pool_heads}")
        if self.block == "axial" and (self.prefix or self.positions.startswith("relative") or self.rotary):
            raise ConfigError(
                "axial attention runs along rows and columns and supports neither a class token or registers nor "
                "relative or rotary positions: use pool='mean' and other positions"
            )

    @property
    def stride(self) -> int:
        """Pixels of the input image from one token to the next."""
        return self.patch_stride or self.patch_size

    @property
    def overlap(self) -> int:
        """Pixels of the input image by which a patch is longer than the stride."""
        return self.patch_size - self.patch_stride if self.patch_stride else 0

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        rows, columns = ((side - self.overlap) // self.stride for side in self.image_size)
        return rows, columns

    @property
    def prefix(self) -> int:
        """Number of tokens before those of the patches."""
        return bool(self.class_token) + self.distillation_token + self.registers

    @property
    def tokens(self) -> int:
        """T, the number of tokens in the encoder."""
        return self.prefix + self.grid[0] * self.grid[1]

    @property
    def embedded_channels(self) -> int:
        """Channels of the input of the patch embedding."""
        return self.channels

    @property
    def pooled_width(self) -> int:
        """Width of y, which the head reads."""
        return self.width * (2 if self.pool.startswith("token_and") else 1)

    @property
    def has_plain_layers(self) -> bool:
        """True if the layers are those of Eqs. 2 and 3 with nothing added to them."""
        return self.block == "standard" and all(
            getattr(self, name) == getattr(ViTConfig, name) for name in LAYER_FIELDS
        )


# Fields of which another value than the default adds something to the layers.
LAYER_FIELDS = (
    "norm", "layer_scale", "mlp", "mlp_norm", "attention_norm", "qk_norm", "qkv_bias", "dense_bias", "rotary",
)  # fmt: skip


class Described(nn.Module):
    """A model with what is known about it besides its config; checkpoints keep it."""

    def __init__(self) -> None:
        super().__init__()
        self.preprocess = ""  # preprocessing line for this model's input
        self.class_names: list[str] | None = None
        self.provenance: dict[str, Any] = {}  # where the weights came from
        self.metrics: dict[str, Any] = {}  # scores of the weights
        self.license: dict[str, str] = {}  # of "weights" and "data"; missing: unknown
        self.fp8: dict[str, Any] = {}  # scales for precision fp8, and how they were checked
        self.calibration = Calibration()  # from logits to probabilities and answers


class ViT(Described):
    """images (B, C, H, W) -> logits (B, classes)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        c = config
        D = c.width

        self.embedding = PatchEmbedding(
            c.embedded_channels, D, c.patch_size, c.patch_stride, c.embedding_bias
        )
        self.embedding_norm = make_norm(c) if c.embedding_norm else None
        self.cls = nn.Parameter(torch.empty(1, 1, D)) if c.class_token else None
        self.distillation = nn.Parameter(torch.empty(1, 1, D)) if c.distillation_token else None
        self.registers = nn.Parameter(torch.empty(1, c.registers, D)) if c.registers else None
        at_stem = c.positions if c.positions_at == "stem" else "none"
        self.positions = positions.additive(at_stem, c.grid, D, c.prefix)
        self.dropout = nn.Dropout(c.dropout)
        self.pre_norm = make_norm(c) if c.pre_norm else None
        self.encoder = Encoder(c)
        self.pooled_norm = make_norm(c, c.pooled_width) if c.norm_at == "pooled" else None
        self.attention_pool = (
            AttentionPool(
                D, c.pool_heads or c.heads, c.pool_mlp_dim or c.mlp_dim, c.norm_eps, c.activation, c.norm
            )
            if c.pool.startswith("attention")
            else None
        )
        self.head = Head(c.pooled_width, c.pre_logits, c.classes)
        base = c.rotary.base if c.rotary is not None else 0.0
        initialise(self, head_bias=c.head_bias, layer_scale=c.layer_scale, rotary_base=base)

    def patches(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, N, D): x_p E."""
        z = self.embedding(x)
        return z if self.embedding_norm is None else self.embedding_norm(z)

    def tokens(self, z: Tensor, grid: Grid | None = None, keep: Tensor | None = None) -> Tensor:
        """(B, N, D) -> (B, T, D): prepend x_cls, add E_pos.  Eq. 1

        `grid`: rows and columns of the patches, by default the config's. `keep` (B, n): indices of patches to keep,
        in raster order -> (B, prefix + n, D).
        """
        grid = self.known_grid(grid, z)
        prefix = [t for t in (self.cls, self.distillation, self.registers) if t is not None]
        if prefix:
            z = torch.cat(
                [*(t.to(z.dtype).expand(z.shape[0], -1, -1) for t in prefix), z], dim=1
            )  # (B, T, D)
        if self.positions is not None:
            z = z + self.positions(grid).to(z.dtype)  # (B, T, D)
        if keep is not None:
            z = positions.take(z, positions.token_places(keep, self.config.prefix))  # (B, prefix + n, D)
        z = self.dropout(z)
        return z if self.pre_norm is None else self.pre_norm(z)

    def encode(
        self,
        z: Tensor,
        grid: Grid | None = None,
        keep: Tensor | None = None,
        mask: Tensor | None = None,
        record: Record | None = None,
        first: int | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D): the layers, then the LN of Eq. 4.  Eqs. 2, 3

        `grid` and `keep`, as for `tokens`, are for positions inside the layers. `mask`: (B, T), False for tokens that
        are not attended to (padding), or (B, T, T) by query and key (packed sequences; a query needs at least one
        key). `record`: a dict to fill. `first`: how many tokens are needed, from the left; the last layer may leave
        out the others.
        """
        if mask is not None:
            mask = mask[:, None] if mask.ndim == 3 else mask[:, None, None]  # (B, 1, 1 or T, T)
        if self.config.block == "axial" and (keep is not None or mask is not None):
            raise ConfigError(
                "axial attention runs along whole rows and columns: it supports neither keep nor mask"
            )
        at = None if keep is None else positions.token_places(keep, self.config.prefix)  # (B, prefix + n)
        return self.encoder(z, Layout(self.known_grid(grid), at, mask), record, first)

    def pool(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, D): y.  Eq. 4. `mask` (B, T): False for tokens to leave out."""
        pool, prefix = self.config.pool, self.config.prefix
        first = 0 if pool in ("attention", "mean_all") else prefix  # the first token that is pooled
        if self.attention_pool is not None:
            y = self.attention_pool(z[:, first:], None if mask is None else mask[:, first:])
        elif pool == "token":
            y = z[:, 0]  # (B, D)
        elif pool == "token_and_distillation":
            y = z[:, :2].flatten(1)  # (B, 2 D)
        else:
            y = mean_of_tokens(z[:, first:], None if mask is None else mask[:, first:])  # (B, D)
            y = torch.cat([z[:, 0], y], dim=1) if pool == "token_and_mean" else y  # (B, D or 2 D)
        return y if self.pooled_norm is None else self.pooled_norm(y)

    def pooling_weights(self, z: Tensor) -> Tensor:
        """(B, T, D) -> (B, T): the weights with which `pool` takes the encoded tokens, summing to 1."""
        pool = self.config.pool
        first = 0 if pool in ("attention", "mean_all") else self.config.prefix
        p = torch.zeros(z.shape[:2], device=z.device)  # (B, T)
        if self.attention_pool is not None:
            p[:, first:] = self.attention_pool.weights(z[:, first:])
        elif pool == "token":
            p[:, 0] = 1
        elif pool == "token_and_distillation":
            p[:, :2] = 1 / 2
        else:
            p[:, first:] = 1 / (z.shape[1] - first)
            if pool == "token_and_mean":
                p[:, 0], p[:, first:] = 1 / 2, p[:, first:] / 2
        return p

    def features(self, x: Tensor, grids: Tensor | None = None) -> Tensor:
        """(B, C, H, W) -> (B, D), or (B, 2 D) of two tokens. `grids` (B, 2): x are strips of images (strips.py)."""
        if grids is not None:
            return strip_features(self, x, grids)
        grid, first = self.grid(x), 1 if self.config.pool == "token" else None
        return self.pool(self.encode(self.tokens(self.patches(x), grid), grid, first=first))

    def feature_map(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, rows, columns): the encoded patches."""
        grid = self.grid(x)
        z = self.encode(self.tokens(self.patches(x), grid), grid)  # (B, T, D)
        return z[:, self.config.prefix :].transpose(1, 2).unflatten(2, grid)  # (B, D, rows, columns)

    def forward(self, x: Tensor, grids: Tensor | None = None) -> Tensor:
        """(B, C, H, W) -> (B, classes); `grids` as for `features`."""
        return self.head(self.features(x) if grids is None else self.features(x, grids))

    def grid(self, x: Tensor) -> Grid:
        """Return the rows and columns of patches of images (B, C, H, W); refuse other shapes."""
        c, o = self.config, self.config.overlap
        if x.ndim != 4 or x.shape[1] != c.channels or any((n - o) % c.stride or n <= o for n in x.shape[2:]):
            more = f" and {o} more" if o else ""
            raise ConfigError(
                f"images must be (B, {c.channels}, H, W) with H and W multiples of {c.stride}{more}, not "
                f"{tuple(x.shape)}"
            )
        return self.known_grid(((x.shape[2] - o) // c.stride, (x.shape[3] - o) // c.stride))

    def known_grid(self, grid: Grid | None, z: Tensor | None = None) -> Grid:
        """Return the grid, by default the config's; refuse one that the positions or the patches z do not have."""
        c = self.config
        grid = c.grid if grid is None else grid
        if c.positions in ("relative", "relative_bias") and grid != c.grid:
            raise ConfigError(
                f"relative positions of a grid of {c.grid[0]}x{c.grid[1]} patches have no counterpart on "
                f"{grid[0]}x{grid[1]}: use images of {c.image_size[0]}x{c.image_size[1]}"
            )
        if z is not None and z.shape[1] != grid[0] * grid[1]:
            raise ConfigError(f"{z.shape[1]} patches are not a grid of {grid[0]}x{grid[1]}")
        return grid


class PatchEmbedding(nn.Conv2d):
    """x (B, C, H, W) -> x_p E + b (B, N, D), patches in row-major order.

    The weights are those of a convolution whose kernel and stride are the patch, (D, C, P, P), as every checkpoint
    has them; the arithmetic is one matrix product, which GPUs do faster. A test checks that the two agree. Patches of
    another `stride` overlap or leave gaps, and are convolved.
    """

    def __init__(
        self, channels: int, width: int, patch_size: int, stride: int = 0, bias: bool = True
    ) -> None:
        super().__init__(channels, width, kernel_size=patch_size, stride=stride or patch_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride != self.kernel_size:
            return super().forward(x).flatten(2).transpose(1, 2)  # (B, N, D)
        E = self.weight.permute(0, 2, 3, 1).flatten(1)  # (D, P*P*C)
        return F.linear(patchify(x, self.kernel_size[0]), E, self.bias)  # (B, N, D)


def patchify(x: Tensor, patch_size: int) -> Tensor:
    """x (B, C, H, W) -> x_p (B, N, P*P*C); within a patch: row, column, channel, as the published E has it."""
    B, C, H, W = x.shape
    P = patch_size
    x = x.reshape(B, C, H // P, P, W // P, P).permute(0, 2, 4, 3, 5, 1)  # (B, H/P, W/P, P, P, C)
    return x.reshape(B, (H // P) * (W // P), P * P * C)  # (B, N, P*P*C)


def mean_of_tokens(z: Tensor, mask: Tensor | None) -> Tensor:
    """z (B, n, D) -> (B, D). `mask` (B, n): False for tokens to leave out."""
    if mask is None:
        return z.mean(dim=1)
    w = mask[..., None].to(z.dtype)  # (B, n, 1)
    return (z * w).sum(dim=1) / w.sum(dim=1)


class AttentionPool(nn.Module):
    """z (B, T, D) -> y (B, D): y' = MSA(probe, z); y = y' + MLP(LN(y'))."""

    def __init__(
        self,
        width: int,
        heads: int,
        mlp_dim: int,
        norm_eps: float,
        activation: Activation,
        norm: Norm = "layer",
    ) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, 1, width))
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.norm = (nn.RMSNorm if norm == "rms" else nn.LayerNorm)(width, eps=norm_eps)
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

    def weights(self, z: Tensor) -> Tensor:
        """Return how the probe attends to the tokens, heads averaged, (B, T)."""
        q = self.q(self.probe).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (1, h, 1, d)
        k = self.kv(z).unflatten(-1, (2, self.heads, -1))[:, :, 0].transpose(1, 2)  # (B, h, T, d)
        return attention_weights(q, k).mean(dim=1)[:, 0].float()  # (B, T)


class Head(nn.Module):
    """y (B, D) -> logits (B, classes). `pre_logits` 0: no hidden layer. `classes` 0: no classifier.

    In pre-training an MLP with one tanh hidden layer, in fine-tuning one zero-initialised linear layer (section 3.1).
    """

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
