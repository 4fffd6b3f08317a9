"""transformers' ViT and DeiT, and those that are trained with masks: BEiT, I-JEPA, MAE, MSN."""

from __future__ import annotations

from typing import Any

from vitrail.checkpoints.huggingface_families import (
    ATTENTION,
    BLOCK,
    CROPPED,
    DROP_PATH,
    DROPOUTS,
    EXACT_6,
    EXACT_12,
    IMAGENET_LISTS,
    LAYER,
    PATCHES,
    QKV,
    TOKEN,
    VIT,
    Content,
    Family,
    Tensors,
    entries,
)
from vitrail.checkpoints.mapping import Table
from vitrail.checkpoints.timm_layouts import join_heads, split_heads
from vitrail.errors import CheckpointError
from vitrail.models.vit import ViTConfig

POOLER = {"pooler_act": ""}
POOLED = frozenset({"pooler_output_size", "qkv_bias"})
DEIT: Table = {**VIT, "distillation": "embeddings.distillation_token"}
BEIT: Table = {
    **{ours: row for ours, row in VIT.items() if ours != f"{BLOCK}.attention.qkv"},
    f"{BLOCK}.attention.qkv.weight": tuple(f"{name}.weight" for name in QKV),
    f"{BLOCK}.attention.qkv.qv_bias": (f"{QKV[0]}.bias", f"{QKV[2]}.bias"),
    f"{BLOCK}.scale1.gamma": f"{LAYER}.lambda_1",
    f"{BLOCK}.scale2.gamma": f"{LAYER}.lambda_2",
    "encoder.positions.{i}.table": f"{ATTENTION}.relative_position_bias.relative_position_bias_table",
    "pooled_norm": "pooler.layernorm",
}


def join_teachers(t: Tensors) -> Tensors:
    names = [f"{which}_classifier.{leaf}" for leaf in ("weight", "bias") for which in ("cls", "distillation")]
    if not all(name in t for name in names):
        return t
    joined = join_heads(*(t[name] for name in names))
    others = {name: w for name, w in t.items() if name not in names}
    return others | {name.replace("head", "classifier"): w for name, w in joined.items()}


def split_teachers(t: Tensors, c: ViTConfig) -> Tensors:
    if c.pool != "token_and_distillation":
        return t
    heads = split_heads(t["classifier.weight"], t["classifier.bias"])
    words = {"head_dist.": "distillation_classifier.", "head.": "cls_classifier."}
    others = {name: w for name, w in t.items() if not name.startswith("classifier.")}
    for name, w in heads.items():
        old = next(word for word in words if name.startswith(word))
        others[name.replace(old, words[old])] = w
    return others


def read_deit(content: Content, t: Tensors, where: str) -> dict[str, Any]:
    joined = "classifier.weight" in t and t["classifier.weight"].shape[1] == 2 * len(t["layernorm.weight"])
    return {"pool": "token_and_distillation" if joined else "token"}


def spread_bias(t: Tensors) -> Tensors:
    """BEiT with one table of relative positions for all layers has it beside them."""
    return {
        name.replace("encoder.relative_position_bias.", f"{ATTENTION.format(i=0)}.relative_position_bias."): w
        for name, w in t.items()
    }


def gather_bias(t: Tensors, c: ViTConfig) -> Tensors:
    own = f"{ATTENTION.format(i=0)}.relative_position_bias."
    if c.positions == "relative_bias" and c.positions_at == "shared":
        t = {name.replace(own, "encoder.relative_position_bias."): w for name, w in t.items()}
    return t


def read_beit(content: Content, t: Tensors, where: str) -> dict[str, Any]:
    bias = content.get("use_relative_position_bias") or content.get("use_shared_relative_position_bias")
    if bias and content.get("use_absolute_position_embeddings"):
        raise CheckpointError(
            f"{where} has absolute and relative positions at once, which has no counterpart here"
        )
    if content.get("use_relative_position_bias") and content.get("use_shared_relative_position_bias"):
        raise CheckpointError(
            f"{where} has relative positions of each layer and of all, which has no counterpart here"
        )
    mean = content.get("use_mean_pooling", True)
    return {"pool": "mean" if mean else "token", "positions": "relative_bias" if bias else None}


