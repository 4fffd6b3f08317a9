"""Attention: its mean distance (Fig. 7 right, Fig. 11), maps by layer and head, rollout (Fig. 6).

A (B, h, T, T) are the attention weights of a layer, a row for each query, rows summing to 1.

**Distance** (appendix D.7): the distance between a query patch and the patches that it attends to, weighted by the
attention, d_q = sum_k A_qk |c_q - c_k|; then the mean over queries and images, for each head and layer. Only patches
count, the class token neither as query nor as key, so rows are divided by their remaining sum. c are the centres
of patches in pixels of the input image; for a hybrid, of the squares that its tokens stand for.
Example: with 14 x 14 patches of 16 pixels, a head with uniform attention has the mean distance of all pairs,
16 / 196^2 sum_q,k sqrt((i_q - i_k)^2 + (j_q - j_k)^2) = 116.49 pixels; one where each patch attends only to itself
has 0; one where all attend to the top left patch 161.03; none exceeds the diagonal, 13 sqrt(2) 16 = 294.16.

**Attention of the output.** Pooling averages the tokens with weights p (T,), summing to 1: the class token alone
(`token`), all patches equally (`mean`), or as the probe attends to them, heads averaged (`attention`). The map of a
head is p A, over the patches: for a class token its row of A, for mean pooling the mean row.

**Rollout** (appendix D.8; Abnar and Zuidema): heads averaged, the residual connection as an identity, rows
renormalised, (mean_h A + I) / 2; multiplied through the layers, R_l = (mean_h A_l + I) / 2 R_(l-1). The map is p R.

**Attention of layers.** The names of a record are the encoder's: `block3.attention` (B, h, T, T) with rows of queries
and columns of keys, `block3.z` (B, T, D). An axial block attends twice, `block3.row` and `block3.column`, each within
a row or a column of patches: `full_attention` writes such weights into the (N, N) of all patches, zeros elsewhere, so
that all figures exist for them too. Distances, maps and rollout reduce A while the layer runs; A itself is not kept.
B batch, T tokens (N patches, the class token before them), h heads, L layers, D width.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import ConfigError, DataError
from vitrail.inference.engine import Call, image_outputs
from vitrail.inference.images import Images
from vitrail.models.names import Model
from vitrail.models.vit import ViT, ViTConfig

# Memory of one layer's attention and its computation, from which the number of images at once follows.
MAX_BYTES = 1 << 28
NOT_FOR_RESNETS = (
    "a BiT ResNet has neither attention nor position embeddings: only the filters and the occlusion map exist"
)


def mean_attention_distance(model: Model, images: Images) -> np.ndarray:
    """Return the mean over images, (L, h) in pixels; needs the memory of one layer of a few images only."""
    return attention_distances(model, images).mean(axis=0)  # (L, h)


def attention_distances(model: Model, images: Images, task: str = "") -> np.ndarray:
    """Return the distance in pixels for each image, (n, L, h). `task` names a progress bar."""
    vit = with_attention(model)
    grid, stride = vit.config.grid, vit.config.stride
    return in_parts(
        vit, images, lambda z: reduce_layers(vit, z, lambda A: distance(A, grid, stride)), task
    )  # (n, L, h)


def distance(A: Tensor, grid: tuple[int, int], stride: int) -> Tensor:
    """Return (B, h) of A (B, h, T, T), as defined above; only the last rows * columns tokens are patches."""
    N = grid[0] * grid[1]
    A = A[..., -N:, -N:]  # (B, h, N, N)
    i, j = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in grid), indexing="ij")
    c = torch.stack([i.flatten(), j.flatten()], dim=1) * stride  # (N, 2)
    between = torch.cdist(c, c, compute_mode="donot_use_mm_for_euclid_dist").float()  # (N, N): |c_q - c_k|
    seen = A.sum(dim=-1).clamp(min=1e-12)  # (B, h, N)
    return ((A * between.to(A)).sum(dim=-1) / seen).mean(dim=-1)  # (B, h)


def attention_maps(model: Model, images: Images) -> np.ndarray:
    """Return the attention of the output by layer and head: p A over the patches, (n, L, h, rows, columns)."""
    vit = with_attention(model)
    return over_patches(
        vit, images, lambda z, p: reduce_layers(vit, z, lambda A: torch.einsum("bq,bhqk->bhk", p, A))
    )


def rollout(model: Model, images: Images) -> np.ndarray:
    """Return the attention of the output through all layers: p R over the patches, (n, rows, columns)."""
    vit = with_attention(model)
    return over_patches(vit, images, lambda z, p: torch.einsum("bq,bqk->bk", p, rollout_matrix(vit, z)))


def over_patches(vit: ViT, images: Images, attend: Callable[[Tensor, Tensor], Tensor]) -> np.ndarray:
    """Return `attend` of tokens (B, T, D) and p (B, T), which is (B, ..., T), as (n, ..., rows, columns)."""
    rows, columns = vit.config.grid

    def call(z: Tensor) -> Tensor:
        seen = attend(z, vit.pooling_weights(vit.encode(z)))  # (B, ..., T)
        return seen[..., -rows * columns :].unflatten(-1, (rows, columns))  # (B, ..., rows, columns)

    return in_parts(vit, images, call)


def rollout_matrix(vit: ViT, z: Tensor) -> Tensor:
    """Return R (B, T, T) of tokens z (B, T, D): row q is what token q of the last layer consists of; it sums to 1."""
    R = torch.eye(z.shape[1], device=z.device).expand(len(z), -1, -1)  # (B, T, T)

    def multiply(A: Tensor) -> Tensor:
        nonlocal R
        R = (A.mean(dim=1) @ R + R) / 2  # = (mean_h A + I) / 2 R
        return R.new_empty(len(z), 0)  # nothing to keep of the layer

    reduce_layers(vit, z, multiply)
    return R


def record(model: Model, images: Images) -> dict[str, Tensor]:
    """Return every intermediate of one forward pass, all images at once: meant for a few.

    patches (B, N, D), tokens (B, T, D), block0.attention, block0.z, ..., encoded (B, T, D), pooled (B, D), logits
    (B, classes).
    """
    vit = with_attention(model)
    recorded: dict[str, list[Tensor]] = {}

    def call(x: Tensor) -> Tensor:
        inside: dict[str, Tensor] = {"patches": vit.patches(x)}
        inside["tokens"] = vit.tokens(inside["patches"])
        encoded = vit.encode(inside["tokens"], record=inside)
        pooled = vit.pool(encoded)
        inside |= {"encoded": encoded, "pooled": pooled, "logits": vit.head(pooled)}
        for name, value in inside.items():
            recorded.setdefault(name, []).append(value.float().cpu())
        return inside["logits"]

    for _ in image_outputs(vit, images, call, threads=1):  # in order
        pass
    return {name: torch.cat(values) for name, values in recorded.items()}


def in_parts(vit: ViT, images: Images, call: Call, task: str = "") -> np.ndarray:
    """Return `call` of the tokens (B, T, D), a few images at a time, put together: (n, ...).

    `task` names a progress bar.
    """
    # Images to run together: logits, weights and two of their copies stay under MAX_BYTES.
    at_once = max(1, MAX_BYTES // (4 * 4 * vit.config.heads * vit.config.tokens**2))

    def call_in_parts(x: Tensor) -> Tensor:
        return torch.cat([call(vit.tokens(vit.patches(part))) for part in x.split(at_once)])

    results = [y.numpy() for y in image_outputs(vit, images, call_in_parts, task=task)]
    if not results:
        raise DataError("no images to inspect")
    return np.concatenate(results)  # (n, ...)


def reduce_layers(vit: ViT, z: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """Run tokens (B, T, D) through the encoder; return `reduce` of each layer's attention, (B, L, ...)."""

    class Reduced(dict[str, Tensor]):
        """A record that keeps only `reduce` of each layer's attention."""

        def __setitem__(self, name: str, value: Tensor) -> None:
            if name.endswith(".attention"):
                super().__setitem__(name, reduce(full_attention(name, value, vit.config.grid).float()))

    reduced = Reduced()
    vit.encode(z, record=reduced)
    return torch.stack(list(reduced.values()), dim=1)  # (B, L, ...)


def full_attention(name: str, A: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return the attention of any layer between all tokens, (B, h, T, T); see above for axial ones."""
    rows, columns = grid
    if name.endswith(".row.attention"):
        A = A.unflatten(0, (-1, rows))  # (B, rows, h, columns, columns)
        A = torch.einsum("brhqk,rs->bhrqsk", A, torch.eye(rows, dtype=A.dtype, device=A.device))
    elif name.endswith(".column.attention"):
        A = A.unflatten(0, (-1, columns))  # (B, columns, h, rows, rows)
        A = torch.einsum("bchqk,cd->bhqckd", A, torch.eye(columns, dtype=A.dtype, device=A.device))
    else:
        return A
    return A.flatten(4, 5).flatten(2, 3)  # (B, h, N, N)


def layer_names(config: ViTConfig) -> list[str]:
    """Return the names of the layers, counted from 1: 1, 2, ...; in axial models 1 row, 1 column, 2 row, ..."""
    halves = (" row", " column") if config.block == "axial" else ("",)
    return [f"{i}{half}" for i in range(1, config.depth + 1) for half in halves]


def with_attention(model: Model) -> ViT:
    if not isinstance(model, ViT):
        raise ConfigError(NOT_FOR_RESNETS)
    return model
