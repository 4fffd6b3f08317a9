"""The vision towers of transformers' models with texts: SigLIP, SigLIP 2, CLIP."""

from __future__ import annotations

import math
from typing import Any

import torch

from vitrail.checkpoints.huggingface_families import (
    ATTENTION_DROPOUT,
    BLOCK,
    CROPPED,
    PATCHES,
    TOKEN,
    Content,
    Family,
    Tensors,
)
from vitrail.checkpoints.mapping import Entry, Table
from vitrail.errors import CheckpointError
from vitrail.models.vit import ViTConfig

CLIP_IMAGES = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
SIGLIP_DEFAULTS = {"activation": "gelu_tanh", "norm_eps": 1e-6}
# Models with a text tower: the vision tower is read, which config.json describes under vision_config.
TOWERS = {
    "clip": "clip_vision_model", "siglip": "siglip_vision_model", "siglip2": "siglip2_vision_model",
    "metaclip_2": "clip_vision_model", "metaclip_2_vision_model": "clip_vision_model",
}  # fmt: skip
TEXT = ("text_model.", "text_projection.", "logit_scale", "logit_bias")
TOWER = "encoder.layers.{i}"
SIGLIP: Table = {
    "embedding": "embeddings.patch_embedding",
    "positions.table": Entry(("embeddings.position_embedding.weight",), lambda w: w[None], lambda w: w[0]),
    f"{BLOCK}.norm1": f"{TOWER}.layer_norm1",
    f"{BLOCK}.attention.qkv": tuple(f"{TOWER}.self_attn.{name}_proj" for name in "qkv"),
    f"{BLOCK}.attention.out": f"{TOWER}.self_attn.out_proj",
    f"{BLOCK}.norm2": f"{TOWER}.layer_norm2",
    f"{BLOCK}.mlp.fc1": f"{TOWER}.mlp.fc1",
    f"{BLOCK}.mlp.fc2": f"{TOWER}.mlp.fc2",
    "encoder.norm": "post_layernorm",
    "attention_pool.probe": "head.probe",
    "attention_pool.q": "head.attention.q",
    "attention_pool.kv": "head.attention.kv",
    "attention_pool.out": "head.attention.out_proj",
    "attention_pool.norm": "head.layernorm",
    "attention_pool.mlp.fc1": "head.mlp.fc1",
    "attention_pool.mlp.fc2": "head.mlp.fc2",
    "head.classifier": "classifier",
}
CLIP: Table = {
    **{ours: row for ours, row in SIGLIP.items() if not ours.startswith("attention_pool.")},
    "cls": Entry(("embeddings.class_embedding",), lambda w: w[None, None], lambda w: w[0, 0]),
    "pre_norm": "pre_layrnorm",
    "head.classifier": "visual_projection",
}


def split_probe(t: Tensors) -> Tensors:
    """SigLIP's pooling has q, k and v of its probe in one matrix; ours has q, and k and v.

    Beside a classifier, which reads the mean of the patches, it is not used.
    """
    if "classifier.weight" in t:
        return {name: w for name, w in t.items() if not name.startswith("head.")}
    new = dict(t)
    for leaf in ("weight", "bias"):
        w = new.pop(f"head.attention.in_proj_{leaf}", None)
        if w is not None:
            n = len(w) // 3
            new[f"head.attention.q.{leaf}"], new[f"head.attention.kv.{leaf}"] = w[:n], w[n:]
    return new


def join_probe(t: Tensors, c: ViTConfig) -> Tensors:
    new = dict(t)
    if c.pool == "attention":
        for leaf in ("weight", "bias"):
            parts = [new.pop(f"head.attention.{name}.{leaf}") for name in ("q", "kv")]
            new[f"head.attention.in_proj_{leaf}"] = torch.cat(parts)
    return new


