"""Intermediates of a model, by name: the `record` seam of ViT.encode, filled and read.

    record(model, images)     one forward pass with every intermediate, for a notebook
    in_parts(model, images, call), reduce_layers(vit, z, reduce)
                              reduces each layer's attention A while the layer runs; A itself is not kept

The names are the encoder's: `block3.attention` (B, h, T, T) with rows of queries and columns of keys, `block3.z`
(B, T, D). An axial block attends twice, `block3.row` and `block3.column`, each within a row or a column of patches:
`whole` writes such weights into the (N, N) of all patches, zeros elsewhere, so that every figure exists for them too.

B batch, T tokens (N patches, the class token before them), h heads, D width.
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

    for _ in image_outputs(vit, images, call):
        pass
    return {name: torch.cat(values) for name, values in recorded.items()}


def in_parts(model: Model, images: Images, call: Call, task: str = "") -> np.ndarray:
    """Return `call` of the tokens (B, T, D), a few images at a time, put together: (n, ...).

    `task` names a progress bar.
    """
    vit = with_attention(model)
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
                super().__setitem__(name, reduce(whole(name, value, vit.config.grid).float()))

    reduced = Reduced()
    vit.encode(z, record=reduced)
    return torch.stack(list(reduced.values()), dim=1)  # (B, L, ...)


def whole(name: str, A: Tensor, grid: tuple[int, int]) -> Tensor:
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
    """Return the names of the layers as people count: 1, 2, ...; in axial models 1 row, 1 column, 2 row, ..."""
    halves = (" row", " column") if config.block == "axial" else ("",)
    return [f"{i}{half}" for i in range(1, config.depth + 1) for half in halves]


def with_attention(model: Model) -> ViT:
    if not isinstance(model, ViT):
        raise ConfigError(NOT_FOR_RESNETS)
    return model
