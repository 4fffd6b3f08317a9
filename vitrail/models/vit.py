"""The Vision Transformer: Eqs. 1-4 of the paper.

    z_0  = [x_cls; x_p^1 E; ...; x_p^N E] + E_pos       Eq. 1   patches(), tokens()
    z'_l = MSA(LN(z_{l-1})) + z_{l-1}                   Eq. 2   encode()
    z_l  = MLP(LN(z'_l)) + z'_l                         Eq. 3   encode()
    y    = LN(z_L^0)                                    Eq. 4   LN ends encode(), pool() takes the token

What the head reads, y, is the class token (`token`), the mean of the patch tokens (`mean`), or a learned probe that
attends to all tokens, then an MLP (`attention`: big_vision's MAP head).

These methods are the interface: masking, probes, figures and export use only them. Images may have any size that the
patches divide; positions follow the grid. `keep` encodes only some of the patches; `mask` allows padded sequences.
B batch, C channels, H x W pixels, P patch, N = HW / P^2 patches, T = prefix + N tokens (prefix: 1 with a class token,
else 0), n patches kept, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models import checking, positions
from vitrail.models.choices import Activation, BlockKind, NormAt, Pool, Positions, PositionsAt
from vitrail.models.encoder import MLP, Encoder, Layout, Record
from vitrail.models.initialisation import initialise
from vitrail.models.positions import Grid

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", checking.image_size(self.image_size))
        if self.class_token is None:
            object.__setattr__(self, "class_token", self.pool == "token")
        if self.positions_at is None:
            object.__setattr__(self, "positions_at", "every" if self.positions == "relative" else "stem")
        checking.check_fields(vars(self))
        (H, W), D, stride = self.image_size, self.width, self.stride
        if misfit := next((side for side in (H, W) if side % stride), 0):
            near = [stride * n for n in (misfit // stride, misfit // stride + 1) if n]
            raise ConfigError(
                f"image_size {H}x{W} is not a multiple of {stride}, the pixels from one patch to the next; "
                f"for {misfit} take {' or '.join(map(str, near))}"
            )
        if D % self.heads:
            raise ConfigError(f"width {D} is not divisible into {self.heads} heads")
        if self.positions == "2d" and D % 2:
            raise ConfigError(f"positions='2d' need an even width, half of it for x and half for y, not {D}")
        if self.positions == "sincos" and (D % 4 or D < 8):
            raise ConfigError(f"positions='sincos' need a width of 8 or more that 4 divides, not {D}")
        if self.positions == "relative" and self.positions_at == "stem":
            raise ConfigError(
                "relative positions are part of attention: positions_at must be 'every' or 'shared'"
            )
        if self.pool == "token" and not self.class_token:
            raise ConfigError("pool='token' needs the class token; use pool='mean' or 'attention' without it")
        if self.block == "axial" and (self.class_token or self.positions == "relative"):
            raise ConfigError(
                "axial attention runs along rows and columns and supports neither a class token nor 1-D relative "
                "positions: use pool='mean' and other positions"
            )

    @property
    def stride(self) -> int:
        """Pixels of the input image from one token to the next."""
        return self.patch_size

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image_size[0] // self.stride, self.image_size[1] // self.stride

    @property
    def prefix(self) -> int:
        """Number of tokens before those of the patches."""
        return int(bool(self.class_token))

    @property
    def tokens(self) -> int:
        """T, the number of tokens in the encoder."""
        return self.prefix + self.grid[0] * self.grid[1]

    @property
    def embedded_channels(self) -> int:
        """Channels of the input of the patch embedding."""
        return self.channels


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


class ViT(Described):
    """images (B, C, H, W) -> logits (B, classes)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        c = config
        D = c.width

        self.embedding = PatchEmbedding(c.embedded_channels, D, c.patch_size)
        self.cls = nn.Parameter(torch.empty(1, 1, D)) if c.class_token else None
        at_stem = c.positions if c.positions_at == "stem" else "none"
        self.positions = positions.additive(at_stem, c.grid, D, c.prefix)
        self.dropout = nn.Dropout(c.dropout)
        self.encoder = Encoder(c)
        self.pooled_norm = nn.LayerNorm(D, eps=c.norm_eps) if c.norm_at == "pooled" else None
        self.attention_pool = (
            AttentionPool(D, c.heads, c.mlp_dim, c.norm_eps, c.activation) if c.pool == "attention" else None
        )
        self.head = Head(D, c.pre_logits, c.classes)
        initialise(self, head_bias=c.head_bias)

    def patches(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, N, D): x_p E."""
        return self.embedding(x)

    def tokens(self, z: Tensor, grid: Grid | None = None, keep: Tensor | None = None) -> Tensor:
        """(B, N, D) -> (B, T, D): prepend x_cls, add E_pos.  Eq. 1

        `grid`: rows and columns of the patches, by default the config's. `keep` (B, n): indices of patches to keep,
        in raster order -> (B, prefix + n, D).
        """
        grid = self.known_grid(grid, z)
        if self.cls is not None:
            z = torch.cat([self.cls.to(z.dtype).expand(z.shape[0], -1, -1), z], dim=1)  # (B, 1 + N, D)
        if self.positions is not None:
            z = z + self.positions(grid).to(z.dtype)  # (B, T, D)
        if keep is not None:
            z = positions.take(z, positions.token_places(keep, self.config.prefix))  # (B, prefix + n, D)
        return self.dropout(z)

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
        prefix = self.config.prefix
        if self.attention_pool is not None:
            y = self.attention_pool(z, mask)
        elif self.config.pool == "token":
            y = z[:, 0]  # (B, D)
        elif mask is None:
            y = z[:, prefix:].mean(dim=1)  # (B, D)
        else:
            w = mask[:, prefix:, None].to(z.dtype)  # (B, N, 1)
            y = (z[:, prefix:] * w).sum(dim=1) / w.sum(dim=1)  # (B, D)
        return y if self.pooled_norm is None else self.pooled_norm(y)

    def features(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D)."""
        grid, first = self.grid(x), 1 if self.config.pool == "token" else None
        return self.pool(self.encode(self.tokens(self.patches(x), grid), grid, first=first))

    def feature_map(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, rows, columns): the encoded patches."""
        grid = self.grid(x)
        z = self.encode(self.tokens(self.patches(x), grid), grid)  # (B, T, D)
        return z[:, self.config.prefix :].transpose(1, 2).unflatten(2, grid)  # (B, D, rows, columns)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, classes)."""
        return self.head(self.features(x))

    def grid(self, x: Tensor) -> Grid:
        """Return the rows and columns of patches of images (B, C, H, W); refuse other shapes."""
        c = self.config
        if x.ndim != 4 or x.shape[1] != c.channels or x.shape[2] % c.stride or x.shape[3] % c.stride:
            raise ConfigError(
                f"images must be (B, {c.channels}, H, W) with H and W multiples of {c.stride}, not {tuple(x.shape)}"
            )
        return self.known_grid((x.shape[2] // c.stride, x.shape[3] // c.stride))

    def known_grid(self, grid: Grid | None, z: Tensor | None = None) -> Grid:
        """Return the grid, by default the config's; refuse one that the positions or the patches z do not have."""
        c = self.config
        grid = c.grid if grid is None else grid
        if c.positions == "relative" and grid != c.grid:
            raise ConfigError(
                f"relative 1-D positions of a grid of {c.grid[0]}x{c.grid[1]} patches have no counterpart on "
                f"{grid[0]}x{grid[1]}: use images of {c.image_size[0]}x{c.image_size[1]}"
            )
        if z is not None and z.shape[1] != grid[0] * grid[1]:
            raise ConfigError(f"{z.shape[1]} patches are not a grid of {grid[0]}x{grid[1]}")
        return grid


class PatchEmbedding(nn.Conv2d):
    """x (B, C, H, W) -> x_p E + b (B, N, D), patches in row-major order.

    The weights are those of a convolution whose kernel and stride are the patch, (D, C, P, P), as every checkpoint
    has them; the arithmetic is one matrix product, which GPUs do faster. A test checks that the two agree.
    """

    def __init__(self, channels: int, width: int, patch_size: int) -> None:
        super().__init__(channels, width, kernel_size=patch_size, stride=patch_size)

    def forward(self, x: Tensor) -> Tensor:
        E = self.weight.permute(0, 2, 3, 1).flatten(1)  # (D, P*P*C)
        return F.linear(patchify(x, self.kernel_size[0]), E, self.bias)  # (B, N, D)


def patchify(x: Tensor, patch_size: int) -> Tensor:
    """x (B, C, H, W) -> x_p (B, N, P*P*C); within a patch: row, column, channel, as the published E has it."""
    B, C, H, W = x.shape
    P = patch_size
    x = x.reshape(B, C, H // P, P, W // P, P).permute(0, 2, 4, 3, 5, 1)  # (B, H/P, W/P, P, P, C)
    return x.reshape(B, (H // P) * (W // P), P * P * C)  # (B, N, P*P*C)


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
