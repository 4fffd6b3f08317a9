"""What timm's config.json says of a model that leaves no trace in its tensors, and of its preprocessing.

    architecture    one of timm's functions, with settings of its own
    model_args      what is passed to it, and overrides them
    pretrained_cfg  input_size (C, H, W), interpolation, crop_pct, crop_mode, mean, std, label_names

Read by timm.py; timm_card.py writes such files.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, cast

from vitrail.checkpoints.json_kinds import checked
from vitrail.checkpoints.sizes import pair
from vitrail.checkpoints.transforms import HALF, IMAGENET_MEAN, IMAGENET_STD, Transform, line_of, triple
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.names import TIMM_SIZES, Config
from vitrail.models.resnet import BiTConfig
from vitrail.models.vit import VARIANTS
from vitrail.runtime.log import note

# What these of timm's functions set unlike the others of their kind.
QUIRKS: dict[str, dict[str, Any]] = {
    r"test_vit": {"num_heads": 2},
    r"vit_base_patch16_gap_224": {"num_heads": 16},
    r"vit_(base_patch32|giantopt_patch16|so400m_patch16)_siglip_.*": {"act_layer": "gelu_tanh"},
    r"vit_large_patch16_siglip(_gap)?_512": {"act_layer": "gelu_tanh"},
    r"vit_base_patch16_rpn_224": {"block_fn": "ResPostBlock"},
}
# Functions that a test compares with timm's: what they leave unsaid is as the QUIRKS have it, else exact GELU, 1e-6.
KNOWN = re.compile(
    r"(vit|deit)_(tiny|small|base|large|huge|giant|gigantic)_patch\d+_\d+(_miil)?|flexivit_(small|base|large)"
    r"|vit_(base|large|so400m|giantopt)_patch\d+_siglip(_gap)?_\d+|vit_(base|huge|giant)_patch\d+_gap_\d+"
    r"|vit_(tiny|small|base|large)_r\d*_s\d+(_p8)?_\d+|eva_large_patch14_\d+|test_vit|resnetv2_\d+x\d_bit"
)
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh"}
POOLS = {"token": "token", "avg": "mean", "map": "attention"}
DROPOUTS = {"proj_drop_rate": "dropout", "attn_drop_rate": "attention_dropout", "drop_path_rate": "drop_path"}
# model_args that the tensors show too, or that only concern training.
TRACED = {
    "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "mlp_ratio", "qkv_bias", "class_token",
    "pos_embed", "no_embed_class", "reg_tokens", "pre_norm", "init_values", "qk_norm", "fc_norm", "channels",
    "stem_chs", "drop_rate", "pos_drop_rate", "patch_drop_rate", "weight_init", "fix_init", "zero_init_last",
    "dynamic_img_size", "dynamic_img_pad",
}  # fmt: skip
READ = {"img_size", "num_heads", "act_layer", "norm_layer", "global_pool", "pool_include_prefix", *DROPOUTS}
KINDS: dict[str, tuple[str, ...]] = {
    "architecture": ("text",),
    "global_pool": ("text",),
    "model_args": ("an object",),
    "pretrained_cfg": ("an object",),
    "label_names": ("a list of texts", "texts by number"),
    "label_descriptions": ("texts by name",),
    "input_size": ("three whole numbers",),
    "interpolation": ("text",),
    "crop_pct": ("a number",),
    "crop_mode": ("text",),
    "mean": ("a list of numbers",),
    "std": ("a list of numbers",),
    "img_size": ("one whole number or two",),
    "num_heads": ("a whole number",),
    "act_layer": ("text",),
    "norm_layer": ("text",),
    "pool_include_prefix": ("true or false",),
    **dict.fromkeys(DROPOUTS, ("a number",)),
}
# What timm takes for a pretrained_cfg that does not say; and for weights without one, by their kind.
UNSAID = {"interpolation": "bicubic", "crop_pct": 0.875, "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
DEFAULTS: dict[str, dict[str, Any]] = {
    "vit": {"interpolation": "bicubic", "crop_pct": 0.9, "mean": HALF, "std": HALF},
    "vit, more than 224 pixels": {"interpolation": "bicubic", "crop_pct": 1.0, "mean": HALF, "std": HALF},
    "bit": {"interpolation": "bilinear", "crop_pct": 0.875, "mean": HALF, "std": HALF},
}
LEAST_CROP = 0.01  # crop_pct: images are scaled to the model's size over it


@dataclass(frozen=True)
class Said:
    """What a config file says; without one, nothing."""

    architecture: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    pretrained: dict[str, Any] | None = None

    @property
    def is_known(self) -> bool:
        """Whether the architecture is one of timm's functions that a test compares."""
        return bool(self.architecture and KNOWN.fullmatch(self.architecture))

    @property
    def heads(self) -> int | None:
        """As passed, else as all of timm's functions for this size have it."""
        if "num_heads" in self.args:
            return cast(int, self.args["num_heads"])
        size = re.match(r"(vit|deit|flexivit|eva)_([a-z0-9]+)(_|$)", self.architecture or "")
        known = TIMM_SIZES.get(size[2]) if size else None
        return VARIANTS[known][3] if known else None

    @property
    def image_size(self) -> tuple[int, int] | None:
        size: Any = self.args.get("img_size", (self.pretrained or {}).get("input_size", ())[1:])
        return pair(size) if size else None

    @property
    def dropouts(self) -> dict[str, float]:
        return {ours: float(self.args[theirs]) for theirs, ours in DROPOUTS.items() if theirs in self.args}

    @property
    def class_names(self) -> list[str] | None:
        """In words, where the file describes its labels."""
        given = (self.pretrained or {}).get("label_names")
        if not given:
            return None
        names = [given[key] for key in sorted(given, key=int)] if isinstance(given, dict) else list(given)
        descriptions = (self.pretrained or {}).get("label_descriptions") or {}
        return [str(descriptions.get(name, name)) for name in names]

    def choice(self, name: str, allowed: dict[str, str], where: str) -> str | None:
        """Our word for one of theirs; an error for one that we have none for."""
        given = self.args.get(name)
        if given is not None and given not in allowed:
            these = ", ".join(allowed)
            raise CheckpointError(f"{where}: {name} {given!r} has no counterpart here; these have: {these}")
        return None if given is None else allowed[given]