def write_beit(c: ViTConfig) -> dict[str, Any]:
    return {
        "use_mean_pooling": c.pool == "mean",
        "use_absolute_position_embeddings": c.positions == "1d",
        "use_relative_position_bias": c.positions == "relative_bias" and c.positions_at == "every",
        "use_shared_relative_position_bias": c.positions == "relative_bias" and c.positions_at == "shared",
        "use_mask_token": False,
        "layer_scale_init_value": c.layer_scale,
    }


def beit_misfit(c: ViTConfig) -> str:
    if (c.pool == "mean") != (c.norm_at == "pooled"):
        return f"pool={c.pool} with norm_at={c.norm_at}"
    if c.grid[0] != c.grid[1] and c.positions == "relative_bias":
        return "relative positions of a grid that is not square"
    return (
        "" if c.qkv_bias == "qv" and c.class_token else f"qkv_bias={c.qkv_bias}, class_token={c.class_token}"
    )


PLAIN: tuple[Family, ...] = (
    Family(
        "vit", "ViTModel", "ViTForImageClassification", "vit.", VIT, TOKEN, EXACT_12,
        used=DROPOUTS | POOLER, harmless=POOLED, write=lambda c: {"qkv_bias": c.qkv_bias == "all"},
    ),
    Family(
        "deit", "DeiTModel", "DeiTForImageClassification", "deit.", DEIT, TOKEN, EXACT_12,
        pools=("token", "token_and_distillation"), parts=(
            "qkv_bias=none", "distillation_token", "pool=token_and_distillation",
        ),
        used=DROPOUTS | POOLER, harmless=POOLED, read=read_deit, straighten=join_teachers, bend=split_teachers,
        write=lambda c: {"qkv_bias": c.qkv_bias == "all"}, images=CROPPED | IMAGENET_LISTS,
        misfit=lambda c: (
            "" if c.distillation_token and (c.classes or c.pool == "token") else "no distillation token"
        ),
    ),
)  # fmt: skip
MASKED: tuple[Family, ...] = (
    Family(
        "beit", "BeitModel", "BeitForImageClassification", "beit.", BEIT, {"class_token": True}, EXACT_12,
        pools=("token", "mean"), parts=("layer_scale", "qkv_bias", "positions=relative_bias"),
        used=DROPOUTS | DROP_PATH | {"layer_scale_init_value": "layer_scale"},
        harmless=entries(
            "add_fpn auxiliary_channels auxiliary_concat_input auxiliary_loss_weight auxiliary_num_convs "
            "pool_scales semantic_loss_ignore_index use_auxiliary_head vocab_size use_mask_token "
            "use_mean_pooling use_absolute_position_embeddings use_relative_position_bias "
            "use_shared_relative_position_bias"
        ),
        left_out=("embeddings.mask_token",), read=read_beit, write=write_beit, straighten=spread_bias,
        bend=gather_bias, misfit=beit_misfit,
    ),
    Family(
        "ijepa", "IJepaModel", "IJepaForImageClassification", "ijepa.", VIT, {**PATCHES, "pool": "mean"},
        EXACT_12, pools=("mean",), used=DROPOUTS | POOLER, harmless=POOLED, left_out=("pooler.",),
        write=lambda c: {"qkv_bias": c.qkv_bias == "all"},
        misfit=lambda c: (
            "" if c.norm_at == "encoder" and not c.class_token else "a class token, or norm_at=pooled"
        ),
    ),
    Family(
        "vit_mae", "ViTMAEModel", "", "vit.", VIT, TOKEN, EXACT_12, used=DROPOUTS,
        harmless=entries(
            "qkv_bias decoder_hidden_size decoder_intermediate_size decoder_num_attention_heads "
            "decoder_num_hidden_layers mask_ratio norm_pix_loss"
        ),
        left_out=("decoder.",), write=lambda c: {"qkv_bias": c.qkv_bias == "all"}, images=IMAGENET_LISTS,
    ),
    Family(
        "vit_msn", "ViTMSNModel", "ViTMSNForImageClassification", "vit.", VIT, TOKEN, EXACT_6, used=DROPOUTS,
        harmless=frozenset({"qkv_bias"}), write=lambda c: {"qkv_bias": c.qkv_bias == "all"},
        images=IMAGENET_LISTS,
    ),
)  # fmt: skip
