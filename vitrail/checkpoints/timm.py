"""timm's checkpoints <-> ours: a state dict, alone or in a folder with timm's config.json.

    architecture    one of timm's functions, with settings of its own
    model_args      arguments that are passed to it
    pretrained_cfg  input_size (C, H, W), interpolation, crop_pct, crop_mode, mean, std, label_names

The sizes are read off the tensors. What leaves no trace in them comes from the caller or the config file. Without
both, a model with a class token is like all of timm's: exact GELU, LayerNorm 1e-6; in stems and BiTs GroupNorm 1e-5
and weights over sqrt(var + 1e-8); images prepared as for timm's own weights of this paper: mean and std 0.5, bicubic,
90% of the short side (all of it beyond 224 pixels). A note says so. Models without a class token differ among
themselves: heads and activation must be given.

Folders are written for timm.create_model("local-dir:FOLDER", pretrained=True). Every size goes into model_args, so
that any of timm's functions of the right kind makes the model; the nearest is named.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from vitrail.checkpoints import torch_files
from vitrail.checkpoints.architecture import (
    NO_HINTS,
    Hints,
    Inference,
    Size,
    find_variant,
    read_fields,
    write_fields,
)
from vitrail.checkpoints.checkpoint import Checkpoint
from vitrail.checkpoints.json_files import Number, check_entries, list_class_names
from vitrail.checkpoints.license import complete_license, find_license, stated_license
from vitrail.checkpoints.mapping import Entry, Table, make_plain, read_weights, write_weights
from vitrail.checkpoints.torch_files import WeightFiles
from vitrail.checkpoints.transforms import HALF, IMAGENET, Transform, line_to_transform, triple
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.hybrid import HybridConfig
from vitrail.models.names import TIMM_SIZES, Config
from vitrail.models.resnet import BiTConfig, StemConfig
from vitrail.models.vit import VARIANTS, ViTConfig
from vitrail.runtime.log import note

CONFIG = "config.json"
BACKBONE = "patch_embed.backbone"
UNIT = {name: name for name in ("conv1", "conv2", "conv3", "norm1", "norm2", "norm3")}
UNIT |= {"projection": "downsample.conv", "projection_norm": "downsample.norm"}
VIT: Table = {
    "stem.root.conv": f"{BACKBONE}.stem.conv",
    "stem.root.norm": f"{BACKBONE}.stem.norm",
    **{f"stem.stages.{{s}}.{{u}}.{a}": f"{BACKBONE}.stages.{{s}}.blocks.{{u}}.{b}" for a, b in UNIT.items()},
    "embedding": "patch_embed.proj",
    "cls": "cls_token",
    "positions.table": "pos_embed",
    "encoder.blocks.{i}.norm1": "blocks.{i}.norm1",
    "encoder.blocks.{i}.attention.qkv": "blocks.{i}.attn.qkv",
    "encoder.blocks.{i}.attention.out": "blocks.{i}.attn.proj",
    "encoder.blocks.{i}.norm2": "blocks.{i}.norm2",
    "encoder.blocks.{i}.mlp.fc1": "blocks.{i}.mlp.fc1",
    "encoder.blocks.{i}.mlp.fc2": "blocks.{i}.mlp.fc2",
    "encoder.norm": "norm",
    "pooled_norm": "fc_norm",
    "attention_pool.probe": "attn_pool.latent",
    "attention_pool.out": "attn_pool.proj",
    **{f"attention_pool.{name}": f"attn_pool.{name}" for name in ("q", "kv", "norm", "mlp.fc1", "mlp.fc2")},
    "head.pre_logits": "pre_logits.fc",
    "head.classifier": "head",
}
# A stem without stages is the root alone, and its names are one level shorter.
ROOT_ALONE: Table = {
    **VIT,
    "stem.root.conv": f"{BACKBONE}.conv",
    "stem.root.norm": f"{BACKBONE}.norm",
}
BIT: Table = {
    "root.conv": "stem.conv",
    **{f"stages.{{s}}.{{u}}.{a}": f"stages.{{s}}.blocks.{{u}}.{b}" for a, b in UNIT.items()},
    "norm": "norm",
    "head.classifier.weight": Entry(  # a convolution: (classes, D, 1, 1) <-> (classes, D)
        ("head.fc.weight",), lambda w: w.squeeze(3).squeeze(2), lambda w: w[:, :, None, None]
    ),
    "head.classifier.bias": "head.fc.bias",
}

DEFAULTS: dict[str, Any] = {"activation": "gelu", "norm_eps": 1e-6}
# Group normalisation and weight standardisation in stems and in BiTs.
RESNET: dict[str, Any] = {"norm_eps": 1e-5, "standardisation": "sqrt_var", "standardisation_eps": 1e-8}
# Our words for the values of some arguments, and our fields.
POOLS = {"token": "token", "avg": "mean", "map": "attention"}
WORDS: dict[str, dict[str, str]] = {
    "act_layer": {"gelu": "gelu", "gelu_tanh": "gelu_tanh"},
    "norm_layer": {"layernorm": "layernorm"},
    "global_pool": POOLS,
}
DROPOUTS = {"proj_drop_rate": "dropout", "attn_drop_rate": "attention_dropout", "drop_path_rate": "drop_path"}
FIELDS: dict[str, str] = {  # their argument: our field; empty: only checked
    "num_heads": "heads", "act_layer": "activation", "global_pool": "pool", "norm_layer": "", **DROPOUTS,
}  # fmt: skip
READ = {*FIELDS, "img_size", "pool_include_prefix"}
LEAST_CROP = 0.01  # crop_pct: images are scaled to the model's size over it

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
# Arguments in which some of timm's functions differ from the others of their kind.
QUIRKS: dict[str, dict[str, Any]] = {
    r"test_vit": {"num_heads": 2},
    r"vit_base_patch16_gap_224": {"num_heads": 16},
    r"vit_(base_patch32|giantopt_patch16|so400m_patch16)_siglip_.*": {"act_layer": "gelu_tanh"},
    r"vit_large_patch16_siglip(_gap)?_512": {"act_layer": "gelu_tanh"},
    r"vit_base_patch16_rpn_224": {"block_fn": "ResPostBlock"},
}
# Functions that a test compares with timm's: what they leave open is as in QUIRKS, else exact GELU, 1e-6.
KNOWN = re.compile(
    r"(vit|deit)_(tiny|small|base|large|huge|giant|gigantic)_patch\d+_\d+(_miil)?|flexivit_(small|base|large)"
    r"|vit_(base|large|so400m|giantopt)_patch\d+_siglip(_gap)?_\d+|vit_(base|huge|giant)_patch\d+_gap_\d+"
    r"|vit_(tiny|small|base|large)_r\d*_s\d+(_p8)?_\d+|eva_large_patch14_\d+|test_vit|resnetv2_\d+x\d_bit"
)
# model_args that the tensors show too, or that only concern training; and those that are read.
TRACED = {
    "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "mlp_ratio", "qkv_bias", "class_token",
    "pos_embed", "no_embed_class", "reg_tokens", "pre_norm", "init_values", "qk_norm", "fc_norm", "channels",
    "stem_chs", "drop_rate", "pos_drop_rate", "patch_drop_rate", "weight_init", "fix_init", "zero_init_last",
    "dynamic_img_size", "dynamic_img_pad",
}  # fmt: skip
# What timm uses for a pretrained_cfg that leaves it open; and for weights without one: of BiTs, and of ViTs of at
# most 224 pixels (beyond that, crop_pct is 1).
UNSTATED: dict[str, Any] = {"interpolation": "bicubic", "crop_pct": 0.875, **IMAGENET}
BIT_IMAGES: dict[str, Any] = {"interpolation": "bilinear", "crop_pct": 0.875, "mean": HALF, "std": HALF}
VIT_IMAGES: dict[str, Any] = {"interpolation": "bicubic", "crop_pct": 0.9, "mean": HALF, "std": HALF}
# Parts that timm's models can have and ours cannot, by a piece of the name.
FOREIGN: dict[str, str] = {
    ".gamma": "LayerScale", "reg_token": "register tokens", "dist_token": "a distillation token",
    "norm_pre.": "a LayerNorm before the encoder", ".q_norm.": "normalised queries and keys",
    ".attn.norm.": "norms inside attention and MLPs", "rel_pos": "relative positions in windows",
    "mlp.w12.": "gated MLPs", "mlp.fc1_g.": "gated MLPs", "running_mean": "batch norms",
}  # fmt: skip
# Entries of config.json, of its model_args and of its pretrained_cfg.
SCHEMA: dict[str, Any] = {
    "architecture": str, "model_args": dict[str, Any], "pretrained_cfg": dict[str, Any], "global_pool": str,
    "label_names": list[str] | dict[str, str], "label_descriptions": dict[str, str],
    "input_size": tuple[int, int, int], "interpolation": str, "crop_pct": Number, "crop_mode": str,
    "mean": list[Number], "std": list[Number],
    "img_size": int | tuple[int, int], "num_heads": int, "act_layer": str, "norm_layer": str,
    "pool_include_prefix": bool, **dict.fromkeys(DROPOUTS, Number),
}  # fmt: skip


# --- reading ---


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return "patch_embed.proj.weight" in tensors or "stages.0.blocks.0.conv1.weight" in tensors


def read(files: WeightFiles, hints: Hints = NO_HINTS, *, image_size: Size | None = None) -> Checkpoint:
    """Read a checkpoint. `image_size` is needed only if neither the config file nor a square grid gives it."""
    t, where = files.tensors, files.where
    if foreign := sorted({what for piece, what in FOREIGN.items() if any(piece in key for key in t)}):
        raise CheckpointError(f"{where} has {', '.join(foreign)}, for which there is no counterpart here")
    architecture, args, pretrained = read_config(files.configs.get(CONFIG), where)
    is_vit, known = "patch_embed.proj.weight" in t, bool(KNOWN.fullmatch(architecture))
    stated = function_heads(architecture) | read_fields(args, FIELDS, WORDS, where)
    size = args.get("img_size", (pretrained or {}).get("input_size", ())[1:]) or None
    inference = Inference(where, hints, image_size, stated, size, DEFAULTS, known, RESNET, True)
    if is_vit and "cls_token" not in t and not known:
        check_enough_is_stated(t, inference)
    table = BIT if not is_vit else ROOT_ALONE if f"{BACKBONE}.conv.weight" in t else VIT
    config = inference.infer(table, t)
    if isinstance(config, ViTConfig):
        there, pool = bool(args.get("pool_include_prefix")), config.pool
        if config.class_token and pool != "token" and there != (pool == "attention"):
            here = "the probe attends to all tokens" if there is False else "the mean is of the patches only"
            raise CheckpointError(
                f"{where}: with a class token, here {here}; pool_include_prefix={there} there"
            )
        positions = t.get("pos_embed")
        if config.class_token and positions is not None and positions.shape[1] == config.tokens - 1:
            t = {**t, "pos_embed": F.pad(positions, (0, 0, 1, 0))}  # (1, 1 + N, D)
    weights = read_weights(table, t, config, where, zeros="attention.qkv.bias")
    class_names = None
    if pretrained and (labels := pretrained.get("label_names")):
        words = pretrained.get("label_descriptions") or {}
        labels = list_class_names(labels, "label_names", config.classes, where)
        class_names = [words.get(label, label) for label in labels]
    line = preprocessing(pretrained, config)
    if pretrained is None and line:
        inference.assumed["preprocess"] = line
    provenance = inference.provenance("timm", files, architecture or None)
    license = find_license(files.configs.get(CONFIG))
    return Checkpoint(config, weights, line, class_names, provenance, license=license)


def read_config(
    content: dict[str, Any] | None, where: str
) -> tuple[str, dict[str, Any], dict[str, Any] | None]:
    """Return architecture, arguments and pretrained_cfg; nothing without a file."""
    if content is None:
        return "", {}, None
    content = check_entries(content, SCHEMA, where)
    if "architecture" not in content:
        raise CheckpointError(f"{where}: the config.json beside it is not timm's: it names no architecture")
    architecture = content["architecture"].split(".")[0]
    pretrained = check_entries(content.get("pretrained_cfg", content), SCHEMA, where)  # flat in old files
    args = next((args for pattern, args in QUIRKS.items() if re.fullmatch(pattern, architecture)), {})
    if content.get("global_pool"):
        args = args | {"global_pool": content["global_pool"]}
    args = args | check_entries(content.get("model_args", {}), SCHEMA, where)
    if unknown := sorted(set(args) - TRACED - READ):
        raise CheckpointError(f"{where}: {architecture} with {', '.join(unknown)} has no counterpart here")
    labels = {key: value for key, value in content.items() if key in ("label_names", "label_descriptions")}
    return architecture, args, pretrained | labels


def function_heads(architecture: str) -> dict[str, Any]:
    """Return the heads that all of timm's functions for a size have."""
    size = re.match(r"(vit|deit|flexivit|eva)_([a-z0-9]+)(_|$)", architecture)
    variant = TIMM_SIZES.get(size[2]) if size else None
    return {"heads": VARIANTS[variant][3]} if variant else {}


