"""timm's checkpoints <-> ours: a state dict, alone or in a folder with timm's config.json.

    architecture    one of timm's functions, with settings of its own
    model_args      arguments that are passed to it
    pretrained_cfg  input_size (C, H, W), interpolation, crop_pct, crop_mode, mean, std, label_names

The sizes are read off the tensors. What leaves no trace in them comes from the caller or the config file (hints.py).
Without both, a model with a class token is like all of timm's: exact GELU, LayerNorm 1e-6; in the stems of hybrids
and in BiTs GroupNorm 1e-5 and weights over sqrt(var + 1e-8); images prepared as for timm's own weights of this paper:
mean and std 0.5, bicubic, 90% of the short side (all of it beyond 224 pixels). A note says so. Models without a class
token differ among themselves: heads and activation must be given.

Folders are written for timm.create_model("local-dir:FOLDER", pretrained=True). Every size goes into model_args, so
that any of timm's functions of the right kind makes the model; the nearest is named.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import torch.nn.functional as F
from torch import Tensor

from vitrail.checkpoints import torch_files
from vitrail.checkpoints.checkpoint import Checkpoint
from vitrail.checkpoints.hints import (
    NO_HINTS,
    Choices,
    Hints,
    Size,
    count_numbered,
    inferring_architecture,
)
from vitrail.checkpoints.json_files import Number, check_entries, list_numbered, save_json
from vitrail.checkpoints.license import CARD, complete_license, find_license, model_card, stated_license
from vitrail.checkpoints.mapping import Entry, add_zero_biases, layer, make_plain, read_weights, write_weights
from vitrail.checkpoints.torch_files import WeightFiles
from vitrail.checkpoints.transforms import (
    HALF,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Transform,
    line_to_transform,
    transform_to_line,
    triple,
)
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import checking
from vitrail.models.hybrid import HybridConfig
from vitrail.models.names import TIMM_SIZES, Config
from vitrail.models.resnet import BiTConfig, StemConfig
from vitrail.models.vit import VARIANTS, ViTConfig
from vitrail.runtime.files import atomic_folder
from vitrail.runtime.log import note

WEIGHTS, CONFIG = "model.safetensors", "config.json"
BACKBONE = "patch_embed.backbone."
NORM_EPS = 1e-6  # of LayerNorm
# Group normalisation and weight standardisation in stems and in BiTs.
RESNET: dict[str, Any] = {"norm_eps": 1e-5, "standardisation": "sqrt_var", "standardisation_eps": 1e-8}
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh"}
POOLS = {"token": "token", "avg": "mean", "map": "attention"}
DROPOUTS = {"proj_drop_rate": "dropout", "attn_drop_rate": "attention_dropout", "drop_path_rate": "drop_path"}
LEAST_CROP = 0.01  # crop_pct: images are scaled to the model's size over it

# (variant, patch size): timm's function. Others are made by B/16's, with other model_args.
PLAIN: dict[tuple[str, int], str] = {
    ("Ti", 16): "vit_tiny_patch16_224",
    ("S", 32): "vit_small_patch32_224",
    ("S", 16): "vit_small_patch16_224",
    ("S", 8): "vit_small_patch8_224",
    ("B", 32): "vit_base_patch32_224",
    ("B", 16): "vit_base_patch16_224",
    ("B", 8): "vit_base_patch8_224",
    ("L", 32): "vit_large_patch32_224",
    ("L", 16): "vit_large_patch16_224",
    ("L", 14): "vit_large_patch14_224",
    ("H", 14): "vit_huge_patch14_224",
    ("g", 14): "vit_giant_patch14_224",
    ("G", 14): "vit_gigantic_patch14_224",
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
READ = {"img_size", "num_heads", "act_layer", "norm_layer", "global_pool", "pool_include_prefix", *DROPOUTS}
# What timm uses for a pretrained_cfg that leaves it open; and for weights without one, by their kind.
UNSTATED = {"interpolation": "bicubic", "crop_pct": 0.875, "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
DEFAULTS: dict[str, dict[str, Any]] = {
    "vit": {"interpolation": "bicubic", "crop_pct": 0.9, "mean": HALF, "std": HALF},
    "vit, more than 224 pixels": {"interpolation": "bicubic", "crop_pct": 1.0, "mean": HALF, "std": HALF},
    "bit": {"interpolation": "bilinear", "crop_pct": 0.875, "mean": HALF, "std": HALF},
}
# Parts that timm's models can have and ours cannot, by a piece of the name.
FOREIGN: dict[str, str] = {
    ".gamma": "LayerScale",
    "reg_token": "register tokens",
    "dist_token": "a distillation token",
    "norm_pre.": "a LayerNorm before the encoder",
    ".q_norm.": "normalised queries and keys",
    ".attn.norm.": "norms inside attention and MLPs",
    "rel_pos": "relative positions in windows",
    "mlp.w12.": "gated MLPs",
    "mlp.fc1_g.": "gated MLPs",
    "running_mean": "batch norms",
}


class Schema(TypedDict, total=False):
    """Entries of config.json, of its model_args and of its pretrained_cfg."""

    architecture: str
    global_pool: str
    model_args: dict[str, Any]
    pretrained_cfg: dict[str, Any]
    label_names: list[str] | dict[str, str]
    label_descriptions: dict[str, str]
    input_size: tuple[int, int, int]
    interpolation: str
    crop_pct: Number
    crop_mode: str
    mean: list[Number]
    std: list[Number]
    img_size: int | tuple[int, int]
    num_heads: int
    act_layer: str
    norm_layer: str
    pool_include_prefix: bool
    proj_drop_rate: Number
    attn_drop_rate: Number
    drop_path_rate: Number


@dataclass(frozen=True)
class ConfigFile:
    """The content of a config.json; empty without one."""

    architecture: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    pretrained: dict[str, Any] | None = None

    @property
    def is_known(self) -> bool:
        return bool(self.architecture and KNOWN.fullmatch(self.architecture))

    @property
    def heads(self) -> int | None:
        """The argument, else what all of timm's functions for this size have."""
        if "num_heads" in self.args:
            heads: int = self.args["num_heads"]
            return heads
        size = re.match(r"(vit|deit|flexivit|eva)_([a-z0-9]+)(_|$)", self.architecture or "")
        variant = TIMM_SIZES.get(size[2]) if size else None
        return VARIANTS[variant][3] if variant else None

    @property
    def image_size(self) -> tuple[int, int] | None:
        size: Any = self.args.get("img_size", (self.pretrained or {}).get("input_size", ())[1:])
        return checking.image_size(size) if size else None

    def choice(self, name: str, allowed: dict[str, str], where: str) -> str | None:
        """Return our word for one of their arguments."""
        value = self.args.get(name)
        if value is not None and value not in allowed:
            raise CheckpointError(
                f"{where}: {name} {value!r} has no counterpart here; these have: {', '.join(allowed)}"
            )
        return None if value is None else allowed[value]


