"""Another patch size for trained weights: FlexiViT's pseudo-inverse resize (Beyer et al. 2022, arXiv:2212.08013).

A patch x of P x P pixels becomes B x of P' x P' pixels, B the matrix of the resize. The weights w' that give
<B x, w'> as near as possible to <x, w> for all x are, by section 3.3, Eq. 4:

    w' = (B^T)^+ w          and exactly <B x, w'> = <x, w> if P' >= P
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError


def resample_patches(E: Tensor, patch_size: int) -> Tensor:
    """E (D, C, P, P) -> (D, C, P', P') for patches of another size."""
    P = E.shape[-1]
    if patch_size < 1:
        raise ConfigError(f"patch_size must be at least 1, not {patch_size}")
    if patch_size == P:
        return E
    B = resize_matrix(P, patch_size)  # (P'*P', P*P)
    w = E.double().flatten(2)  # (D, C, P*P)
    return (w @ torch.linalg.pinv(B)).unflatten(2, (patch_size, patch_size)).to(E.dtype)


def resize_matrix(old: int, new: int) -> Tensor:
    """B (new^2, old^2): bilinear, without antialiasing, as in the paper's code."""
    pixels = torch.eye(old * old, dtype=torch.float64).unflatten(1, (old, old))[
        :, None
    ]  # (old^2, 1, old, old)
    resized = F.interpolate(pixels, size=(new, new), mode="bilinear", align_corners=False)
    return resized.flatten(1).T  # each column is one pixel, resized