def check_enough_is_stated(t: Mapping[str, Tensor], inference: Inference) -> None:
    """Refuse to guess if timm's own functions differ for the same tensors: without a class token."""
    where, hints, stated = inference.where, inference.hints, inference.stated
    beside = "put timm's config.json, which names the architecture, beside it"
    if "blocks.0.attn.qkv.bias" not in t:
        raise CheckpointError(
            f"{where} has neither a class token nor biases of q, k and v: such models of timm normalise "
            f"before each layer or, as vit_base_patch16_rpn_224, after it, which has no counterpart here; {beside}"
        )
    needed = {"heads": "heads=", "activation": "activation=gelu or =gelu_tanh"}
    if missing := [needed[name] for name in needed if name not in stated and getattr(hints, name) is None]:
        raise CheckpointError(
            f"{where} has no class token, and timm's models without one differ in what tensors do not show: "
            f"pass {' and '.join(missing)} (vitrail convert writes a bundle with them), or {beside}"
        )


def preprocessing(pretrained: dict[str, Any] | None, config: Config) -> str:
    """Return the line of timm.data.create_transform for this model; empty, with a note, if there is none."""
    if config.channels != 3:
        return ""
    height, width = config.image_size
    if pretrained is not None:
        settings = UNSTATED | {key: value for key, value in pretrained.items() if value}
    elif isinstance(config, BiTConfig):
        settings = BIT_IMAGES
    else:
        settings = VIT_IMAGES | ({"crop_pct": 1.0} if min(height, width) > 224 else {})
    mode = settings.get("crop_mode", "center")
    if mode not in ("center", "squash"):
        note(f"timm prepares this model's images with crop_mode {mode!r}, which has no counterpart here")
        return ""
    if mode == "center" and height != width:
        # timm scales until both sides cover the crop; of the ops here, the short side at the longer comes nearest.
        note("timm's preprocessing for images that are not square is matched only approximately")
    try:
        if not settings["crop_pct"] >= LEAST_CROP:
            raise ConfigError(f"crop_pct {settings['crop_pct']} is not at least {LEAST_CROP}")
        scaled = tuple(math.floor(side / settings["crop_pct"]) for side in (height, width))
        resize = max(scaled) if mode == "center" else (scaled[0], scaled[1])
        mean, std = (triple(tuple(settings[key])) for key in ("mean", "std"))
        return Transform(resize, (height, width), settings["interpolation"], mean, std).line()
    except ConfigError as error:
        note(f"this model's preprocessing has no counterpart here: {error}")
        return ""