# --- reading ---


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return "patch_embed.proj.weight" in tensors or "stages.0.blocks.0.conv1.weight" in tensors


def read(files: WeightFiles, hints: Hints = NO_HINTS, *, image_size: Size | None = None) -> Checkpoint:
    """Read a checkpoint. `image_size` is needed only if neither the config file nor a square grid tells it."""
    t, where = files.tensors, files.where
    if foreign := sorted({what for piece, what in FOREIGN.items() if any(piece in key for key in t)}):
        raise CheckpointError(f"{where} has {', '.join(foreign)}, for which there is no counterpart here")
    file = read_config_file(files.configs.get(CONFIG), where)
    origin = {"format": "timm", **files.origin, "architecture": file.architecture}
    choices = Choices(hints, where)
    config: ViTConfig | BiTConfig
    with inferring_architecture(where):
        if "patch_embed.proj.weight" in t:
            config = infer_vit(t, file, choices, image_size)
            origin["heads"] = choices.heads_source
        else:
            config = infer_bit(t, file, choices, image_size)
    weights = read_weights(entries(config), complete(t, config), config, where)
    class_names = read_class_names(file.pretrained or {}, where)
    if class_names is not None and len(class_names) != config.classes:
        raise CheckpointError(f"{where}: {len(class_names)} label_names for {config.classes} classes")
    line = preprocessing(file, config)
    if file.pretrained is None and line:
        choices.assumed["preprocess"] = line
    origin |= choices.report("timm", files.path.name)
    license = find_license(files.configs.get(CONFIG))
    return Checkpoint(config, weights, line, class_names, origin, license=license)