def read(card: dict[str, Any] | None, where: str) -> Said:
    if card is None:
        return Said()
    card = checked(card, KINDS, where)
    if "architecture" not in card:
        raise CheckpointError(f"{where}: the config.json beside it is not timm's: it names no architecture")
    architecture, args = card["architecture"].split(".")[0], checked(card.get("model_args", {}), KINDS, where)
    pretrained = checked(card.get("pretrained_cfg", card), KINDS, where)  # one flat object in old files
    quirks = next((quirk for pattern, quirk in QUIRKS.items() if re.fullmatch(pattern, architecture)), {})
    pool = {"global_pool": card["global_pool"]} if card.get("global_pool") else {}
    args = {**quirks, **pool, **args}
    if unknown := sorted(set(args) - TRACED - READ):
        raise CheckpointError(f"{where}: {architecture} with {', '.join(unknown)} has no counterpart here")
    if args.get("norm_layer", "layernorm") != "layernorm":
        raise CheckpointError(
            f"{where}: norm_layer {args['norm_layer']!r} has no counterpart here: layernorm"
        )
    labels = {key: value for key, value in card.items() if key in ("label_names", "label_descriptions")}
    return Said(architecture, args, {**pretrained, **labels})


def preprocessing(said: Said, config: Config) -> str:
    """The line of timm.data.create_transform for this model; empty where there is none, which is noted."""
    if config.channels != 3:
        return ""
    if said.pretrained is None:
        kind = "bit" if isinstance(config, BiTConfig) else "vit"
        large = kind == "vit" and min(config.image_size) > 224
        settings = DEFAULTS["vit, more than 224 pixels" if large else kind]
    else:
        settings = UNSAID | {key: value for key, value in said.pretrained.items() if value}
    mode = settings.get("crop_mode", "center")
    height, width = config.image_size
    if mode not in ("center", "squash"):
        note(f"timm prepares this model's images with crop_mode {mode!r}, which has no counterpart here")
        return ""
    if mode == "center" and height != width:
        # timm scales until both sides cover the crop; of the ops here, the short side at the longer comes nearest.
        note("timm's preprocessing for images that are not square is met only nearly")
    try:
        if not settings["crop_pct"] >= LEAST_CROP:
            raise ConfigError(f"crop_pct {settings['crop_pct']} is not at least {LEAST_CROP}")
        scaled = tuple(math.floor(side / settings["crop_pct"]) for side in (height, width))
        resize = max(scaled) if mode == "center" else (scaled[0], scaled[1])
        mean, std = (triple(tuple(settings[key])) for key in ("mean", "std"))
        return line_of(Transform(resize, (height, width), settings["interpolation"], mean, std))
    except ConfigError as error:
        note(f"this model's preprocessing has no counterpart here: {error}")
        return ""
