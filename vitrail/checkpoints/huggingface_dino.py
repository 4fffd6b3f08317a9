"""transformers' DINOv2, with registers or without, and DINOv3."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from vitrail.checkpoints.huggingface_families import (
    ATTENTION_DROPOUT,
    BLOCK,
    COMMON,
    CROPPED,
    DROP_PATH,
    DROPOUTS,
    EXACT_6,
    IMAGENET_LISTS,
    LAYER,
    TOKEN,
    Content,
    Family,
    Tensors,
    entries,
)
from vitrail.checkpoints.mapping import Entry, Table
from vitrail.models.rotary import RotaryConfig
from vitrail.models.vit import ViTConfig

BACKBONE = frozenset({"qkv_bias", "use_mask_token", "use_swiglu_ffn", "num_register_tokens"})
DINOV2: Table = {
    **COMMON,
    "registers": "embeddings.register_tokens",
    f"{BLOCK}.norm1": f"{LAYER}.norm1",
    f"{BLOCK}.norm2": f"{LAYER}.norm2",
    f"{BLOCK}.scale1.gamma": f"{LAYER}.layer_scale1.lambda1",
    f"{BLOCK}.scale2.gamma": f"{LAYER}.layer_scale2.lambda1",
    f"{BLOCK}.mlp.fc1": f"{LAYER}.mlp.fc1",
    f"{BLOCK}.mlp.fc2.weight": Entry((f"{LAYER}.mlp.fc2.weight",)),
    f"{BLOCK}.mlp.fc2.bias": Entry((f"{LAYER}.mlp.fc2.bias",)),
    f"{BLOCK}.mlp.gated": f"{LAYER}.mlp.weights_in",
}
V3 = "layer.{i}"
DINOV3: Table = {
    "embedding": "embeddings.patch_embeddings",
    "cls": "embeddings.cls_token",
    "registers": "embeddings.register_tokens",
    f"{BLOCK}.norm1": f"{V3}.norm1",
    f"{BLOCK}.attention.qkv.qv_bias": (f"{V3}.attention.q_proj.bias", f"{V3}.attention.v_proj.bias"),
    f"{BLOCK}.attention.qkv": tuple(f"{V3}.attention.{name}_proj" for name in "qkv"),
    f"{BLOCK}.attention.out": f"{V3}.attention.o_proj",
    f"{BLOCK}.scale1.gamma": f"{V3}.layer_scale1.lambda1",
    f"{BLOCK}.norm2": f"{V3}.norm2",
    f"{BLOCK}.mlp.gated": (f"{V3}.mlp.gate_proj", f"{V3}.mlp.up_proj"),
    f"{BLOCK}.mlp.fc1": f"{V3}.mlp.up_proj",
    f"{BLOCK}.mlp.fc2": f"{V3}.mlp.down_proj",
    f"{BLOCK}.scale2.gamma": f"{V3}.layer_scale2.lambda1",
    "encoder.norm": "norm",
}


def pad_registers(t: Tensors) -> Tensors:
    """Dinov2WithRegisters: positions are of the class token and the patches; registers get rows of zeros."""
    t = drop_no_registers(t)
    name, registers = "embeddings.position_embeddings", t.get("embeddings.register_tokens")
    if registers is None or name not in t or t[name].ndim != 3:
        return t
    table = t[name]
    padding = F.pad(table[:, 1:], (0, 0, registers.shape[1], 0))
    return {**t, name: torch.cat([table[:, :1], padding], dim=1)}  # (1, 1 + R + N, D)


def fold_registers(t: Tensors, c: ViTConfig) -> Tensors:
    """Add the registers' positions to the registers, and restore the mask token, which is trained with."""
    name = "embeddings.position_embeddings"
    table, R = t[name], c.registers
    t = {**t, "embeddings.mask_token": torch.zeros(1, c.width)}
    if R:
        t["embeddings.register_tokens"] = t["embeddings.register_tokens"] + table[:, 1 : 1 + R]
        t[name] = torch.cat([table[:, :1], table[:, 1 + R :]], dim=1).contiguous()
    return gated_names(t, c)