def read_config_file(content: dict[str, Any] | None, where: str) -> ConfigFile:
    if content is None:
        return ConfigFile()
    content = check_entries(content, Schema, where)
    if "architecture" not in content:
        raise CheckpointError(f"{where}: the config.json beside it is not timm's: it names no architecture")
    architecture = content["architecture"].split(".")[0]
    pretrained = check_entries(content.get("pretrained_cfg", content), Schema, where)  # flat in old files
    args = next((args for pattern, args in QUIRKS.items() if re.fullmatch(pattern, architecture)), {})
    if content.get("global_pool"):
        args = args | {"global_pool": content["global_pool"]}
    args = args | check_entries(content.get("model_args", {}), Schema, where)
    if unknown := sorted(set(args) - TRACED - READ):
        raise CheckpointError(f"{where}: {architecture} with {', '.join(unknown)} has no counterpart here")
    if args.get("norm_layer", "layernorm") != "layernorm":
        raise CheckpointError(
            f"{where}: norm_layer {args['norm_layer']!r} has no counterpart here: layernorm"
        )
    labels = {key: value for key, value in content.items() if key in ("label_names", "label_descriptions")}
    return ConfigFile(architecture, args, pretrained | labels)


def read_class_names(pretrained: dict[str, Any], where: str) -> list[str] | None:
    """Return the names of the classes, in words if the file describes its labels."""
    names = pretrained.get("label_names")
    if not names:
        return None
    names = list_numbered(names, f"{where}: label_names") if isinstance(names, dict) else names
    descriptions = pretrained.get("label_descriptions") or {}
    return [str(descriptions.get(name, name)) for name in names]


def infer_vit(
    t: Mapping[str, Tensor], file: ConfigFile, choices: Choices, image_size: Size | None
) -> ViTConfig:
    where, sure = choices.where, file.is_known
    width, _, patch_size, _ = t["patch_embed.proj.weight"].shape
    depth, mlp_dim = count_numbered(t, r"blocks\.(\d+)\.", where), t["blocks.0.mlp.fc1.weight"].shape[0]
    activation = file.choice("act_layer", ACTIVATIONS, where)
    if not sure and "cls_token" not in t:
        check_enough_is_stated(t, file.heads, activation, choices)
    heads = choices.choose_heads(width, depth, mlp_dim, file.heads)
    # The convolution that sees the image.
    names = (f"{BACKBONE}stem.conv.weight", f"{BACKBONE}conv.weight", "patch_embed.proj.weight")
    first = t[next(name for name in names if name in t)]
    stem = None
    if any(key.startswith(BACKBONE) for key in t):
        stem = StemConfig(count_units(t, BACKBONE, where), first.shape[0] / 64, **RESNET)
    stride = patch_size * (stem.stride if stem else 1)
    class_token, positions = "cls_token" in t, t.get("pos_embed")
    patches: tuple[int, ...] | None = None
    if positions is not None:
        rows = positions.shape[1]
        patches = (rows - 1, rows) if class_token else (rows,)  # the class token may have no position
    fields: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "mlp_dim": mlp_dim,
        "heads": heads,
        "patch_size": patch_size,
        "image_size": choices.choose_image_size(patches, stride, file.image_size, image_size),
        "channels": first.shape[1],
        "classes": t["head.weight"].shape[0] if "head.weight" in t else 0,
        "pre_logits": t["pre_logits.fc.weight"].shape[0] if "pre_logits.fc.weight" in t else 0,
        "pool": choose_pool(t, file, choices),
        "class_token": class_token,
        "positions": "none" if positions is None else "1d",
        "activation": choices.choose("activation", activation, "gelu", sure=sure),
        "norm_eps": choices.choose("norm_eps", None, NORM_EPS, sure=sure),
        "norm_at": "pooled" if "fc_norm.weight" in t else "encoder",
        **{ours: float(file.args[theirs]) for theirs, ours in DROPOUTS.items() if theirs in file.args},
    }
    return HybridConfig(**fields, stem=stem) if stem else ViTConfig(**fields)


