"""timm's checkpoints <-> ours: a state dict, alone or in a folder with timm's config.json.

The sizes are read off the tensors. What leaves no trace in them is said by the caller or by the config file, which
names one of timm's functions (timm_config.py). Where both are silent, a model with a class token is as timm has them
all: exact GELU, LayerNorm 1e-6; in the stems of hybrids and in BiTs GroupNorm 1e-5 and weights over sqrt(var + 1e-8);
images prepared as for timm's own weights of this paper: mean and std 0.5, bicubic, 90% of the short side (all of it
beyond 224 pixels). That is noted (unsaid.py). Models without a class token differ among themselves: it is asked for.

Written folders are read by timm.create_model("local-dir:FOLDER", pretrained=True).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.checkpoints import mapping, timm_config, torch_files
from vitrail.checkpoints.checkpoint import Checkpoint, parameter_shapes
from vitrail.checkpoints.license import CARD, license_in, model_card
from vitrail.checkpoints.plain import plain
from vitrail.checkpoints.sizes import Size, count, grid_at, grid_of, pair
from vitrail.checkpoints.timm_card import NORM_EPS, RESNET, card_of, pretrained_part
from vitrail.checkpoints.timm_config import ACTIVATIONS, POOLS, Said
from vitrail.checkpoints.timm_names import completed, entries_of, foreign_parts
from vitrail.checkpoints.torch_files import Found
from vitrail.checkpoints.unsaid import NOTHING, Asked, Choices
from vitrail.errors import CheckpointError
from vitrail.models.hybrid import HybridConfig
from vitrail.models.resnet import BiTConfig, StemConfig
from vitrail.models.vit import ViTConfig
from vitrail.runtime.files import atomic_folder

WEIGHTS, CONFIG = "model.safetensors", "config.json"
BACKBONE = "patch_embed.backbone."


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return "patch_embed.proj.weight" in tensors or "stages.0.blocks.0.conv1.weight" in tensors


def read(found: Found, asked: Asked = NOTHING, *, image_size: Size | None = None) -> Checkpoint:
    """`image_size` is asked for only where neither the config file nor a square grid tells it."""
    t, where = found.tensors, found.where
    if parts := foreign_parts(t):
        raise CheckpointError(f"{where} has {', '.join(parts)}, for which there is no counterpart here")
    said = timm_config.read(found.configs.get(CONFIG), where)
    origin = {"format": "timm", **found.origin, "architecture": said.architecture}
    choices = Choices(asked, where)
    try:
        config: ViTConfig | BiTConfig
        if "patch_embed.proj.weight" in t:
            config = vit_config(t, said, choices, image_size)
            origin["heads"] = choices.who_said_heads
        else:
            config = bit_config(t, said, choices, image_size)
    except (KeyError, IndexError, ValueError) as error:
        raise CheckpointError(f"{where}: the architecture cannot be inferred ({error})") from error
    weights = mapping.read(list(entries_of(config)), completed(t, config), parameter_shapes(config), where)
    class_names = said.class_names
    if class_names is not None and len(class_names) != config.classes:
        raise CheckpointError(f"{where}: {len(class_names)} label_names for {config.classes} classes")
    line = timm_config.preprocessing(said, config)
    if said.pretrained is None and line:
        choices.assumed["preprocess"] = line
    origin |= choices.say("timm", found.path.name)
    license = license_in(found.configs.get(CONFIG))
    return Checkpoint(config, weights, line, class_names, origin, license=license)


def write(checkpoint: Checkpoint, path: Path) -> list[str]:
    """A folder for timm's local-dir and hf-hub sources; returns what its reader must set by hand."""
    torch_files.check_own_folder(path, (WEIGHTS, CONFIG, CARD), "timm")
    if isinstance(checkpoint.config, ViTConfig):
        if checkpoint.config.pre_logits:
            raise CheckpointError(
                "timm has no tanh layer before the classifier any more: load the model with another number of "
                "classes (0: no classifier), which leaves its pre-training head out"
            )
        checkpoint = plain(checkpoint, "timm")
    card, notes = card_of(checkpoint)
    tensors = mapping.write(list(entries_of(checkpoint.config)), checkpoint.weights)
    with atomic_folder(path) as temporary:
        torch_files.save_safetensors(tensors, temporary / WEIGHTS)
        torch_files.save_json(card, temporary / CONFIG)
        (temporary / CARD).write_text(model_card(checkpoint.license), encoding="utf-8")
    return notes


def reader_line(checkpoint: Checkpoint) -> str:
    """That of timm.data.create_transform, by the config.json that is written."""
    settings, _ = pretrained_part(checkpoint)
    return timm_config.preprocessing(Said(pretrained=settings), checkpoint.config)


