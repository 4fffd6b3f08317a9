"""Occlusion: hide a part of the image, and measure how much less confident the model is (Zeiler and Fergus).

    image ──► the image with one cell hidden, for every cell ──► how far the answer falls ──► a map of cells

A check on attention maps, which show where a model looks but not whether it matters. It needs outputs only, so it
exists for every model, ResNets too. A cell is a square of whole patches, at most 8 along a side, hidden under the
mean colour of the image.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.inference.engine import BATCH_SIZE, image_outputs
from vitrail.inference.images import ImageLike
from vitrail.models.names import Config, Model
from vitrail.models.vit import ViTConfig

CELLS = 8  # along the longer side, at most
RESNET_STRIDE = 32  # pixels from one place of a ResNet's last feature map to the next


def occlusion(model: Model, image: ImageLike) -> np.ndarray:
    """Return by how much the probability of the top class falls when a cell is hidden: (rows, columns) of cells.

    Below 0 where it rises. For a model without a classifier: 1 - cosine similarity of the features.
    """
    (H, W), size = model.config.image_size, cell_size(model.config)
    corners = [(top, left) for top in range(0, H, size) for left in range(0, W, size)]

    def call(x: Tensor) -> Tensor:
        whole, p = model(x), model.calibration.probabilities  # (1, classes) or (1, D)
        falls = []
        for start in range(0, len(corners), BATCH_SIZE):
            hidden = model(hide(x[0], corners[start : start + BATCH_SIZE], size))  # (B, classes) or (B, D)
            if model.config.classes:
                c = int(whole.argmax())  # the first choice
                falls.append(p(whole)[:, c] - p(hidden)[:, c])  # (B,)
            else:
                falls.append(1 - F.cosine_similarity(whole, hidden))  # (B,)
        return torch.cat(falls)[None]  # (1, n)

    (falls,) = image_outputs(model, [image], call)
    return falls.numpy().reshape(math.ceil(H / size), math.ceil(W / size))  # (rows, columns)


def hide(x: Tensor, corners: list[tuple[int, int]], size: int) -> Tensor:
    """Return x (C, H, W) once for each corner, with a square of `size` filled with the mean colour: (B, C, H, W)."""
    hidden = x.repeat(len(corners), 1, 1, 1)  # (B, C, H, W)
    mean = x.mean(dim=(1, 2))[:, None, None]  # (C, 1, 1)
    for image, (top, left) in zip(hidden, corners, strict=True):
        image[:, top : top + size, left : left + size] = mean
    return hidden


def cell_size(config: Config) -> int:
    """Return the side of a cell in pixels: whole patches. Cells may reach over the right and the lower edge."""
    stride = config.stride if isinstance(config, ViTConfig) else RESNET_STRIDE
    return stride * math.ceil(max(config.image_size) / stride / CELLS)
