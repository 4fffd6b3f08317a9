"""The Vision Transformer: Eqs. 1-4 of the paper.

    z_0  = [x_cls; x_p^1 E; ...; x_p^N E] + E_pos       Eq. 1   patches(), tokens()
    z'_l = MSA(LN(z_{l-1})) + z_{l-1}                   Eq. 2   encode()
    z_l  = MLP(LN(z'_l)) + z'_l                         Eq. 3   encode()
    y    = LN(z_L^0)                                    Eq. 4   LN ends encode(), pool() takes the token

The methods are the seams: masking, probes, figures and export use them and never reach deeper. Images may have any
size that the patches divide; positions follow the grid. One may keep some of the patches (`keep`) and pad sequences
(`mask`).
B batch, C channels, H x W pixels, P patch, N = HW / P^2 patches, T = prefix + N tokens (prefix: 1 with a class token,
else 0), n patches kept, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models import checking, positions
from vitrail.models.choices import Activation, BlockKind, Pool, Positions, PositionsAt
from vitrail.models.encoder import AxialBlock, Block, Encoder, Layout, Record
from vitrail.models.heads import AttentionPool, Head
from vitrail.models.initialisation import initialise
from vitrail.models.patches import PatchEmbedding
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
    norm_at: Literal["encoder", "pooled"] = "encoder"  # the last LayerNorm: before pooling (Eq. 4), or after
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
        check(self)

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


def check(config: ViTConfig) -> None:
    """Reject values and combinations of fields that no model can have."""
    choices = {
        "pool": get_args(Pool),
        "positions": get_args(Positions),
        "positions_at": get_args(PositionsAt),
        "block": get_args(BlockKind),
        "activation": get_args(Activation),
        "norm_at": ("encoder", "pooled"),
    }
    for field, allowed in choices.items():
        value = getattr(config, field)
        if value not in allowed:
            raise ConfigError(f"{field}={value!r} is not one of {', '.join(allowed)}")
    checking.whole(config, 1, "width", "depth", "mlp_dim", "heads", "patch_size", "channels")
    checking.whole(config, 0, "classes", "pre_logits")
    checking.number(config, 0, 1, "dropout", "attention_dropout", "drop_path", "norm_eps")
    checking.number(config, -1000, 1000, "head_bias")
    (H, W), stride = config.image_size, config.stride
    if misfit := next((side for side in (H, W) if side % stride), 0):
        near = [stride * n for n in (misfit // stride, misfit // stride + 1) if n]
        raise ConfigError(
            f"image_size {H}x{W} is not a multiple of {stride}, the pixels from one patch to the next; "
            f"for {misfit} take {' or '.join(map(str, near))}"
        )
    if config.width % config.heads:
        raise ConfigError(f"width {config.width} is not divisible into {config.heads} heads")
    if config.positions == "2d" and config.width % 2:
        raise ConfigError(
            f"positions='2d' need an even width, half of it for x and half for y, not {config.width}"
        )
    if config.positions == "sincos" and (config.width % 4 or config.width < 8):
        raise ConfigError(f"positions='sincos' need a width of 8 or more that 4 divides, not {config.width}")
    if config.pool == "token" and not config.class_token:
        raise ConfigError("pool='token' needs the class token; use pool='mean' or 'attention' without it")
    if config.positions == "relative" and config.positions_at == "stem":
        raise ConfigError("relative positions live inside attention: positions_at is 'every' or 'shared'")
    if config.block == "axial" and (config.class_token or config.positions == "relative"):
        raise ConfigError(
            "axial attention runs along rows and columns, where neither a class token nor 1-D relative "
            "positions have a place: use pool='mean' and other positions"
        )


class ViT(nn.Module):
    """images (B, C, H, W) -> logits (B, classes)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.preprocess = ""  # preprocessing line for this model's input
        self.class_names: list[str] | None = None
        self.provenance: dict[str, Any] = {}  # where the weights came from
        self.metrics: dict[str, Any] = {}  # scores of the weights
        self.license: dict[str, str] = {}  # of "weights" and "data"; missing: unknown
        c = config
        D = c.width

        self.embedding = PatchEmbedding(c.embedded_channels, D, c.patch_size)
        self.cls = nn.Parameter(torch.empty(1, 1, D)) if c.class_token else None
        at_stem = c.positions if c.positions_at == "stem" else "none"
        self.positions = positions.additive(at_stem, c.grid, D, c.prefix)
        self.dropout = nn.Dropout(c.dropout)
        self.encoder = encoder(c)
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
            z = torch.cat([self.cls.expand(z.shape[0], -1, -1), z], dim=1)  # (B, 1 + N, D)
        if self.positions is not None:
            z = z + self.positions(grid)  # (B, T, D)
        if keep is not None:
            z = positions.take(z, positions.places(keep, self.config.prefix))  # (B, prefix + n, D)
        return self.dropout(z)

    def encode(
        self,
        z: Tensor,
        grid: Grid | None = None,
        keep: Tensor | None = None,
        mask: Tensor | None = None,
        record: Record | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D): the layers, then the LN of Eq. 4.  Eqs. 2, 3

        `grid` and `keep`, as for `tokens`, are for positions inside the layers. `mask`: (B, T), False for tokens that
        are not attended to (padding), or (B, T, T) by query and key (packed sequences; a query needs at least one
        key). `record`: a dict to fill.
        """
        if mask is not None:
            mask = mask[:, None] if mask.ndim == 3 else mask[:, None, None]  # (B, 1, 1 or T, T)
        if self.config.block == "axial" and (keep is not None or mask is not None):
            raise ConfigError("axial attention runs along whole rows and columns: no keep, no mask")
        at = None if keep is None else positions.places(keep, self.config.prefix)  # (B, prefix + n)
        return self.encoder(z, Layout(self.known_grid(grid), at, mask), record)

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
        grid = self.grid(x)
        return self.pool(self.encode(self.tokens(self.patches(x), grid), grid))

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


def encoder(c: ViTConfig) -> Encoder:
    """Return the layers of a config, with their positions."""

    def block(i: int) -> Block:
        return Block(
            c.width,
            c.heads,
            c.mlp_dim,
            norm_eps=c.norm_eps,
            activation=c.activation,
            dropout=c.dropout,
            attention_dropout=c.attention_dropout,
            drop_path=c.drop_path * i / max(1, c.depth - 1),
        )

    blocks: list[nn.Module] = [
        block(i) if c.block == "standard" else AxialBlock(block(i), block(i)) for i in range(c.depth)
    ]
    relative = c.positions == "relative"
    at_layers: list[nn.Module] = []
    if c.positions_at != "stem":
        for _ in range(c.depth if c.positions_at == "every" else 1):
            if relative:
                at_layers.append(positions.Relative1D(c.tokens, c.width, c.heads))
            elif (added := positions.additive(c.positions, c.grid, c.width, c.prefix)) is not None:
                at_layers.append(added)
    norm = nn.LayerNorm(c.width, eps=c.norm_eps) if c.norm_at == "encoder" else nn.Identity()
    return Encoder(blocks, norm, at_layers, relative)
