"""What a model needs to see: hide a part of the image, and look how much less sure it is (Zeiler and Fergus).

    image ──► the image with one cell hidden, for every cell ──► how far the answer falls ──► a map of cells

A check on attention maps, which say where a model looks but not whether it matters. It asks only for outputs, so it
exists for every model, ResNets too. A cell is a square of whole patches, at most 8 along a side; what hides it is the
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


def occlusion(model: Model, image: ImageLike, cells: int = CELLS) -> np.ndarray:
    """(rows, columns) of cells: by how much the probability of the model's first choice falls when a cell is hidden.

    Below 0 where it rises. A model without a classifier: 1 - cosine similarity of the features, instead.
    """
    (H, W), size = model.config.image_size, cell_size(model.config, cells)
    corners = [(top, left) for top in range(0, H, size) for left in range(0, W, size)]

    def call(x: Tensor) -> Tensor:
        whole = model(x)  # (1, classes) or (1, D)
        falls = []
        for start in range(0, len(corners), BATCH_SIZE):
            hidden = model(hide(x[0], corners[start : start + BATCH_SIZE], size))  # (B, classes) or (B, D)
            falls.append(
                fall(whole, hidden) if model.config.classes else 1 - F.cosine_similarity(whole, hidden)
            )
        return torch.cat(falls)[None]  # (1, n)

    (falls,) = image_outputs(model, [image], call)
    return falls.numpy().reshape(math.ceil(H / size), math.ceil(W / size))  # (rows, columns)


def hide(x: Tensor, corners: list[tuple[int, int]], size: int) -> Tensor:
    """x (C, H, W) -> (B, C, H, W), with a square of `size` at each corner filled with the mean colour."""
    made = x.repeat(len(corners), 1, 1, 1)  # (B, C, H, W)
    mean = x.mean(dim=(1, 2))[:, None, None]  # (C, 1, 1)
    for image, (top, left) in zip(made, corners, strict=True):
        image[:, top : top + size, left : left + size] = mean
    return made


def fall(whole: Tensor, hidden: Tensor) -> Tensor:
    """Logits (1, K) and (B, K) -> (B,): p_c of the whole image less p_c with a part hidden, c its first choice."""
    c = int(whole.argmax())
    return whole.softmax(dim=1)[:, c] - hidden.softmax(dim=1)[:, c]  # (B,)


def cell_size(config: Config, cells: int = CELLS) -> int:
    """Pixels of a side of a cell: whole patches. At the right and below, cells may reach over the image's edge."""
    stride = config.stride if isinstance(config, ViTConfig) else RESNET_STRIDE
    return stride * math.ceil(max(config.image_size) / stride / cells)