# --- writing ---


def write(checkpoint: Checkpoint, path: Path) -> list[str]:
    """Write a folder for timm's local-dir and hf-hub sources; return what its reader must set by hand."""
    if isinstance(checkpoint.config, ViTConfig):
        checkpoint, _ = make_plain(checkpoint, "timm", tanh=False)
    c = checkpoint.config
    if isinstance(c, BiTConfig):
        table, (architecture, args, notes) = BIT, bit_arguments(c)
    else:
        table = ROOT_ALONE if isinstance(c, HybridConfig) and not c.stem.units else VIT
        architecture, args, notes = vit_arguments(c)
    settings, more = pretrained_settings(checkpoint)
    if stated := stated_license(checkpoint.license).get("weights"):
        settings["license"] = stated  # where timm keeps it
    content: dict[str, Any] = {
        "architecture": architecture,
        "num_classes": c.classes,
        "num_features": c.width,
        "global_pool": args.get("global_pool", "avg"),
        "model_args": args,
        "pretrained_cfg": settings,
        "license": complete_license(checkpoint.license),
    }
    if checkpoint.class_names is not None:
        content["label_names"] = checkpoint.class_names
    tensors = write_weights(table, checkpoint.weights)
    torch_files.save_folder(path, tensors, {CONFIG: content}, checkpoint.license)
    return notes + more


