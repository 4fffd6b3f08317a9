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

from torch import Tensor

from vitrail.checkpoints import torch_files
from vitrail.checkpoints.architecture import NO_HINTS, Hints, Inference, Size, read_fields
from vitrail.checkpoints.checkpoint import Checkpoint
from vitrail.checkpoints.json_files import Number, check_entries, list_class_names
from vitrail.checkpoints.license import complete_license, find_license, stated_license
from vitrail.checkpoints.mapping import read_weights
from vitrail.checkpoints.original_files import CLIP_ARGUMENTS, CLIP_FIRST, CLIP_IMAGES
from vitrail.checkpoints.timm_functions import (
    DEFAULTS,
    DROPOUTS,
    FIELDS,
    HEADS,
    NEUTRAL,
    OTHER_FUNCTIONS,
    READ,
    RESNET,
    ROTARY,
    ROTARY_KINDS,
    SIZE,
    TRACED,
    WORDS,
    function_arguments,
)
from vitrail.checkpoints.timm_layouts import BIT, find_table, pad_positions, straighten
from vitrail.checkpoints.timm_writing import express
from vitrail.checkpoints.torch_files import WeightFiles
from vitrail.checkpoints.transforms import HALF, IMAGENET, Transform, cut_rest, line_to_transform, triple
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.hybrid import HybridConfig
from vitrail.models.names import Config
from vitrail.models.resnet import BiTConfig
from vitrail.models.rotary import RotaryConfig
from vitrail.models.vit import ViTConfig
from vitrail.runtime.log import note

CONFIG = "config.json"
LEAST_CROP = 0.01  # crop_pct: images are scaled to the model's size over it

# What timm uses for a pretrained_cfg that leaves it open; and for weights without one: of BiTs, and of ViTs of at
# most 224 pixels (beyond that, crop_pct is 1).
UNSTATED: dict[str, Any] = {"interpolation": "bicubic", "crop_pct": 0.875, **IMAGENET}
BIT_IMAGES: dict[str, Any] = {"interpolation": "bilinear", "crop_pct": 0.875, "mean": HALF, "std": HALF}
VIT_IMAGES: dict[str, Any] = {"interpolation": "bicubic", "crop_pct": 0.9, "mean": HALF, "std": HALF}
# Entries of config.json, of its model_args and of its pretrained_cfg.
SCHEMA: dict[str, Any] = {
    "architecture": str, "model_args": dict[str, Any], "pretrained_cfg": dict[str, Any], "global_pool": str,
    "label_names": list[str] | dict[str, str], "label_descriptions": dict[str, str],
    "input_size": tuple[int, int, int], "interpolation": str, "crop_pct": Number, "crop_mode": str,
    "mean": list[Number], "std": list[Number],
    "img_size": int | tuple[int, int], "num_heads": int, "act_layer": str, "norm_layer": str,
    "pool_include_prefix": bool, **dict.fromkeys(DROPOUTS, Number), "eps": Number, "init_values": Number,
    "attn_pool_num_heads": int, "rope_type": str, "use_rot_pos_emb": bool, "rope_rotate_half": bool,
    "rope_grid_indexing": str, "post_norm": bool, "use_post_norm": bool, "rope_temperature": Number,
    "rope_grid_offset": Number, "ref_feat_shape": int | tuple[int, int],
    "rope_ref_feat_shape": int | tuple[int, int], "rope_shift_coords": Number, "rope_jitter_coords": Number,
    "rope_rescale_coords": Number,
}  # fmt: skip


# --- reading ---


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    firsts = (CLIP_FIRST, "patch_embed.proj.weight", "embeds.proj.weight", "stages.0.blocks.0.conv1.weight")
    return any(name in tensors for name in firsts)


