"""transformers' kinds of models besides 'vit', known by the model_type in config.json: refused, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.checkpoints.torch_files import Found
from vitrail.errors import CheckpointError

OURS = "vit"
_SIGLIP = (
    "attention pooling, no class token and names of its own (its .npz, and timm's files of it, are read)"
)
_CLIP = "a LayerNorm before the encoder, a GELU of another kind and a projection for texts"
_RELATIVE = "relative positions in every layer, LayerScale and keys without biases"
_GATED = "RMSNorm and gated MLPs"
_CONVOLUTIONS = "convolutions instead of a Vision Transformer's layers"
_WINDOWS = "attention in windows and stages of several resolutions"
# model_type: what it has that has no counterpart here
KINDS: dict[str, str] = {
    "deit": "a distillation token",
    "beit": _RELATIVE, "data2vec-vision": _RELATIVE,
    "dinov2": "LayerScale and a mask token",
    "dinov2_with_registers": "register tokens, LayerScale and a mask token",
    "dinov3_vit": "rotary positions, register tokens and LayerScale",
    "dinov3_convnext": _CONVOLUTIONS,
    "siglip": _SIGLIP, "siglip_vision_model": _SIGLIP, "siglip2": _SIGLIP, "siglip2_vision_model": _SIGLIP,
    "clip": _CLIP, "clip_vision_model": _CLIP, "metaclip_2": _CLIP, "metaclip_2_vision_model": _CLIP,
    "vit_mae": "random masking of patches, and a decoder",
    "vit_msn": "a ViT's layers under other names in part, which no test here compares",
    "vit_hybrid": "a ResNet stem in transformers' form (timm's hybrids are read)",
    "ijepa": "no class token: its classifier sees the mean of the patches",
    "pixio": "several class tokens", "aimv2": _GATED, "aimv2_vision_model": _GATED,
    "yolos": "detection tokens", "vitdet": "attention in windows and relative positions",
    "videomae": "patches of videos", "vivit": "patches of videos", "vjepa2": "patches of videos and rotary positions",
    "swin": _WINDOWS, "swinv2": _WINDOWS, "hiera": _WINDOWS, "pvt": _WINDOWS, "pvt_v2": _WINDOWS,
    "segformer": _WINDOWS,
    "bit": "a BiT in transformers' form (its .npz, and timm's, are read)",
    "convnext": _CONVOLUTIONS, "convnextv2": _CONVOLUTIONS, "resnet": _CONVOLUTIONS, "efficientnet": _CONVOLUTIONS,
    "timm_wrapper": "timm's model inside a wrapper (timm's own files are read)",
}  # fmt: skip


def refuse_others(found: Found) -> None:
    """An error that names the kind of model where it is one of transformers' that is not read here."""
    kind = kind_of(found.configs.get("config.json", {}), found.tensors)
    if kind is None or kind == OURS:
        return
    known = f"which has {KINDS[kind]}" if kind in KINDS else "which is not known here"
    raise CheckpointError(
        f"{found.where} is a {kind[:60]!r} of transformers (model_type), {known}; of its models {OURS!r} is read"
    )


def kind_of(card: Mapping[str, Any], names: Mapping[str, Any]) -> str | None:
    """The model_type of config.json; without such a file, where all names of tensors begin with that of a kind."""
    if "model_type" in card:
        kind = card["model_type"]
        return kind if isinstance(kind, str) else None
    starts = {name.split(".")[0].replace("data2vec_vision", "data2vec-vision") for name in names}
    found = next((kind for kind in KINDS if kind in starts), None)
    return found if not card and starts - {"classifier", "head", "pooler"} == {found} else None