def reader_line(checkpoint: Checkpoint) -> str:
    """Return the line of timm.data.create_transform for the config.json that is written."""
    settings, _ = pretrained_settings(checkpoint)
    return preprocessing(settings, checkpoint.config)


def vit_arguments(c: ViTConfig) -> tuple[str, dict[str, Any], list[str]]:
    """Return the name of a function, its arguments, and what the reader must set besides."""
    args: dict[str, Any] = {
        "patch_size": c.patch_size,
        "embed_dim": c.width,
        "depth": c.depth,
        "mlp_ratio": mlp_ratio(c.width, c.mlp_dim),
        "class_token": bool(c.class_token),
        "fc_norm": c.norm_at == "pooled",
        **{name: value for name, value in write_fields(c, FIELDS, WORDS).items() if value},  # no rates of 0
    }
    if c.positions == "none":
        args["pos_embed"] = "none"
    if c.pool == "attention" and c.class_token:
        args["pool_include_prefix"] = True  # the class token is one of the tokens that the probe attends to
    if c.dropout:
        args["pos_drop_rate"] = c.dropout
    notes = []
    if c.norm_eps != DEFAULTS["norm_eps"]:
        notes.append(
            f"the reader must set norm_layer=functools.partial(torch.nn.LayerNorm, eps={c.norm_eps}): "
            f"timm's files have no place for it, and its own is {DEFAULTS['norm_eps']}"
        )
    if not isinstance(c, HybridConfig):
        return PLAIN.get((find_variant(c), c.patch_size), PLAIN["B", 16]), args, notes
    if c.stem.width_factor != 1 or c.stem.units not in STEMS:
        notes.append(no_function(f"a stem of units {c.stem.units} and width factor {c.stem.width_factor}"))
    return STEMS.get(c.stem.units, STEMS[3, 4, 9]), args, notes + resnet_notes(c.stem)