def vit_config(t: Mapping[str, Tensor], said: Said, choices: Choices, image_size: Size | None) -> ViTConfig:
    where = choices.where
    width, _, patch_size, _ = t["patch_embed.proj.weight"].shape
    depth, mlp_dim = count(t, r"blocks\.(\d+)\.", where), t["blocks.0.mlp.fc1.weight"].shape[0]
    activation, sure = said.choice("act_layer", ACTIVATIONS, where), said.is_known
    if not sure:
        check_enough_is_said(
            t, said.heads or choices.asked.heads, activation or choices.asked.activation, where
        )
    heads = choices.heads(width, depth, mlp_dim, said.heads)
    stem, first = stem_config(t, where), first_convolution(t)
    stride = patch_size * (stem.stride if stem else 1)
    class_token, positions = "cls_token" in t, t.get("pos_embed")
    if positions is None:
        grid = grid_at(said.image_size or image_size or 224, stride)
    else:
        rows = positions.shape[1]
        patches = (rows - 1, rows) if class_token else (rows,)  # the class token's position may be left out
        grid = grid_of(patches, stride, said.image_size, image_size, where)
    fields: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "mlp_dim": mlp_dim,
        "heads": heads,
        "patch_size": patch_size,
        "image_size": choices.square(grid, stride, said.image_size or image_size),
        "channels": t[first].shape[1],
        "classes": t["head.weight"].shape[0] if "head.weight" in t else 0,
        "pre_logits": t["pre_logits.fc.weight"].shape[0] if "pre_logits.fc.weight" in t else 0,
        "pool": pool_of(t, said, choices),
        "class_token": class_token,
        "positions": "none" if positions is None else "1d",
        "activation": choices.of("activation", activation, "gelu", sure=sure),
        "norm_eps": choices.of("norm_eps", None, NORM_EPS, sure=sure),
        "norm_at": "pooled" if "fc_norm.weight" in t else "encoder",
        **said.dropouts,
    }
    return HybridConfig(**fields, stem=stem) if stem else ViTConfig(**fields)


def check_enough_is_said(
    t: Mapping[str, Tensor], heads: int | None, activation: str | None, where: str
) -> None:
    """Refuse to guess where timm's own functions differ for the same tensors; with a class token they do not."""
    if "cls_token" in t:
        return
    beside = "or put timm's config.json, which names the architecture, beside it"
    if "blocks.0.attn.qkv.bias" not in t:
        raise CheckpointError(
            f"{where} has neither a class token nor biases of q, k and v: such models of timm normalise before each "
            "layer or, as vit_base_patch16_rpn_224, after it, which has no counterpart here; put timm's config.json, "
            "which names the architecture, beside it"
        )
    needed = {"heads=": heads, "activation=gelu or =gelu_tanh": activation}
    if unsaid := [name for name, value in needed.items() if value is None]:
        raise CheckpointError(
            f"{where} has no class token, and timm's models without one differ in what tensors do not show: say "
            f"{' and '.join(unsaid)} (vitrail convert writes a bundle that says them), {beside}"
        )


def pool_of(t: Mapping[str, Tensor], said: Said, choices: Choices) -> str:
    """As the config file says, else as timm's models with these tensors do."""
    class_token, where = "cls_token" in t, choices.where
    inferred = "attention" if "attn_pool.latent" in t else "token"
    if inferred == "token" and ("fc_norm.weight" in t or not class_token):
        inferred = "mean"
    configured = said.choice("global_pool", POOLS, where)
    if configured is None and not class_token:  # the tensors show it
        configured = inferred
    pool: str = choices.of("pool", configured, inferred, sure=said.is_known)
    prefix = bool(said.args.get("pool_include_prefix"))
    if class_token and ((pool == "attention" and not prefix) or (pool == "mean" and prefix)):
        what = "the probe attends to all tokens" if pool == "attention" else "the mean is of the patches only"
        raise CheckpointError(f"{where}: with a class token, here {what}; pool_include_prefix={prefix} there")
    return pool


def first_convolution(t: Mapping[str, Tensor]) -> str:
    """The one that sees the image."""
    names = (f"{BACKBONE}stem.conv.weight", f"{BACKBONE}conv.weight", "patch_embed.proj.weight")
    return next(name for name in names if name in t)


def stem_config(t: Mapping[str, Tensor], where: str) -> StemConfig | None:
    if not any(key.startswith(BACKBONE) for key in t):
        return None
    return StemConfig(units_of(t, BACKBONE, where), t[first_convolution(t)].shape[0] / 64, **RESNET)


def bit_config(t: Mapping[str, Tensor], said: Said, choices: Choices, image_size: Size | None) -> BiTConfig:
    """A ResNet takes any image size: the config file's, else what is asked for, else 224."""
    where = choices.where
    size = choices.square(pair(said.image_size or image_size or 224), 1, said.image_size or image_size)
    classes = t["head.fc.weight"].shape[0] if "head.fc.weight" in t else 0
    root = t["stem.conv.weight"]
    factor = root.shape[0] / 64
    config = BiTConfig(units_of(t, "", where), factor, size, root.shape[1], classes, **RESNET)
    choices.asked.check(config, where)
    return config


def units_of(t: Mapping[str, Tensor], prefix: str, where: str) -> tuple[int, ...]:
    inside = [key.removeprefix(prefix) for key in t if key.startswith(prefix)]
    stages = count(inside, r"stages\.(\d+)\.", where)
    return tuple(count(inside, rf"stages\.{s}\.blocks\.(\d+)\.", where) for s in range(stages))
