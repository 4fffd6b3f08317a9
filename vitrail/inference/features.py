"""Images -> features (n, D): what the classifier sees, or the tokens of any layer.

Features of whole splits, for probes, are kept on disk by feature_cache.py.
B images, T tokens, D width, z_l (B, T, D) the tokens after layer l.
"""

from __future__ import annotations

import re

import numpy as np
from torch import Tensor

from vitrail.checkpoints.formats import as_model
from vitrail.errors import ConfigError
from vitrail.inference.engine import BATCH_SIZE, Call, ModelLike, image_outputs
from vitrail.inference.images import Images
from vitrail.models.names import Model
from vitrail.models.vit import ViT

WHICH = "pre_logits, token, mean, layer3 (any layer), layer3.token, layer3.mean"


def features(
    model: ModelLike,
    images_or_source: Images,
    *,
    which: str = "pre_logits",
    batch_size: int = BATCH_SIZE,
    num_workers: int = 0,
) -> np.ndarray:
    """Return the features of each image, float32 (n, D); ImageError where one cannot be read.

    `which`: what the classifier sees, or tokens: see `representation`.
    """
    model = as_model(model)
    call = representation(model, which)
    rows = [y.numpy() for y in image_outputs(model, images_or_source, call, batch_size, num_workers)]
    hidden = model.config.pre_logits if isinstance(model, ViT) and which == "pre_logits" else 0
    D = hidden or model.config.width
    return np.concatenate(rows) if rows else np.zeros((0, D), np.float32)  # (n, D)


def representation(model: Model, which: str = "pre_logits") -> Call:
    """Return the function images (B, C, H, W) -> features (B, D), by the model's seams.

    pre_logits      what the classifier sees
    token, mean     of the encoder's output: the class token, the mean of the patch tokens
    layer3          of z_3, not normalised: the class token where there is one, else the mean; layer0 is z_0
    layer3.token, layer3.mean
    """
    match = re.fullmatch(r"pre_logits|token|mean|layer(\d{1,4})(?:\.(token|mean))?", which)
    if match is None:
        raise ConfigError(f"features {which!r} are not one of: {WHICH}")
    if which == "pre_logits":
        return lambda x: model.head.representation(model.features(x))  # (B, pre_logits or D)
    if not isinstance(model, ViT):
        raise ConfigError(f"features {which!r}: a ResNet has no tokens; it has pre_logits")
    vit, has_token = model, bool(model.config.class_token)
    layer = None if match[1] is None else int(match[1])
    pool = (which if layer is None else match[2]) or ("token" if has_token else "mean")
    if layer is not None and layer > vit.config.depth:
        raise ConfigError(f"features {which!r}: this model has the layers 0 to {vit.config.depth}")
    if pool == "token" and not has_token:
        raise ConfigError(f"features {which!r}: this model has no class token; use 'mean'")

    def pooled(x: Tensor) -> Tensor:
        z = vit.tokens(vit.patches(x))  # (B, T, D)
        if layer is None:
            z = vit.encode(z)  # (B, T, D)
        elif layer:
            record = OneEntry(f"block{layer - 1}.z")
            vit.encode(z, record=record)
            z = record[record.name]  # (B, T, D)
        return z[:, 0] if pool == "token" else z[:, vit.config.prefix :].mean(dim=1)  # (B, D)

    return pooled


class OneEntry(dict[str, Tensor]):
    """A record that keeps one entry: the attention weights of all layers would fill the memory."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __setitem__(self, name: str, t: Tensor) -> None:
        if name == self.name:
            super().__setitem__(name, t)