def bit_arguments(c: BiTConfig) -> tuple[str, dict[str, Any], list[str]]:
    """Return the same for a BiT; a width factor other than the function's is passed as numbers of channels."""
    name, factor = BITS.get(c.units, BITS[3, 4, 6, 3])
    notes = [] if c.units in BITS else [no_function(f"a BiT of units {c.units}")]
    by = c.width_factor / factor
    args: dict[str, Any] = {}
    if by != 1:
        args = {"channels": [int(n * by) for n in (256, 512, 1024, 2048)], "stem_chs": int(64 * by)}
    return name, args, notes + resnet_notes(c)


def pretrained_settings(checkpoint: Checkpoint) -> tuple[dict[str, Any], list[str]]:
    """Return the pretrained_cfg, and where it differs from the model's preprocessing."""
    c = checkpoint.config
    vit = isinstance(c, ViTConfig)
    first_conv = "patch_embed.proj" if vit else "stem.conv"
    settings: dict[str, Any] = {
        "num_classes": c.classes,
        "input_size": [c.channels, *c.image_size],
        "fixed_input_size": vit,
        # timm adapts this convolution to images with other than 3 channels; here it fits them already.
        "first_conv": first_conv if c.channels == 3 and not isinstance(c, HybridConfig) else None,
        "classifier": "head" if vit else "head.fc",
    }
    transform, notes = line_to_transform(checkpoint.preprocess, "nearest")
    if transform is None:
        return settings, notes
    crop = crop_settings(transform, c)
    if crop is None:
        return settings, [f"the reader must prepare images as '{checkpoint.preprocess}'"]
    values = {"interpolation": transform.method, "mean": list(transform.mean), "std": list(transform.std)}
    return settings | crop | values, notes


def crop_settings(t: Transform, c: Config) -> dict[str, Any] | None:
    """Return the part of the resized image that is kept: timm resizes to floor(side / crop_pct)."""
    if (t.crop or t.resize) != c.image_size:
        return None
    if isinstance(t.resize, tuple):
        mode, target = "squash", t.resize
    else:
        mode, target = "center", (t.resize, t.resize)
        if c.image_size[0] != c.image_size[1]:
            return None
    exact = c.image_size[0] / target[0]
    for kept in (exact, math.nextafter(exact, 0)):
        if all(math.floor(side / kept) == goal for side, goal in zip(c.image_size, target, strict=True)):
            return {"crop_pct": kept, "crop_mode": mode}
    return None


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
