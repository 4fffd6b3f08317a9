"""The own files of published models whose names differ from timm's -> timm's names.

    DINOv2, DINOv3       register_tokens, storage_tokens; mlp.w12, w1, w2, w3; masks of biases
    CLIP, open_clip      visual.transformer.resblocks.0.attn.in_proj_weight; a text tower beside it, which is left out

MAE's and I-JEPA's have timm's names; MAE's decoder plays no part, and of I-JEPA's encoders the target is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoints.checkpoint import listing
from vitrail.errors import CheckpointError

CLIP_FIRST = "visual.conv1.weight"
CLIP_ARGUMENTS = {"eps": 1e-5}  # of all of them; their GELU is OpenAI's own, or the exact one
CLIP_IMAGES: dict[str, Any] = {
    "interpolation": "bicubic", "crop_pct": 1.0,
    "mean": [0.48145466, 0.4578275, 0.40821073], "std": [0.26862954, 0.26130258, 0.27577711],
}  # fmt: skip
CLIP_NAMES = {
    r"^conv1\.": "patch_embed.proj.",
    r"^class_embedding$": "cls_token",
    r"^positional_embedding$": "pos_embed",
    r"^ln_pre\.": "norm_pre.",
    r"^ln_post\.": "norm.",
    r"^transformer\.resblocks\.": "blocks.",
    r"\.ln_(\d)\.": r".norm\1.",
    r"\.attn\.in_proj_": ".attn.qkv.",
    r"\.attn\.out_proj\.": ".attn.proj.",
    r"\.mlp\.c_fc\.": ".mlp.fc1.",
    r"\.mlp\.c_proj\.": ".mlp.fc2.",
}
CLIP_TEXT = re.compile(
    r"transformer\..*|token_embedding\.weight|positional_embedding|ln_final\..*|text_projection|logit_(scale|bias)|attn_mask"
)


# Names of DINOv2's and DINOv3's own files -> timm's.
ORIGINALS = {
    r"^(register_tokens|storage_tokens)$": "reg_token",
    r"\.mlp\.(w12|w1)\.": ".mlp.fc1.",
    r"\.mlp\.w2\.": ".mlp.fc1_x.",
    r"\.mlp\.w3\.": ".mlp.fc2.",
}


def from_originals(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under timm's names; biases that a mask takes away are zero."""
    if CLIP_FIRST in tensors:
        return from_clip(tensors)
    new = {}
    for name, w in tensors.items():
        mask = tensors.get(f"{name}_mask") if name.endswith(".qkv.bias") else None
        if mask is not None:
            w = torch.where(mask == 1, w, torch.zeros_like(w))
        for old, replacement in ORIGINALS.items():
            name = re.sub(old, replacement, name)
        new[name] = w
    apart = [name for name in new if ".mlp.fc1_x." in name and name.replace("fc1_x", "fc1_g") not in new]
    for name in apart:  # w1, the gate, beside w2
        new[name.replace("fc1_x", "fc1_g")] = new.pop(name.replace("fc1_x", "fc1"))
    return new


def from_clip(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the vision tower of CLIP's own file; its projection is the classifier, without a bias."""
    others = [name for name in tensors if not name.startswith("visual.")]
    if strange := [name for name in others if not CLIP_TEXT.fullmatch(name)]:
        raise CheckpointError(f"CLIP's own file has extra {listing(strange)}")
    new = {}
    for name, w in tensors.items():
        if name in others:
            continue
        name = name.removeprefix("visual.")
        for old, replacement in CLIP_NAMES.items():
            name = re.sub(old, replacement, name)
        new[name] = w
    for name in ("cls_token", "pos_embed"):
        if name in new:
            new[name] = new[name].reshape(1, -1, new[name].shape[-1])  # (1, 1 or T, D)
    if (projection := new.pop("proj", None)) is not None and projection.ndim == 2:  # (D, E)
        new |= {"head.weight": projection.T, "head.bias": torch.zeros(projection.shape[1])}
    return new