def from_flat_patches(t: Tensors) -> Tensors:
    """SigLIP 2's patches are flat, channels last."""
    E = t.get("embeddings.patch_embedding.weight")
    if E is not None and E.ndim == 2:
        P = math.isqrt(E.shape[1] // 3)
        if not P or E.shape[1] != 3 * P * P:
            raise CheckpointError(
                f"flat patches of {E.shape[1]} numbers (num_channels, patch_size), which are not 3 P P"
            )
        t = {**t, "embeddings.patch_embedding.weight": E.unflatten(1, (P, P, 3)).permute(0, 3, 1, 2)}
    return split_probe(t)


def to_flat_patches(t: Tensors, c: ViTConfig) -> Tensors:
    E = t["embeddings.patch_embedding.weight"].permute(0, 2, 3, 1).flatten(1).contiguous()  # (D, P*P*C)
    return join_probe({**t, "embeddings.patch_embedding.weight": E}, c)


def add_projection_bias(t: Tensors) -> Tensors:
    """CLIP's projection is our classifier, which has a bias."""
    W = t.get("visual_projection.weight")
    return t if W is None else {**t, "visual_projection.bias": torch.zeros(len(W))}


def drop_projection_bias(t: Tensors, c: ViTConfig) -> Tensors:
    bias = t.get("visual_projection.bias")
    if bias is not None and bool(bias.any()):
        raise CheckpointError(
            "transformers' CLIP has no bias after its projection, and this model's is not zero"
        )
    return {name: w for name, w in t.items() if name != "visual_projection.bias"}


def read_siglip(content: Content, t: Tensors, where: str) -> dict[str, Any]:
    if "classifier.weight" not in t and not content.get("vision_use_head", True):
        raise CheckpointError(
            f"{where}: vision_use_head=False, a model that pools nothing, has no counterpart here"
        )
    return {"pool": "mean" if "classifier.weight" in t else "attention"}


def siglip_misfit(c: ViTConfig) -> str:
    if c.class_token:
        return "a class token"
    if bool(c.classes) != (c.pool == "mean"):
        return f"pool={c.pool} {'with' if c.classes else 'without'} a classifier"
    return "" if c.norm_at == "encoder" else f"norm_at={c.norm_at}"


def siglip2_misfit(c: ViTConfig) -> str:
    square = c.grid[0] == c.grid[1] and c.channels == 3
    return siglip_misfit(c) or ("" if square else "a grid that is not square, or other than 3 channels")


WITH_TEXTS: tuple[Family, ...] = (
    Family(
        "siglip_vision_model", "SiglipVisionModel", "SiglipForImageClassification", "vision_model.", SIGLIP,
        PATCHES, SIGLIP_DEFAULTS, pools=("attention", "mean"),
        used=ATTENTION_DROPOUT, harmless=frozenset({"vision_use_head", "projection_size"}), read=read_siglip,
        around="siglip", write=lambda c: {"vision_use_head": not c.classes},
        straighten=split_probe, bend=join_probe, misfit=siglip_misfit, images={"resample": 3},
    ),
    Family(
        "siglip2_vision_model", "Siglip2VisionModel", "Siglip2ForImageClassification", "vision_model.", SIGLIP,
        PATCHES, SIGLIP_DEFAULTS, pools=("attention", "mean"),
        used=ATTENTION_DROPOUT, harmless=frozenset({"vision_use_head", "num_patches"}), read=read_siglip,
        straighten=from_flat_patches, bend=to_flat_patches, misfit=siglip2_misfit,
        around="siglip2",
        write=lambda c: {"num_patches": c.grid[0] * c.grid[1], "vision_use_head": not c.classes},
    ),
    Family(
        "clip_vision_model", "CLIPVisionModel", "CLIPVisionModelWithProjection", "vision_model.", CLIP, TOKEN,
        {"activation": "quick_gelu", "norm_eps": 1e-5},
        parts=("pre_norm", "embedding_bias"), used=ATTENTION_DROPOUT,
        harmless=frozenset({"projection_dim", "dropout"}), left_out=("embeddings.position_ids",),
        straighten=add_projection_bias, bend=drop_projection_bias, images=CROPPED | CLIP_IMAGES,
        write=lambda c: {"projection_dim": c.classes or 512},
        misfit=lambda c: "" if c.pre_norm and not c.embedding_bias else "no norm before the layers",
    ),
)  # fmt: skip
