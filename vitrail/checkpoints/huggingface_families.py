"""transformers' Vision Transformers by model_type: the names of their tensors, the entries of their config.json.

One Family for each. An entry of a config.json is used (FIELDS and `used`), harmless (HARMLESS and `harmless`: it
changes nothing that is computed from an image, or the tensors show it too), or refused by its name. `straighten` and
`bend` handle the few tensors that are not one for one of ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.checkpoints.mapping import Entry, Table
from vitrail.checkpoints.timm_layouts import join_heads, split_heads
from vitrail.checkpoints.transforms import IMAGENET
from vitrail.errors import CheckpointError
from vitrail.models.rotary import RotaryConfig
from vitrail.models.vit import ViTConfig

Tensors = dict[str, Tensor]
Content = Mapping[str, Any]
CLIP_IMAGES = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
CROPPED = {"resample": 3, "do_center_crop": True}
IMAGENET_LISTS = {"image_mean": list(IMAGENET["mean"]), "image_std": list(IMAGENET["std"])}


def entries(names: str) -> frozenset[str]:
    return frozenset(names.split())


@dataclass(frozen=True)
class Family:
    model_type: str
    backbone: str  # the class without a classifier
    classifier: str  # the class with one; empty: there is none
    prefix: str  # of all names but the classifier's, in files of models with a classifier
    table: Table
    always: Mapping[str, Any]  # fields of our config that all its models have
    defaults: Mapping[str, Any]  # activation and norm_eps, if config.json leaves them out
    pools: tuple[str, ...] = ("token",)  # ours that it has
    parts: tuple[str, ...] = ("qkv_bias=none",)  # what it has of later ViTs: see mapping.make_plain
    used: dict[str, str] = field(
        default_factory=dict
    )  # entries beside FIELDS: our field; empty: only checked
    harmless: frozenset[str] = frozenset()
    around: str = (
        ""  # model_type of the file of a model with a classifier, in which this is the vision_config
    )
    left_out: tuple[str, ...] = ()  # beginnings of names of tensors that play no part
    images: Mapping[str, Any] = field(default_factory=dict)  # of its image processor, beside those of ViT's
    read: Callable[[Content, Tensors, str], dict[str, Any]] = (
        lambda content, t, where: {}
    )  # more of our fields
    write: Callable[[ViTConfig], dict[str, Any]] = lambda c: {}  # more entries
    straighten: Callable[[Tensors], Tensors] = lambda t: t
    bend: Callable[[Tensors, ViTConfig], Tensors] = lambda t, c: t
    misfit: Callable[[ViTConfig], str] = lambda c: ""  # what it cannot express of a config whose parts it has


# Entries of config.json for all families: our field (empty: only checked), and our words for some of their values.
FIELDS: dict[str, str] = {
    "hidden_size": "width", "num_hidden_layers": "depth", "num_attention_heads": "heads",
    "intermediate_size": "mlp_dim", "hidden_act": "activation", "layer_norm_eps": "norm_eps",
    "patch_size": "patch_size", "num_channels": "channels",
}  # fmt: skip
DROPOUTS = {"hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout"}
ATTENTION_DROPOUT = {"attention_dropout": "attention_dropout"}
DROP_PATH = {"drop_path_rate": "drop_path"}
WORDS: dict[str, dict[str, str]] = {
    "hidden_act": {
        "gelu": "gelu", "gelu_python": "gelu",
        "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
        "quick_gelu": "quick_gelu", "silu": "silu", "swish": "silu",
    },
    "pooler_act": {"tanh": "tanh"},
}  # fmt: skip
# Entries that say what a file is, or concern training and generating text alone.
HARMLESS = frozenset(
    [
        "architectures",
        "model_type",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "image_size",
        "id2label",
        "label2id",
        "problem_type",
        "initializer_range",
        "initializer_factor",
        "num_labels",
        "_name_or_path",
        "_commit_hash",
        "_attn_implementation",
        "_attn_implementation_autoset",
        "return_dict",
        "output_hidden_states",
        "output_attentions",
        "torchscript",
        "use_bfloat16",
        "tf_legacy_loss",
        "pruned_heads",
        "tie_word_embeddings",
        "chunk_size_feed_forward",
        "is_encoder_decoder",
        "is_decoder",
        "cross_attention_hidden_size",
        "add_cross_attention",
        "tie_encoder_decoder",
        "max_length",
        "min_length",
        "do_sample",
        "early_stopping",
        "num_beams",
        "num_beam_groups",
        "diversity_penalty",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "repetition_penalty",
        "length_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "num_return_sequences",
        "output_scores",
        "return_dict_in_generate",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "suppress_tokens",
        "begin_suppress_tokens",
        "finetuning_task",
        "tokenizer_class",
        "prefix",
        "bos_token_id",
        "pad_token_id",
        "eos_token_id",
        "sep_token_id",
        "decoder_start_token_id",
        "task_specific_params",
        "license",
        "encoder_stride",
        "gradient_checkpointing",
        "out_features",
        "out_indices",
        "stage_names",
        "apply_layernorm",
        "reshape_hidden_states",
        "_out_features",
        "_out_indices",
    ]
)

# --- names ---

LAYER, ATTENTION = "encoder.layer.{i}", "encoder.layer.{i}.attention.attention"
BLOCK = "encoder.blocks.{i}"
QKV = tuple(f"{ATTENTION}.{name}" for name in ("query", "key", "value"))
COMMON: Table = {
    "embedding": "embeddings.patch_embeddings.projection",
    "cls": "embeddings.cls_token",
    "positions.table": "embeddings.position_embeddings",
    f"{BLOCK}.attention.qkv": QKV,
    f"{BLOCK}.attention.out": f"{LAYER}.attention.output.dense",
    "encoder.norm": "layernorm",
    "head.pre_logits": "pooler.dense",
    "head.classifier": "classifier",
}
VIT: Table = {
    **COMMON,
    f"{BLOCK}.norm1": f"{LAYER}.layernorm_before",
    f"{BLOCK}.norm2": f"{LAYER}.layernorm_after",
    f"{BLOCK}.mlp.fc1": f"{LAYER}.intermediate.dense",
    f"{BLOCK}.mlp.fc2": f"{LAYER}.output.dense",
}
DEIT: Table = {**VIT, "distillation": "embeddings.distillation_token"}
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
BEIT: Table = {
    **{ours: row for ours, row in VIT.items() if ours != f"{BLOCK}.attention.qkv"},
    f"{BLOCK}.attention.qkv.weight": tuple(f"{name}.weight" for name in QKV),
    f"{BLOCK}.attention.qkv.qv_bias": (f"{QKV[0]}.bias", f"{QKV[2]}.bias"),
    f"{BLOCK}.scale1.gamma": f"{LAYER}.lambda_1",
    f"{BLOCK}.scale2.gamma": f"{LAYER}.lambda_2",
    "encoder.positions.{i}.table": f"{ATTENTION}.relative_position_bias.relative_position_bias_table",
    "pooled_norm": "pooler.layernorm",
}

# --- what is not one tensor for one of ours ---


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


# --- entries that one field of ours does not hold ---


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


def read_deit(content: Content, t: Tensors, where: str) -> dict[str, Any]:
    joined = "classifier.weight" in t and t["classifier.weight"].shape[1] == 2 * len(t["layernorm.weight"])
    return {"pool": "token_and_distillation" if joined else "token"}


# --- families ---

TOKEN: dict[str, Any] = {"pool": "token", "class_token": True, "positions": "1d"}
PATCHES: dict[str, Any] = {"class_token": False, "positions": "1d"}
POOLER = {"pooler_act": ""}
POOLED = frozenset({"pooler_output_size", "qkv_bias"})
BACKBONE = frozenset({"qkv_bias", "use_mask_token", "use_swiglu_ffn", "num_register_tokens"})
EXACT_12, EXACT_6 = {"activation": "gelu", "norm_eps": 1e-12}, {"activation": "gelu", "norm_eps": 1e-6}
SIGLIP_DEFAULTS = {"activation": "gelu_tanh", "norm_eps": 1e-6}


FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
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
    )
}  # fmt: skip
# Models with a text tower: the vision tower is read, which config.json describes under vision_config.
TOWERS = {
    "clip": "clip_vision_model", "siglip": "siglip_vision_model", "siglip2": "siglip2_vision_model",
    "metaclip_2": "clip_vision_model", "metaclip_2_vision_model": "clip_vision_model",
}  # fmt: skip
TEXT = ("text_model.", "text_projection.", "logit_scale", "logit_bias")