def from_gated_names(t: Tensors) -> Tensors:
    """Dinov2's gated MLPs call their second layer weights_out."""
    return pad_registers({name.replace(".mlp.weights_out.", ".mlp.fc2."): w for name, w in t.items()})


def gated_names(t: Tensors, c: ViTConfig) -> Tensors:
    if c.mlp != "gated":
        return t
    return {name.replace(".mlp.fc2.", ".mlp.weights_out."): w for name, w in t.items()}


def drop_no_registers(t: Tensors) -> Tensors:
    """DINOv3, and Dinov2WithRegisters, have a tensor of no registers where there are none."""
    return {name: w for name, w in t.items() if w.numel() or name != "embeddings.register_tokens"}


def from_dinov3(t: Tensors) -> Tensors:
    """DINOv3 may lack the biases of any product; ours of q and v, of q, k and v, or of `out` and the MLP at once."""
    t = drop_no_registers(t)
    dense = ("attention.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    for group in (tuple(f"attention.{name}_proj" for name in "qkv"), dense):
        lacking = {part for part in group if f"layer.0.{part}.bias" not in t}
        if lacking in (set(group), {"attention.k_proj"}):
            continue
        for name in [n for n in t if n.endswith(".weight")]:
            block, bias = name.removesuffix(".weight"), name.replace(".weight", ".bias")
            if block.split(".", 2)[-1] in lacking and bias not in t:
                t[bias] = torch.zeros(len(t[name]))
    return t


def add_no_registers(t: Tensors, c: ViTConfig) -> Tensors:
    t = {**t, "embeddings.mask_token": torch.zeros(1, 1, c.width)}
    return t if c.registers else {**t, "embeddings.register_tokens": torch.zeros(1, 0, c.width)}


def read_dinov2(content: Content, t: Tensors, where: str) -> dict[str, Any]:
    pool = "token_and_mean" if "classifier.weight" in t else "token"
    gated = {"activation": "silu"} if any(".mlp.weights_in." in name for name in t) else {}
    return {"pool": pool, "mlp_dim": None, **gated}


def dinov2_ratio(c: ViTConfig) -> int:
    """Return the whole mlp_ratio that gives mlp_dim, 0 if none does; that of gated MLPs is of two thirds of it."""
    for ratio in range(1, 65):
        hidden = c.width * ratio
        if c.mlp_dim == (((int(hidden * 2 / 3) + 7) // 8 * 8) if c.mlp == "gated" else hidden):
            return ratio
    return 0


def write_dinov2(c: ViTConfig) -> dict[str, Any]:
    own: dict[str, Any] = {
        "mlp_ratio": dinov2_ratio(c),
        "use_swiglu_ffn": c.mlp == "gated",
        "qkv_bias": c.qkv_bias == "all",
    }
    if c.mlp == "gated":
        own["hidden_act"] = "gelu"  # not used
    return own | ({"num_register_tokens": c.registers} if c.registers else {})


def dinov2_misfit(c: ViTConfig) -> str:
    if not c.layer_scale:
        return "no layer_scale"
    if not dinov2_ratio(c):
        return f"mlp_dim={c.mlp_dim}, which is no whole multiple of the width {c.width}"
    if c.classes and c.pool != "token_and_mean":
        return f"pool={c.pool} with a classifier"
    if not c.classes and c.pool != "token":
        return f"pool={c.pool} without a classifier"
    return f"activation={c.activation} in gated MLPs" if c.mlp == "gated" and c.activation != "silu" else ""


def read_dinov3(content: Content, t: Tensors, where: str) -> dict[str, Any]:
    k, v = (f"layer.0.attention.{name}_proj.bias" in t for name in "kv")  # q is as v: see from_dinov3
    moves = {"shift": content.get("pos_embed_shift"), "jitter": content.get("pos_embed_jitter")}
    moves["rescale"] = content.get("pos_embed_rescale", None if "pos_embed_rescale" in content else 2.0)
    rotary = RotaryConfig(
        kind="unit",
        base=float(content.get("rope_theta", 100.0)),
        pairs="halves",
        shift=float(moves["shift"] or 0),
        jitter=float(moves["jitter"] or 1),
        rescale=float(moves["rescale"] or 1),
    )
    return {"rotary": rotary, "qkv_bias": "all" if k else "qv" if v else "none"}


def write_dinov3(c: ViTConfig) -> dict[str, Any]:
    assert c.rotary is not None
    r = c.rotary
    return {
        "query_bias": c.qkv_bias != "none",
        "key_bias": c.qkv_bias == "all",
        "value_bias": c.qkv_bias != "none",
        "proj_bias": c.dense_bias,
        "mlp_bias": c.dense_bias,
        "use_gated_mlp": c.mlp == "gated",
        "num_register_tokens": c.registers,
        "rope_theta": r.base,
        "pos_embed_shift": r.shift or None,
        "pos_embed_jitter": r.jitter if r.jitter != 1 else None,
        "pos_embed_rescale": r.rescale if r.rescale != 1 else None,
    }


def dinov3_misfit(c: ViTConfig) -> str:
    r = c.rotary
    if r is None or (r.kind, r.pairs, r.offset) != ("unit", "halves", 0.0) or c.positions != "none":
        return "other positions than rotary ones of kind unit with pairs of halves"
    return "" if c.layer_scale and not c.classes else "a classifier" if c.classes else "no layer_scale"


DINO: tuple[Family, ...] = (
    Family(
        "dinov2", "Dinov2Model", "Dinov2ForImageClassification", "dinov2.", DINOV2, TOKEN, EXACT_6,
        pools=("token", "token_and_mean"), parts=(
            "layer_scale", "mlp", "pool=token_and_mean", "qkv_bias=none",
        ),
        used=DROPOUTS | DROP_PATH | {"layerscale_value": "layer_scale"}, harmless=BACKBONE | {"mlp_ratio"},
        left_out=("embeddings.mask_token",), read=read_dinov2, write=write_dinov2, straighten=from_gated_names,
        bend=fold_registers, misfit=dinov2_misfit, images=CROPPED | IMAGENET_LISTS,
    ),
    Family(
        "dinov2_with_registers", "Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification",
        "dinov2_with_registers.", DINOV2, TOKEN, EXACT_6, pools=("token", "token_and_mean"), parts=(
            "layer_scale", "mlp", "pool=token_and_mean", "registers", "qkv_bias=none",
        ),
        used=DROPOUTS | DROP_PATH | {"layerscale_value": "layer_scale"}, harmless=BACKBONE | {"mlp_ratio"},
        left_out=("embeddings.mask_token",), read=read_dinov2, write=write_dinov2, straighten=from_gated_names,
        bend=fold_registers, images=CROPPED | IMAGENET_LISTS,
        misfit=lambda c: dinov2_misfit(c) or ("" if c.registers else "no registers"),
    ),
    Family(
        "dinov3_vit", "DINOv3ViTModel", "", "", DINOV3, {**TOKEN, "positions": "none"},
        {"activation": "gelu", "norm_eps": 1e-5}, parts=(
            "layer_scale", "mlp", "registers", "rotary", "qkv_bias", "dense_bias",
        ),
        used=ATTENTION_DROPOUT | DROP_PATH | {"layerscale_value": "layer_scale"},
        harmless=entries(
            "num_register_tokens use_gated_mlp query_bias key_bias value_bias proj_bias mlp_bias "
            "rope_theta pos_embed_shift pos_embed_jitter pos_embed_rescale"
        ),
        left_out=("embeddings.mask_token", "rope_embeddings."), read=read_dinov3, write=write_dinov3,
        straighten=from_dinov3, bend=add_no_registers, misfit=dinov3_misfit, images=IMAGENET_LISTS,
    ),
)  # fmt: skip