def read(files: WeightFiles, hints: Hints = NO_HINTS, *, image_size: Size | None = None) -> Checkpoint:
    """Read a checkpoint. `image_size` is needed only if neither the config file nor a square grid gives it."""
    where = files.where
    architecture, args, pretrained, ignored = read_config(
        files.configs.get(CONFIG), where, hints.ignore_fields
    )
    known = function_arguments(architecture) is not None
    t = straighten(files.tensors, args.get("num_heads") or hints.heads, where)
    table = find_table(t)
    dinov3 = "rope_embed.periods" in files.tensors  # its own file
    if CLIP_FIRST in files.tensors:
        if hints.activation is None:
            raise CheckpointError(
                f"{where} is CLIP's own file, which does not say which GELU its layers have: pass "
                "activation=quick_gelu (OpenAI's) or =gelu (most of open_clip's)"
            )
        args, pretrained = CLIP_ARGUMENTS | args, CLIP_IMAGES
    elif not known and table is not BIT and not dinov3:
        check_enough_is_stated(t, args, hints, where)
    if dinov3:
        args = {"use_rot_pos_emb": True, "rope_type": "dinov3", "rope_temperature": 100.0, "eps": 1e-5} | args
        args = {"rope_rotate_half": True} | args
    stated = read_fields(args, FIELDS, WORDS, where) | read_layers(args, t, where)
    size = args.get("img_size", (pretrained or {}).get("input_size", ())[1:]) or None
    if (
        "embeds.proj.weight" in files.tensors
    ):  # NaFlexVit's images have any size: read at that of its positions
        size = None
    gated = any(name.endswith(".mlp.gated") for name in table)
    defaults = DEFAULTS | ({"activation": "silu"} if gated else {})
    inference = Inference(where, hints, image_size, stated, size, defaults, known, RESNET, True)
    config = inference.infer(table, t)
    if isinstance(config, ViTConfig):
        config = with_pooling(config, args, "gamma_1" in "".join(t) or "rope_type" in args, where)
        t = pad_positions(t, config.prefix, config.tokens)
    weights = read_weights(table, t, config, where)
    class_names = None
    if pretrained and (labels := pretrained.get("label_names")):
        words = pretrained.get("label_descriptions") or {}
        labels = list_class_names(labels, "label_names", config.classes, where)
        class_names = [words.get(label, label) for label in labels]
    line = preprocessing(pretrained, config, inference.undivided_size(config))
    if pretrained is None and line:
        inference.assumed["preprocess"] = line
    provenance = inference.provenance("timm", files, architecture or None) | ignored
    license = find_license(files.configs.get(CONFIG), files.card)
    return Checkpoint(config, weights, line, class_names, provenance, license=license)


def read_config(
    content: dict[str, Any] | None, where: str, ignore: tuple[str, ...] = ()
) -> tuple[str, dict[str, Any], dict[str, Any] | None, dict[str, Any]]:
    """Return architecture, arguments, pretrained_cfg (none without a file), and the ignored fields for provenance."""
    if content is None:
        return "", {}, None, {}
    content = check_entries(content, SCHEMA, where)
    if "architecture" not in content:
        raise CheckpointError(f"{where}: the config.json beside it is not timm's: it names no architecture")
    architecture = content["architecture"].split(".")[0]
    if other := next((what for pattern, what in OTHER_FUNCTIONS if re.fullmatch(pattern, architecture)), ""):
        raise CheckpointError(f"{where}: {architecture} has {other}")
    pretrained = check_entries(content.get("pretrained_cfg", content), SCHEMA, where)  # flat in old files
    args = dict(function_arguments(architecture) or function_heads(architecture))
    if content.get("global_pool"):
        args |= {"global_pool": content["global_pool"]}
    own = {name: value for name, value in content.get("model_args", {}).items() if name not in ignore}
    replaced = {
        *own,
        *(["eps"] if own.get("norm_layer") else []),
    }  # the function's norm has an epsilon of its own
    args = {name: value for name, value in args.items() if name not in replaced}
    left = sorted(set(content.get("model_args", {})) & set(ignore))
    args |= check_entries(own, SCHEMA, where)
    refused = {name for name, values in NEUTRAL.items() if args.get(name, values[0]) not in values}
    if unknown := sorted(set(args) - TRACED - READ - set(NEUTRAL) | refused):
        raise CheckpointError(
            f"{where}: {architecture} with {', '.join(unknown)} has no counterpart here (--ignore-field NAME reads "
            "it as if it were not there; its numbers may differ)"
        )
    labels = {key: value for key, value in content.items() if key in ("label_names", "label_descriptions")}
    return architecture, args, pretrained | labels, {"ignored_fields": left} if left else {}


def read_layers(args: Mapping[str, Any], t: Mapping[str, Tensor], where: str) -> dict[str, Any]:
    """Return the fields that several arguments decide together: the order of norms, and rotary positions."""
    fields: dict[str, Any] = {}
    if args.get("post_norm") or args.get("use_post_norm"):
        fields["block"] = "post_norm"
    kind = args.get("rope_type", "cat")
    if not args.get("use_rot_pos_emb", "rope_type" in args) or kind in ("", "none"):
        return fields
    if kind not in ROTARY_KINDS:
        raise CheckpointError(f"{where}: rope_type {kind!r} is not one of {', '.join(ROTARY_KINDS)}")
    halves = bool(args.get("rope_rotate_half"))
    if halves != (kind == "dinov3"):
        raise CheckpointError(
            f"{where}: rope_rotate_half={halves} with rope_type {kind!r} has no counterpart here"
        )
    own = {ours: args[theirs] for theirs, ours in ROTARY.items() if args.get(theirs) is not None}
    if isinstance(own.get("reference"), int):
        own["reference"] = (own["reference"], own["reference"])
    without: tuple[str, ...] = (
        () if kind == "dinov3" else ("shift", "jitter", "rescale")
    )  # that it does not use
    without += {"grid": (), "unit": ("reference",), "learned": ("reference", "offset")}[ROTARY_KINDS[kind]]
    for name in without:
        own.pop(name, None)
    columns_first = args.get("rope_grid_indexing") == "xy" and kind != "dinov3"
    pairs = "halves" if halves else "adjacent"
    fields["rotary"] = RotaryConfig(kind=ROTARY_KINDS[kind], pairs=pairs, columns_first=columns_first, **own)  # type: ignore[arg-type]
    return fields