def check_enough_is_stated(
    t: Mapping[str, Tensor], heads: int | None, activation: str | None, choices: Choices
) -> None:
    """Refuse to guess where timm's own functions differ for the same tensors: without a class token."""
    beside = "put timm's config.json, which names the architecture, beside it"
    if "blocks.0.attn.qkv.bias" not in t:
        raise CheckpointError(
            f"{choices.where} has neither a class token nor biases of q, k and v: such models of timm normalise "
            f"before each layer or, as vit_base_patch16_rpn_224, after it, which has no counterpart here; {beside}"
        )
    needed = {
        "heads=": heads or choices.hints.heads,
        "activation=gelu or =gelu_tanh": activation or choices.hints.activation,
    }
    if missing := [name for name, value in needed.items() if value is None]:
        raise CheckpointError(
            f"{choices.where} has no class token, and timm's models without one differ in what tensors do not show: "
            f"give {' and '.join(missing)} (vitrail convert writes a bundle with them), or {beside}"
        )


def choose_pool(t: Mapping[str, Tensor], file: ConfigFile, choices: Choices) -> str:
    """Return the pooling of the config file, else that of timm's models with these tensors."""
    class_token, where = "cls_token" in t, choices.where
    inferred = "attention" if "attn_pool.latent" in t else "token"
    if inferred == "token" and ("fc_norm.weight" in t or not class_token):
        inferred = "mean"
    configured = file.choice("global_pool", POOLS, where)
    if configured is None and not class_token:  # the tensors show it
        configured = inferred
    pool: str = choices.choose("pool", configured, inferred, sure=file.is_known)
    prefix = bool(file.args.get("pool_include_prefix"))
    if class_token and ((pool == "attention" and not prefix) or (pool == "mean" and prefix)):
        what = "the probe attends to all tokens" if pool == "attention" else "the mean is of the patches only"
        raise CheckpointError(f"{where}: with a class token, here {what}; pool_include_prefix={prefix} there")
    return pool


def infer_bit(
    t: Mapping[str, Tensor], file: ConfigFile, choices: Choices, image_size: Size | None
) -> BiTConfig:
    """A ResNet takes any image size: the config file's, else what is asked for, else 224."""
    root, units = t["stem.conv.weight"], count_units(t, "", choices.where)
    size, factor = choices.choose_image_size(None, 1, file.image_size, image_size), root.shape[0] / 64
    classes = t["head.fc.weight"].shape[0] if "head.fc.weight" in t else 0
    config = BiTConfig(units, factor, size, root.shape[1], classes, **RESNET)
    choices.hints.check(config, choices.where)
    return config


def count_units(t: Mapping[str, Tensor], prefix: str, where: str) -> tuple[int, ...]:
    """Return the bottleneck units in each stage of a ResNet."""
    inside = [key.removeprefix(prefix) for key in t if key.startswith(prefix)]
    stages = count_numbered(inside, r"stages\.(\d+)\.", where)
    return tuple(count_numbered(inside, rf"stages\.{s}\.blocks\.(\d+)\.", where) for s in range(stages))


