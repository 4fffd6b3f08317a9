"""Our configs -> the name of one of timm's functions, its arguments, and the table of its names.

Arguments are JSON: numbers and texts. What cannot be passed that way (an epsilon, a class of MLPs or of layers) comes
from a function that has it, one of CARRIERS; every size is passed, so the function's own do not matter.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoints.architecture import find_variant, write_fields
from vitrail.checkpoints.checkpoint import Checkpoint
from vitrail.checkpoints.mapping import Table, make_plain, write_weights
from vitrail.checkpoints.timm_functions import DEFAULTS, DROPOUTS, FIELDS, RESNET, ROTARY_KINDS, WORDS
from vitrail.checkpoints.timm_layouts import (
    BIASES,
    BIT,
    FREQUENCIES,
    GAMMAS,
    OURS,
    PACKED_GATE,
    QV_BIAS,
    ROOT_ALONE,
    SHARED_BIAS,
    TWINS,
    TWO_GATES,
    VIT,
    first_rows_first,
    join_parallel,
    split_heads,
)
from vitrail.errors import CheckpointError
from vitrail.models.hybrid import HybridConfig
from vitrail.models.names import TIMM_SIZES
from vitrail.models.resnet import BiTConfig, StemConfig
from vitrail.models.vit import ViTConfig

# (variant, patch size): timm's function. Others are made by B/16's, with other model_args.
PATCHES = {"tiny": (16,), "small": (32, 16, 8), "base": (32, 16, 8), "large": (32, 16, 14)}
PATCHES |= {"huge": (14,), "giant": (14,), "gigantic": (14,)}
PLAIN: dict[tuple[str, int], str] = {
    (TIMM_SIZES[size], patch): f"vit_{size}_patch{patch}_224" for size in PATCHES for patch in PATCHES[size]
}
# The units of a stem, or of a BiT, cannot be passed as arguments: each function has its own.
STEMS: dict[tuple[int, ...], str] = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
BITS: dict[tuple[int, ...], tuple[str, int]] = {  # with the width factor of the function
    (3, 4, 6, 3): ("resnetv2_50x1_bit", 1),
    (3, 4, 23, 3): ("resnetv2_101x1_bit", 1),
    (3, 8, 36, 3): ("resnetv2_152x2_bit", 2),
}
# Functions that carry what cannot be passed as an argument of a config.json: (class, norm, epsilon, MLPs,
# layers).
CARRIERS: dict[tuple[str, str, float, str, str], str] = {
    ("vit", "layer", 1e-6, "dense", "standard"): "vit_base_patch16_224",
    ("vit", "layer", 1e-5, "dense", "standard"): "vit_base_patch16_clip_224",
    ("vit", "layer", 1e-6, "gated", "standard"): "vit_giant_patch14_dinov2",
    ("vit", "rms", 1e-5, "gated", "standard"): "aimv2_large_patch14_224",
    ("vit", "layer", 1e-6, "dense", "post_norm"): "vit_base_patch16_rpn_224",
    ("vit", "layer", 1e-6, "dense", "parallel"): "vit_base_patch16_xp_224",
    ("vit", "layer", 1e-6, "dense", "twin"): "vit_small_patch16_18x2_224",
    ("deit", "layer", 1e-6, "dense", "standard"): "deit_tiny_distilled_patch16_224",
    ("eva", "layer", 1e-6, "", ""): "eva02_base_patch14_224",
    ("eva", "layer", 1e-5, "", ""): "vit_base_patch16_dinov3",
    ("eva", "rms", 1e-6, "", ""): "vit_base_patch16_sapiens2",
    ("beit", "layer", 1e-6, "", ""): "beit_base_patch16_224",
}

# What each class has of later ViTs.
LAYERS = ("norm", "layer_scale", "mlp", "mlp_norm", "attention_norm", "qk_norm")
HAS: dict[str, tuple[str, ...]] = {
    "vit": (
        *LAYERS, "block=post_norm", "block=parallel", "block=twin", "registers", "embedding_norm", "pre_norm",
        "activation", "norm_at=none", "pool=mean_all", "pool=attention_patches", "qkv_bias=none", "dense_bias",
        "embedding_bias",
    ),
    "deit": ("layer_scale", "distillation_token", "pool=token_and_distillation", "mlp_norm", "attention_norm"),
    "eva": (
        *LAYERS, "block=post_norm", "registers", "pre_norm", "activation=silu", "norm_at=none", "rotary",
        "pool_heads", "pool_mlp_dim", "embedding_bias",
    ),
    "beit": ("layer_scale", "mlp", "mlp_norm", "activation=silu", "positions=relative_bias", "qkv_bias"),
}  # fmt: skip


def find_class(c: ViTConfig) -> str:
    """Return which of timm's classes has a config's parts."""
    if c.positions == "relative_bias":
        return "beit"
    if c.rotary is not None or c.pool_heads or c.pool_mlp_dim:
        return "eva"
    return "deit" if c.distillation_token else "vit"


def express(checkpoint: Checkpoint) -> tuple[dict[str, Tensor], str, dict[str, Any], list[str]]:
    """Return tensors, function, arguments, and what the reader must set besides."""
    c = checkpoint.config
    if isinstance(c, BiTConfig):
        return write_weights(BIT, checkpoint.weights), *bit_arguments(c)
    kind = find_class(c)
    checkpoint, c = make_plain(checkpoint, f"timm ({kind})", tanh=False, parts=HAS[kind])
    if kind == "beit":
        checkpoint, c = without_key_biases(checkpoint, c)
    elif c.embedding_bias == c.pre_norm:
        checkpoint, c = with_bias_in_place(checkpoint, c)
    refuse_combinations(c, kind)
    arguments = {"eva": eva_arguments, "beit": beit_arguments}.get(kind, vit_arguments)
    function, args, notes = arguments(c)
    t = write_weights(layout(c, kind), checkpoint.weights)
    if c.block == "parallel":
        t = join_parallel(t)
    if c.pool == "token_and_distillation" and c.classes:
        t |= split_heads(t["head.weight"], t["head.bias"])
    return t, function, args, notes


def layout(c: ViTConfig, kind: str) -> Table:
    """Return the table of a class for a config."""
    table = dict(VIT)
    if isinstance(c, HybridConfig) and not c.stem.units:
        table |= ROOT_ALONE
    if c.mlp == "gated":
        del table[f"{OURS}.mlp.fc1"]
        apart = kind == "beit" or (kind == "eva" and c.mlp_norm) or carrier(c, kind).startswith("aimv2")
        table |= TWO_GATES if apart else PACKED_GATE
    if kind in ("eva", "beit"):
        table |= GAMMAS
    if kind == "beit":
        table |= {**QV_BIAS, **(BIASES if c.positions_at == "every" else SHARED_BIAS)}
    if kind == "eva":
        table |= FREQUENCIES
    return first_rows_first({**table, **(TWINS if c.block == "twin" else {})})


def carrier(c: ViTConfig, kind: str) -> str:
    """Return the function for a config: the one with its epsilon if there is one."""
    parts = (c.mlp, c.block) if kind == "vit" else ("dense", "standard") if kind == "deit" else ("", "")
    function = CARRIERS.get((kind, c.norm, c.norm_eps, *parts)) or CARRIERS.get((kind, "layer", 1e-6, *parts))
    if function is None:
        raise CheckpointError(f"timm has no function with {c.block} layers and {c.mlp} MLPs")
    return function


def refuse_combinations(c: ViTConfig, kind: str) -> None:
    """Raise an error for parts that a class has, but not together, or not in every form."""
    problem, r = "", c.rotary
    if c.block in ("post_norm",) and c.layer_scale:
        problem = "layer_scale in layers with norms after their branches"
    elif c.block == "parallel" and (c.mlp != "dense" or c.mlp_norm or c.attention_norm):
        problem = "gated MLPs or inner norms in parallel layers"
    elif kind == "deit" and (c.pool != "token_and_distillation" or not c.classes):
        problem = f"pool={c.pool} and {c.classes or 'no'} classes beside a distillation token"
    elif c.mlp == "gated" and c.pool.startswith("attention"):
        problem = "attention pooling after gated MLPs"
    elif kind in ("eva", "beit") and c.activation != ("silu" if c.mlp == "gated" else "gelu"):
        problem = f"activation={c.activation} in {kind}"
    elif kind == "eva" and c.block == "post_norm" and c.qk_norm:
        problem = "qk_norm in layers with norms after their branches"
    elif r is not None and (r.pairs == "halves") != (r.kind == "unit"):
        problem = f"rotary positions {r.kind} with pairs of {r.pairs}"
    elif r is not None and r.kind == "unit" and r.columns_first:
        problem = "rotary positions unit with columns first"
    elif kind == "beit" and (c.norm_at == "pooled") != (c.pool != "token"):
        problem = f"norm_at={c.norm_at} with pool={c.pool} beside relative biases"
    elif kind == "beit" and c.pool == "attention":
        problem = "attention pooling beside relative biases"
    if problem:
        raise CheckpointError(f"timm has no counterpart for {problem}")


def without_key_biases(checkpoint: Checkpoint, c: ViTConfig) -> tuple[Checkpoint, ViTConfig]:
    """Leave out the biases of keys: they add the same number to all logits of a query, which the softmax cancels."""
    if c.qkv_bias != "all":
        return checkpoint, c
    weights = dict(checkpoint.weights)
    for name in [n for n in weights if n.endswith(".qkv.bias")]:
        b_q, _, b_v = weights.pop(name).chunk(3)
        weights[f"{name.removesuffix('bias')}qv_bias"] = torch.cat([b_q, b_v])
    config = dataclasses.replace(c, qkv_bias="qv")
    return dataclasses.replace(checkpoint, config=config, weights=weights), config


def with_bias_in_place(checkpoint: Checkpoint, c: ViTConfig) -> tuple[Checkpoint, ViTConfig]:
    """Return the model with a bias of its patch embedding exactly if it has no norm before the layers, as timm's.

    A bias that may not be there is added to the positions of all patches.
    """
    weights, D = dict(checkpoint.weights), c.width
    if c.embedding_bias:
        if c.positions != "1d" or c.embedding_norm:
            raise CheckpointError(
                "timm has no biases of patches before a norm, and there is no table to add them to"
            )
        table = weights["positions.table"].clone()  # (1, T, D)
        table[:, c.prefix :] += weights.pop("embedding.bias")
        weights["positions.table"] = table
    else:
        weights["embedding.bias"] = torch.zeros(D)
    config = dataclasses.replace(c, embedding_bias=not c.embedding_bias)
    return dataclasses.replace(checkpoint, config=config, weights=weights), config


def common_arguments(c: ViTConfig) -> dict[str, Any]:
    fields = {theirs: FIELDS[theirs] for theirs in ("num_heads", *DROPOUTS)}
    return {
        "patch_size": c.patch_size,
        "embed_dim": c.width,
        "depth": c.depth,
        "class_token": bool(c.class_token),
        "mlp_ratio": mlp_ratio(c.width, c.mlp_dim),
        **{name: value for name, value in write_fields(c, fields, WORDS).items() if value},  # no rates of 0
        **({"pos_drop_rate": c.dropout} if c.dropout else {}),
        **({"init_values": c.layer_scale} if c.layer_scale else {}),
    }


def vit_arguments(c: ViTConfig) -> tuple[str, dict[str, Any], list[str]]:
    """Return the name of a function, its arguments, and what the reader must set besides."""
    function = carrier(c, find_class(c))
    notes: list[str] = []
    plain = function == CARRIERS["vit", "layer", 1e-6, "dense", "standard"]
    args = common_arguments(c) | {
        "act_layer": c.activation,
        "fc_norm": c.norm_at == "pooled",
        "global_pool": "token"
        if c.pool.startswith("token")
        else "avg"
        if c.pool.startswith("mean")
        else "map",
    }
    if c.pool in ("mean_all", "attention") and c.prefix:
        args["pool_include_prefix"] = True
    if c.positions == "none":
        args["pos_embed"] = "none"
    # Whether other functions than the plain one have these or not: they are said.
    optional: dict[str, Any] = {
        "qkv_bias": c.qkv_bias != "none", "pre_norm": c.pre_norm, "qk_norm": c.qk_norm, "reg_tokens": c.registers,
        "scale_attn_norm": c.attention_norm, "scale_mlp_norm": c.mlp_norm, "proj_bias": c.dense_bias,
        "final_norm": c.norm_at != "none", "no_embed_class": False,
    }  # fmt: skip
    usual = {"qkv_bias": True, "proj_bias": True, "final_norm": True}
    args |= {name: v for name, v in optional.items() if not plain or v != usual.get(name, False)}
    args |= {} if c.layer_scale or plain else {"init_values": None}
    if function.startswith(
        "vit_giant_patch14_dinov2"
    ):  # whose MLP takes the width of gate and value together
        args["mlp_ratio"] = mlp_ratio(c.width, 2 * c.mlp_dim)
    has_own_norm = (find_class(c), c.norm, c.norm_eps, c.mlp, c.block) in CARRIERS and c.norm_eps != 1e-6
    if not has_own_norm:
        if c.norm == "rms" or function.endswith("_xp_224"):
            args["norm_layer"] = {"rms": "rmsnorm", "layer": "layernorm"}[c.norm]
        notes = [*notes, *epsilon_notes(c)]
    if c.embedding_norm and not function.startswith("aimv2"):
        args["embed_norm_layer"] = {"rms": "rmsnorm", "layer": "layernorm"}[c.norm]
    elif function.startswith("aimv2") and not c.embedding_norm:
        args["embed_norm_layer"] = None
    if isinstance(c, HybridConfig):
        if c.stem.width_factor != 1 or c.stem.units not in STEMS:
            notes.append(
                no_function(f"a stem of units {c.stem.units} and width factor {c.stem.width_factor}")
            )
        return STEMS.get(c.stem.units, STEMS[3, 4, 9]), args, notes + resnet_notes(c.stem)
    return PLAIN.get((find_variant(c), c.patch_size), function) if plain else function, args, notes


def eva_arguments(c: ViTConfig) -> tuple[str, dict[str, Any], list[str]]:
    """Return the same for the class Eva, all of whose arguments are given."""
    function, r = carrier(c, "eva"), c.rotary
    args = common_arguments(c) | {
        "global_pool": {"token": "token", "mean": "avg", "attention": "map"}[c.pool],
        "img_size": list(c.image_size),
        "num_kv_heads": None,
        "qkv_bias": True,
        "qkv_fused": True,
        "attn_type": "rope",  # which has biases of queries, keys and values
        "qk_norm": c.qk_norm,
        "swiglu_mlp": c.mlp == "gated",
        "swiglu_align_to": 0,
        "scale_mlp": c.mlp_norm,
        "scale_attn_inner": c.attention_norm,
        "init_values": c.layer_scale or None,
        "attn_only_layer_scale": False,
        "num_reg_tokens": c.registers,
        "no_embed_class": False,
        "use_abs_pos_emb": c.positions != "none",
        "use_post_norm": c.block == "post_norm",
        "use_pre_transformer_norm": c.pre_norm,
        "use_post_transformer_norm": c.norm_at == "encoder",
        "use_fc_norm": c.norm_at == "pooled",
        "attn_pool_num_heads": c.pool_heads or c.heads,
        "attn_pool_mlp_ratio": mlp_ratio(c.width, c.pool_mlp_dim or c.mlp_dim),
        "use_rot_pos_emb": r is not None,
        "dynamic_img_size": False,
        "ref_feat_shape": None,
    }
    if r is not None:
        args |= {
            "rope_type": next(theirs for theirs, ours in ROTARY_KINDS.items() if ours == r.kind),
            "rope_temperature": r.base,
            "rope_grid_offset": r.offset,
            "rope_grid_indexing": "xy" if r.columns_first else "ij",
            "rope_rotate_half": r.pairs == "halves",
            "rope_shift_coords": r.shift or None,
            "rope_jitter_coords": r.jitter if r.jitter != 1 else None,
            "rope_rescale_coords": r.rescale if r.rescale != 1 else None,
            "ref_feat_shape": list(r.reference) if r.reference else None,
        }
    known = ("eva", c.norm, c.norm_eps, "", "") in CARRIERS
    if c.norm == "rms" and not known:
        raise CheckpointError(
            f"timm has no function with rotary positions and RMSNorm of epsilon {c.norm_eps}"
        )
    return function, args, [] if known else epsilon_notes(c)


def beit_arguments(c: ViTConfig) -> tuple[str, dict[str, Any], list[str]]:
    """Return the same for the class Beit."""
    args = common_arguments(c) | {
        "global_pool": "token" if c.pool == "token" else "avg",
        "qkv_bias": c.qkv_bias != "none",
        "swiglu_mlp": c.mlp == "gated",
        "scale_mlp": c.mlp_norm,
        "init_values": c.layer_scale or None,
        "use_abs_pos_emb": False,
        "use_rel_pos_bias": c.positions_at == "every",
        "use_shared_rel_pos_bias": c.positions_at == "shared",
    }
    del args["class_token"]  # there always is one
    return carrier(c, "beit"), args, epsilon_notes(c)


def epsilon_notes(c: ViTConfig) -> list[str]:
    if c.norm_eps == DEFAULTS["norm_eps"]:
        return []
    norm = "timm.layers.RmsNorm" if c.norm == "rms" else "torch.nn.LayerNorm"
    return [
        f"the reader must set norm_layer=functools.partial({norm}, eps={c.norm_eps}): "
        f"timm's files have no place for it, and its own is {DEFAULTS['norm_eps']}"
    ]


def bit_arguments(c: BiTConfig) -> tuple[str, dict[str, Any], list[str]]:
    """Return the same for a BiT; a width factor other than the function's is passed as numbers of channels."""
    name, factor = BITS.get(c.units, BITS[3, 4, 6, 3])
    notes = [] if c.units in BITS else [no_function(f"a BiT of units {c.units}")]
    by = c.width_factor / factor
    args: dict[str, Any] = {}
    if by != 1:
        args = {"channels": [int(n * by) for n in (256, 512, 1024, 2048)], "stem_chs": int(64 * by)}
    return name, args, notes + resnet_notes(c)


def mlp_ratio(width: int, mlp_dim: int) -> float:
    """Return a ratio with int(width * ratio) == mlp_dim, as timm computes it."""
    ratio = mlp_dim / width
    return ratio if int(width * ratio) == mlp_dim else math.nextafter(ratio, math.inf)


def no_function(what: str) -> str:
    return f"timm has no function for {what}: build its ResNetV2 by hand, and load model.safetensors into it"


def resnet_notes(c: BiTConfig | StemConfig) -> list[str]:
    ours = dataclasses.asdict(c)
    return [
        f"timm's ResNets have {name} {theirs}, and its files have no place for {ours[name]}: numbers differ a little"
        for name, theirs in RESNET.items()
        if ours[name] != theirs
    ]