def with_pooling(config: ViTConfig, args: Mapping[str, Any], all_tokens: bool, where: str) -> ViTConfig:
    """Return the config with the tokens that are pooled; `all_tokens`: Eva's attention pooling sees all of them."""
    there, pool = bool(args.get("pool_include_prefix")), config.pool
    if config.mlp == "gated" and pool == "attention":
        raise CheckpointError(
            f"{where} has attention pooling after gated MLPs, for which there is no counterpart here: timm's classes "
            "differ in the activation of the pooling's own MLP"
        )
    if config.distillation_token and not config.classes:
        raise CheckpointError(
            f"{where} has a distillation token and no classifiers: timm's features are the mean of two tokens, which "
            "has no counterpart here"
        )
    if config.distillation_token and pool == "token":
        return dataclasses.replace(config, pool="token_and_distillation")
    if not config.prefix or pool == "token":
        return config
    if pool == "mean" and there:
        return dataclasses.replace(config, pool="mean_all")
    if pool == "attention" and not there and not all_tokens:
        return dataclasses.replace(config, pool="attention_patches")
    return config


def function_heads(architecture: str) -> dict[str, Any]:
    """Return the heads that all of timm's functions for a size have."""
    size = SIZE.fullmatch(architecture)
    return {"num_heads": HEADS[size[1]]} if size and size[1] in HEADS else {}


# Pieces of names of parts whose functions differ in what tensors do not show: rotary positions, GELU, epsilons.
ASKING = (
    "norm_pre.", ".attn.norm.", "patch_embed.norm.", ".q_proj.", ".fc1_g.", "rope.", "embeds.", ".in_norm.",
    ".attns.",
)  # fmt: skip


def check_enough_is_stated(
    t: Mapping[str, Tensor], args: Mapping[str, Any], hints: Hints, where: str
) -> None:
    """Refuse to guess if timm's own functions differ for the same tensors."""
    beside = "put timm's config.json, which names the architecture, beside it"
    beit = any("relative_position_bias_table" in name for name in t)
    pieces = [piece for piece in ASKING if any(piece in name for name in t)]
    if not beit and any(name.endswith(".gamma_1") or name.endswith(".q_bias") for name in t):
        pieces.append("gamma_1")
    if pieces:
        raise CheckpointError(
            f"{where} has {pieces[0].strip('.')}: timm's models with it differ in positions, GELU or norms that "
            f"tensors do not show; {beside}"
        )
    if (
        "attn_pool.latent" in t
        and ("cls_token" in t or "reg_token" in t)
        and "pool_include_prefix" not in args
    ):
        raise CheckpointError(
            f"{where}: the probe attends to all tokens, or to those of patches, which tensors do not show; {beside}"
        )
    if "cls_token" in t:
        return
    if "blocks.0.attn.qkv.bias" not in t:
        raise CheckpointError(
            f"{where} has neither a class token nor biases of q, k and v: such models of timm normalise "
            f"before each layer or, as vit_base_patch16_rpn_224, after it, which tensors do not show; {beside}"
        )
    needed = {"heads": ("heads=", "num_heads"), "activation": ("activation=gelu or =gelu_tanh", "act_layer")}
    missing = [
        words for name, (words, arg) in needed.items() if arg not in args and getattr(hints, name) is None
    ]
    if missing:
        raise CheckpointError(
            f"{where} has no class token, and timm's models without one differ in what tensors do not show: "
            f"pass {' and '.join(missing)} (vitrail convert writes a bundle with them), or {beside}"
        )


def preprocessing(
    pretrained: dict[str, Any] | None, config: Config, undivided: tuple[int, int] | None = None
) -> str:
    """Return the line of timm.data.create_transform for this model; empty, with a note, if there is none.

    `undivided`: the size of images, if patches do not divide it.
    """
    if config.channels != 3:
        return ""
    height, width = undivided or config.image_size
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
        line = Transform(resize, (height, width), settings["interpolation"], mean, std).line()
        return cut_rest(line, config.image_size)
    except ConfigError as error:
        note(f"this model's preprocessing has no counterpart here: {error}")
        return ""


# --- writing ---


def write(checkpoint: Checkpoint, path: Path) -> list[str]:
    """Write a folder for timm's local-dir and hf-hub sources; return what its reader must set by hand."""
    c = checkpoint.config
    tensors, architecture, args, notes = express(checkpoint)
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
    torch_files.save_folder(path, tensors, {CONFIG: content}, checkpoint.license)
    return notes + more


def reader_line(checkpoint: Checkpoint) -> str:
    """Return the line of timm.data.create_transform for the config.json that is written."""
    settings, _ = pretrained_settings(checkpoint)
    return preprocessing(settings, checkpoint.config)


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