def complete(tensors: Mapping[str, Tensor], config: Config) -> dict[str, Tensor]:
    """Add zeros for what some of timm's models lack: biases of q, k and v, the position of the class token."""
    if isinstance(config, BiTConfig):
        return dict(tensors)
    biases = [f"blocks.{i}.attn.qkv.bias" for i in range(config.depth)]
    completed = add_zero_biases(tensors, biases, 3 * config.width)
    table = tensors.get("pos_embed")
    if config.class_token and table is not None and table.ndim == 3 and table.shape[1] == config.tokens - 1:
        completed["pos_embed"] = F.pad(table, (0, 0, 1, 0))  # (1, 1 + N, D)
    return completed


def preprocessing(file: ConfigFile, config: Config) -> str:
    """Return the line of timm.data.create_transform for this model; empty, with a note, if there is none."""
    if config.channels != 3:
        return ""
    if file.pretrained is None:
        kind = "bit" if isinstance(config, BiTConfig) else "vit"
        large = kind == "vit" and min(config.image_size) > 224
        settings = DEFAULTS["vit, more than 224 pixels" if large else kind]
    else:
        settings = UNSTATED | {key: value for key, value in file.pretrained.items() if value}
    mode = settings.get("crop_mode", "center")
    height, width = config.image_size
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
        return transform_to_line(Transform(resize, (height, width), settings["interpolation"], mean, std))
    except ConfigError as error:
        note(f"this model's preprocessing has no counterpart here: {error}")
        return ""


# --- writing ---


def write(checkpoint: Checkpoint, path: Path) -> list[str]:
    """Write a folder for timm's local-dir and hf-hub sources; return what its reader must set by hand."""
    torch_files.check_own_folder(path, (WEIGHTS, CONFIG, CARD), "timm")
    if isinstance(checkpoint.config, ViTConfig):
        if checkpoint.config.pre_logits:
            raise CheckpointError(
                "timm no longer has a tanh layer before the classifier: load the model with another number of "
                "classes (0: no classifier), which leaves its pre-training head out"
            )
        checkpoint = make_plain(checkpoint, "timm")
    c = checkpoint.config
    architecture, args, notes = bit_arguments(c) if isinstance(c, BiTConfig) else vit_arguments(c)
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
    tensors = write_weights(entries(c), checkpoint.weights)
    with atomic_folder(path) as temporary:
        torch_files.save_safetensors(tensors, temporary / WEIGHTS)
        save_json(content, temporary / CONFIG)
        (temporary / CARD).write_text(model_card(checkpoint.license), encoding="utf-8")
    return notes + more


def reader_line(checkpoint: Checkpoint) -> str:
    """Return the line of timm.data.create_transform for the config.json that is written."""
    settings, _ = pretrained_settings(checkpoint)
    return preprocessing(ConfigFile(pretrained=settings), checkpoint.config)


def vit_arguments(c: ViTConfig) -> tuple[str, dict[str, Any], list[str]]:
    """Return the name of a function, its arguments, and what the reader must set besides."""
    args: dict[str, Any] = {
        "patch_size": c.patch_size,
        "embed_dim": c.width,
        "depth": c.depth,
        "num_heads": c.heads,
        "mlp_ratio": mlp_ratio(c.width, c.mlp_dim),
        "class_token": bool(c.class_token),
        "global_pool": next(theirs for theirs, ours in POOLS.items() if ours == c.pool),
        "fc_norm": c.norm_at == "pooled",
        "act_layer": c.activation,
    }
    if c.positions == "none":
        args["pos_embed"] = "none"
    if c.pool == "attention" and c.class_token:
        args["pool_include_prefix"] = True  # the class token is one of the tokens that the probe attends to
    args |= {theirs: getattr(c, ours) for theirs, ours in DROPOUTS.items() if getattr(c, ours)}
    if c.dropout:
        args["pos_drop_rate"] = c.dropout
    notes = []
    if c.norm_eps != NORM_EPS:
        notes.append(
            f"the reader must set norm_layer=functools.partial(torch.nn.LayerNorm, eps={c.norm_eps}): "
            f"timm's files have no place for it, and its own is {NORM_EPS}"
        )
    if not isinstance(c, HybridConfig):
        sizes = (c.width, c.depth, c.mlp_dim, c.heads)
        variant = next((name for name, known_sizes in VARIANTS.items() if known_sizes == sizes), "")
        return PLAIN.get((variant, c.patch_size), PLAIN["B", 16]), args, notes
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


