"""Our config and preprocessing line -> timm's config.json, and what it cannot say.

Every size goes into model_args, so that any of timm's functions of the right kind makes the model; the nearest
is named. Read by timm.create_model("local-dir:FOLDER", pretrained=True).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from vitrail.checkpoints.checkpoint import Checkpoint
from vitrail.checkpoints.license import both_parts, known
from vitrail.checkpoints.timm_config import DROPOUTS, POOLS
from vitrail.checkpoints.transforms import Transform, transform_of
from vitrail.models.hybrid import HybridConfig
from vitrail.models.names import Config
from vitrail.models.resnet import BiTConfig, StemConfig
from vitrail.models.vit import VARIANTS, ViTConfig

# (variant, patch size): timm's function. What is not here is made by B/16's, with other model_args.
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
# How timm normalises groups and standardises weights, in stems and in BiTs.
RESNET: dict[str, Any] = {"norm_eps": 1e-5, "standardisation": "sqrt_var", "standardisation_eps": 1e-8}
NORM_EPS = 1e-6  # of LayerNorm


def card_of(checkpoint: Checkpoint) -> tuple[dict[str, Any], list[str]]:
    """config.json, and what the reader must do besides."""
    c = checkpoint.config
    architecture, args, notes = bit_part(c) if isinstance(c, BiTConfig) else vit_part(c)
    settings, more = pretrained_part(checkpoint)
    card: dict[str, Any] = {
        "architecture": architecture,
        "num_classes": c.classes,
        "num_features": c.width,
        "global_pool": args.get("global_pool", "avg"),
        "model_args": args,
        "pretrained_cfg": settings,
        "license": both_parts(checkpoint.license),
    }
    if checkpoint.class_names is not None:
        card["label_names"] = checkpoint.class_names
    if stated := known(checkpoint.license).get("weights"):
        settings["license"] = stated  # where timm keeps it
    return card, notes + more


def vit_part(c: ViTConfig) -> tuple[str, dict[str, Any], list[str]]:
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
            f"timm's files cannot say it, and its own is {NORM_EPS}"
        )
    if not isinstance(c, HybridConfig):
        variant = next((name for name, sizes in VARIANTS.items() if sizes == sizes_of(c)), "")
        return PLAIN.get((variant, c.patch_size), PLAIN["B", 16]), args, notes
    if c.stem.width_factor != 1 or c.stem.units not in STEMS:
        notes.append(no_function(f"a stem of units {c.stem.units} and width factor {c.stem.width_factor}"))
    return STEMS.get(c.stem.units, STEMS[3, 4, 9]), args, notes + resnet_notes(c.stem)


def bit_part(c: BiTConfig) -> tuple[str, dict[str, Any], list[str]]:
    """Another width factor than the function's is passed as other numbers of channels."""
    name, factor = BITS.get(c.units, BITS[3, 4, 6, 3])
    notes = [] if c.units in BITS else [no_function(f"a BiT of units {c.units}")]
    by = c.width_factor / factor
    args: dict[str, Any] = {}
    if by != 1:
        args = {"channels": [int(n * by) for n in (256, 512, 1024, 2048)], "stem_chs": int(64 * by)}
    return name, args, notes + resnet_notes(c)


def pretrained_part(checkpoint: Checkpoint) -> tuple[dict[str, Any], list[str]]:
    c = checkpoint.config
    vit = isinstance(c, ViTConfig)
    first_conv = "patch_embed.proj" if vit else "stem.conv"
    settings: dict[str, Any] = {
        "num_classes": c.classes,
        "input_size": [c.channels, *c.image_size],
        "fixed_input_size": vit,
        # timm adapts this convolution where images have other than 3 channels; here it is made for them already.
        "first_conv": first_conv if c.channels == 3 and not isinstance(c, HybridConfig) else None,
        "classifier": "head" if vit else "head.fc",
    }
    transform, notes = transform_of(checkpoint.preprocess, "nearest")
    if transform is None:
        return settings, notes
    scale = crop_settings(transform, c)
    if scale is None:
        return settings, [f"the reader must prepare images as '{checkpoint.preprocess}'"]
    values = {"interpolation": transform.method, "mean": list(transform.mean), "std": list(transform.std)}
    return settings | scale | values, notes


def crop_settings(t: Transform, c: Config) -> dict[str, Any] | None:
    """The fraction of the resized image that is kept: timm resizes to floor(side / crop_pct)."""
    crop = t.crop or t.resize
    if crop != c.image_size:
        return None
    if isinstance(t.resize, tuple):
        mode, wanted = "squash", t.resize
    else:
        mode, wanted = "center", (t.resize, t.resize)
        if c.image_size[0] != c.image_size[1]:
            return None
    exact = c.image_size[0] / wanted[0]
    for kept in (exact, math.nextafter(exact, 0)):
        if all(math.floor(side / kept) == want for side, want in zip(c.image_size, wanted, strict=True)):
            return {"crop_pct": kept, "crop_mode": mode}
    return None


def mlp_ratio(width: int, mlp_dim: int) -> float:
    """A ratio of which timm's int(width * ratio) makes mlp_dim again."""
    ratio = mlp_dim / width
    return ratio if int(width * ratio) == mlp_dim else math.nextafter(ratio, math.inf)


def sizes_of(c: ViTConfig) -> tuple[int, int, int, int]:
    return c.width, c.depth, c.mlp_dim, c.heads


def no_function(what: str) -> str:
    return f"timm has no function for {what}: build its ResNetV2 by hand, and load model.safetensors into it"


def resnet_notes(c: BiTConfig | StemConfig) -> list[str]:
    ours = dataclasses.asdict(c)
    return [
        f"timm's ResNets have {name} {theirs}, and its files cannot say {ours[name]}: numbers will differ a little"
        for name, theirs in RESNET.items()
        if ours[name] != theirs
    ]
