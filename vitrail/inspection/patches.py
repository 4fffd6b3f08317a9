"""Patch features: what the encoder makes of each patch, as colours, and which patches are alike.

    patch_features(model, images)        f (n, rows, columns, D), the encoded patches
    principal_colours(f)                 principal components as colours, jointly over the images, without background
    correspondences(f_a, f_b)            pairs of patches of two images that are each other's nearest

**Colours** (as in DINOv2, arXiv:2304.07193, section 7.7): the first principal component of all patches of all images
separates objects from background: patches with a positive score stay. Here each image's own mean is taken away
before, or that component would tell one image from the others. A component has no sign of its own; here the border
of the images is negative. Then the three first components of the patches that stay become red, green and blue.

**Alike** is the cosine of two features. N = rows * columns patches, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from vitrail.errors import ConfigError
from vitrail.inference.engine import image_outputs
from vitrail.inference.images import Images
from vitrail.inspection.attention import with_attention
from vitrail.models.names import Model

FEWEST = 8  # patches of objects; of fewer all patches get colours
OUTSIDE = (0.01, 0.99)  # quantiles of a component that get the least and the most of its colour


@dataclass(frozen=True)
class Patches:
    """Some images and the features of their patches."""

    names: list[str]
    pictures: np.ndarray  # uint8 (n, H, W, 3): the model's input, before its values are scaled
    features: np.ndarray  # float32 (n, rows, columns, D)


class Colours(NamedTuple):
    colours: np.ndarray  # uint8 (n, rows, columns, 3); black: background
    objects: np.ndarray  # bool (n, rows, columns): the patches that are not background
    variance: np.ndarray  # (3,): the share of the variance of these that each component explains


class Pairs(NamedTuple):
    """Patches of two images that are each other's nearest, the most alike first."""

    first: np.ndarray  # int (m, 2): row and column in the first image
    second: np.ndarray  # int (m, 2): in the second
    cosine: np.ndarray  # (m,)


def patch_features(model: Model, images: Images) -> np.ndarray:
    """Return the encoded patches, float32 (n, rows, columns, D)."""
    vit = with_attention(model)
    parts = [f.permute(0, 2, 3, 1).numpy() for f in image_outputs(vit, images, vit.feature_map)]
    if not parts:
        raise ConfigError("patch features need images, and none were passed")
    return np.concatenate(parts)


def principal_colours(features: np.ndarray) -> Colours:
    """Return the principal components of patches (n, rows, columns, D) as colours, as described above."""
    shape = features.shape[:3]
    X = features.reshape(-1, features.shape[-1]).astype(np.float64)  # (n N, D)
    border = np.ones(shape, bool)
    border[:, 1:-1, 1:-1] = False
    within = features - features.mean(axis=(1, 2), keepdims=True)
    scores, _ = components(within.reshape(X.shape).astype(np.float64), 1)
    first = scores[:, 0] * (-1 if scores[border.reshape(-1), 0].mean() > 0 else 1)
    objects = first > 0
    if objects.sum() < FEWEST:
        objects = np.ones(len(X), bool)
    scores, variance = components(X[objects], 3)  # (m, 3)
    low, high = np.quantile(scores, OUTSIDE, axis=0)
    colours = np.zeros((len(X), 3), np.uint8)
    colours[objects] = np.round(255 * np.clip((scores - low) / np.maximum(high - low, 1e-12), 0, 1))
    return Colours(colours.reshape(*shape, 3), objects.reshape(shape), variance)


def components(X: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores (n, k) of points X (n, D) along their k first principal components, and the share of variance
    of each; the largest entry of a component is positive, and what does not exist is 0."""
    centred = torch.from_numpy(X - X.mean(axis=0))
    # Of the (D, D) matrix: n may be many patches.
    values, vectors = torch.linalg.eigh(centred.T @ centred)  # ascending
    v = vectors.flip(1)[:, :k]  # (D, k)
    v = v * v.gather(0, v.abs().argmax(dim=0, keepdim=True)).sign()
    share = values.flip(0)[:k].clamp(min=0) / values.clamp(min=0).sum().clamp(
        min=torch.finfo(torch.float64).tiny
    )
    missing = k - v.shape[1]
    scores = np.pad((centred @ v).numpy(), ((0, 0), (0, missing)))
    return scores, np.pad(share.numpy(), (0, missing))


def correspondences(first: np.ndarray, second: np.ndarray) -> Pairs:
    """Return the pairs of patches of two images (rows, columns, D) that are each other's nearest by cosine."""
    a, b = unit(first.reshape(-1, first.shape[-1])), unit(second.reshape(-1, second.shape[-1]))
    cosine = a @ b.T  # (N, N')
    nearest, back = cosine.argmax(axis=1), cosine.argmax(axis=0)  # (N,), (N',)
    mutual = np.flatnonzero(back[nearest] == np.arange(len(a)))
    mutual = mutual[np.argsort(-cosine[mutual, nearest[mutual]], kind="stable")]
    there = nearest[mutual]
    return Pairs(
        np.stack(np.divmod(mutual, first.shape[1]), axis=1),
        np.stack(np.divmod(there, second.shape[1]), axis=1),
        cosine[mutual, there],
    )


def unit(features: np.ndarray) -> np.ndarray:
    """Return features (..., D) of length 1."""
    length = np.linalg.norm(features, axis=-1, keepdims=True)
    normed: np.ndarray = features / np.maximum(length, 1e-12)
    return normed


def reduced(features: np.ndarray, dimensions: int) -> np.ndarray:
    """Return features (..., D) of length 1 in the directions that have most of their cosines: (..., dimensions)."""
    flat = torch.from_numpy(unit(features.astype(np.float64)).reshape(-1, features.shape[-1]))
    _, vectors = torch.linalg.eigh(flat.T @ flat)  # not centred: a mean is a part of the cosine
    short: np.ndarray = (flat @ vectors.flip(1)[:, :dimensions]).numpy()
    return short.reshape(*features.shape[:-1], -1)