# --- names ---


def entries(config: Config) -> Iterator[Entry]:
    """Yield an entry for every parameter. Only the head of a BiT is oriented differently: a convolution there."""
    if isinstance(config, BiTConfig):
        yield Entry("root.conv.weight", ("stem.conv.weight",))
        yield from stage_entries(config.units, "stages", "stages", projection_norm=False)
        yield from layer("norm", "norm")
        if config.classes:
            yield Entry(
                "head.classifier.weight",
                ("head.fc.weight",),
                lambda w: w.squeeze(3).squeeze(2),  # (classes, D)
                lambda w: w[:, :, None, None],  # (classes, D, 1, 1)
            )
            yield Entry("head.classifier.bias", ("head.fc.bias",))
        return
    if isinstance(config, HybridConfig):
        # A stem without stages is the root alone, and its names are one level shorter.
        root = f"{BACKBONE}stem" if config.stem.units else BACKBONE.removesuffix(".")
        yield Entry("stem.root.conv.weight", (f"{root}.conv.weight",))
        yield from layer("stem.root.norm", f"{root}.norm")
        yield from stage_entries(config.stem.units, "stem.stages", f"{BACKBONE}stages", projection_norm=True)
    yield from layer("embedding", "patch_embed.proj")
    if config.class_token:
        yield Entry("cls", ("cls_token",))
    if config.positions == "1d":
        yield Entry("positions.table", ("pos_embed",))
    for i in range(config.depth):
        ours, theirs = f"encoder.blocks.{i}", f"blocks.{i}"
        yield from layer(f"{ours}.norm1", f"{theirs}.norm1")
        yield from layer(f"{ours}.attention.qkv", f"{theirs}.attn.qkv")
        yield from layer(f"{ours}.attention.out", f"{theirs}.attn.proj")
        yield from layer(f"{ours}.norm2", f"{theirs}.norm2")
        yield from layer(f"{ours}.mlp.fc1", f"{theirs}.mlp.fc1")
        yield from layer(f"{ours}.mlp.fc2", f"{theirs}.mlp.fc2")
    if config.norm_at == "encoder":
        yield from layer("encoder.norm", "norm")
    else:
        yield from layer("pooled_norm", "fc_norm")
    if config.pool == "attention":
        yield Entry("attention_pool.probe", ("attn_pool.latent",))
        for name in ("q", "kv", "norm", "mlp.fc1", "mlp.fc2"):
            yield from layer(f"attention_pool.{name}", f"attn_pool.{name}")
        yield from layer("attention_pool.out", "attn_pool.proj")
    if config.pre_logits:
        yield from layer("head.pre_logits", "pre_logits.fc")
    if config.classes:
        yield from layer("head.classifier", "head")


def stage_entries(
    stages: tuple[int, ...], our_prefix: str, their_prefix: str, *, projection_norm: bool
) -> Iterator[Entry]:
    for s, units in enumerate(stages):
        for u in range(units):
            ours, theirs = f"{our_prefix}.{s}.{u}", f"{their_prefix}.{s}.blocks.{u}"
            for n in (1, 2, 3):
                yield Entry(f"{ours}.conv{n}.weight", (f"{theirs}.conv{n}.weight",))
                yield from layer(f"{ours}.norm{n}", f"{theirs}.norm{n}")
            if u == 0:
                yield Entry(f"{ours}.projection.weight", (f"{theirs}.downsample.conv.weight",))
                if projection_norm:
                    yield from layer(f"{ours}.projection_norm", f"{theirs}.downsample.norm")
