"""Names as people write them -> a config -> a model.

    B/16  ViT-B/16  vit-b_16  L/16@512  B/16@224x384                this paper and its code
    R50+ViT-B/16  R26+S/32  BiT-R152x2  R50x1  BiT-M-R101x3         its hybrids and baselines
    vit_base_patch16_224  vit_base_r50_s16_384  resnetv2_50x1_bit   timm
    google/vit-base-patch16-224-in21k  vit_b_16                     transformers, torchvision

Case does not matter, except for g (giant) and G (gigantic).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import fields, replace
from typing import Any

from vitrail.errors import ConfigError
from vitrail.models.hybrid import HYBRIDS, Hybrid, HybridConfig
from vitrail.models.resnet import UNITS, BiT, BiTConfig, StemConfig
from vitrail.models.vit import VARIANTS, ViT, ViTConfig

Config = ViTConfig | HybridConfig | BiTConfig
Model = ViT | Hybrid | BiT

BITS = ("R50x1", "R50x2", "R50x3", "R101x1", "R101x3", "R152x1", "R152x2", "R152x4", "R200x3")
PLAIN = (
    "Ti/16", "S/32", "S/16", "B-half/32", "B/32", "B/16", "B/8", "L/32", "L/16", "So400m/14", "H/14", "g/14",
    "G/14",
)  # fmt: skip
# Models that `vitrail models` lists; other combinations of variant and patch size work too.
MODELS: tuple[str, ...] = (*PLAIN, *HYBRIDS, *BITS)

# Included models (checkpoints/included.py), which come with weights; here so that a message can point to them.
INCLUDED_NAMES = ("ti8-64",)

TIMM_SIZES = {
    "tiny": "Ti", "small": "S", "medium": "M", "base": "B", "large": "L", "huge": "H", "so400m": "So400m",
    "giant": "g", "giantopt": "g-opt", "gigantic": "G",
}  # fmt: skip


def make_config(name: str, **overrides: Any) -> Config:
    """Return the config of a named model, with any of its fields replaced."""
    config = parse(name)
    unknown = sorted(set(overrides) - {f.name for f in fields(config)})
    if unknown:
        allowed = ", ".join(f.name for f in fields(config))
        raise ConfigError(f"{name} has no field {', '.join(unknown)}; its fields are {allowed}")
    if "pool" in overrides and "class_token" not in overrides:
        overrides["class_token"] = None  # follows the pooling
    if "positions" in overrides and "positions_at" not in overrides:
        overrides["positions_at"] = None  # follows the kind of positions
    return replace(config, **overrides)


def build(config: Config) -> Model:
    """Return a model with fresh weights."""
    if isinstance(config, BiTConfig):
        return BiT(config)
    return Hybrid(config) if isinstance(config, HybridConfig) else ViT(config)


def parse(name: str) -> Config:
    text = re.sub(r"^(google|timm|facebook)/", "", name.strip(), flags=re.IGNORECASE)
    text, size = split_size(text)
    for read in (plain, hybrid, bit, timm_plain, timm_hybrid, timm_bit):
        config = read(text, size)
        if config is not None:
            return config
    raise unknown_model(name)


def split_size(text: str) -> tuple[str, tuple[int, int]]:
    """Split 'L/16@512' into ('L/16', (512, 512)); the default size is 224."""
    match = re.fullmatch(r"(.*)@(\d+)(?:[xX](\d+))?", text)
    if not match:
        return text, (224, 224)
    return match[1], (int(match[2]), int(match[3] or match[2]))


def variant(text: str) -> str | None:
    if text in VARIANTS:
        return text
    # "G" matched above; other cases of g find "g", which is first in the table.
    return next((known for known in VARIANTS if known.lower() == text.lower()), None)


def plain(text: str, size: tuple[int, int]) -> ViTConfig | None:
    match = re.fullmatch(r"(?:vit[-_])?([a-z0-9]+(?:-[a-z]+)?)[-/_](\d+)", text, re.IGNORECASE)
    known = variant(match[1]) if match else None
    return vit_config(known, int(match[2]), size) if match and known else None


def vit_config(known: str, patch_size: int, size: tuple[int, int]) -> ViTConfig:
    return ViTConfig(*VARIANTS[known], patch_size, size)


def hybrid(text: str, size: tuple[int, int]) -> HybridConfig | None:
    match = re.fullmatch(r"(r\d*)\+(?:vit[-_])?([a-z]+)[/_](\d+)", text, re.IGNORECASE)
    name = f"{match[1]}+{match[2]}/{match[3]}".lower() if match else ""
    known = next((known for known in HYBRIDS if known.lower() == name), None)
    if known is None:
        return None
    units, vit, patch_size = HYBRIDS[known]
    return HybridConfig(*VARIANTS[vit], patch_size, size, stem=StemConfig(units))


def bit(text: str, size: tuple[int, int]) -> BiTConfig | None:
    match = re.fullmatch(r"(?:bit[-_])?(?:[sml][-_])?(r\d+)x(\d+)", text, re.IGNORECASE)
    if not match or match[1].upper() not in UNITS:
        return None
    return BiTConfig(UNITS[match[1].upper()], int(match[2]), size)


def timm_plain(text: str, size: tuple[int, int]) -> ViTConfig | None:
    """timm's and transformers' vit_base_patch16_224[.tag][_in21k]."""
    text = re.sub(r"\..*|_in(21|1)k$", "", text.lower().replace("-", "_"))
    match = re.fullmatch(r"vit_([a-z0-9]+)_patch(\d+)(?:_(?:gap_)?(\d+))?", text)
    if not match or match[1] not in TIMM_SIZES:
        return None
    size = (int(match[3]), int(match[3])) if match[3] else size
    config = vit_config(TIMM_SIZES[match[1]], int(match[2]), size)
    return replace(config, pool="mean", class_token=None) if "_gap_" in text else config


def timm_hybrid(text: str, size: tuple[int, int]) -> HybridConfig | None:
    match = re.fullmatch(
        r"vit_([a-z]+)_(r\d*)_s(\d+)(?:_p8)?(?:_(\d+))?(?:_in\d+k)?",
        re.sub(r"\..*", "", text.lower().replace("-", "_")),
    )
    if not match or match[1] not in TIMM_SIZES:
        return None
    size = (int(match[4]), int(match[4])) if match[4] else size
    return hybrid(f"{match[2]}+{TIMM_SIZES[match[1]]}/{match[3]}", size)


def timm_bit(text: str, size: tuple[int, int]) -> BiTConfig | None:
    match = re.fullmatch(r"resnetv2_(\d+)x(\d+)_bit[ms]?(?:_in\d+k)?(?:\..*)?", text.lower())
    return bit(f"R{match[1]}x{match[2]}", size) if match else None


def unknown_model(name: str) -> ConfigError:
    if name in INCLUDED_NAMES:
        return ConfigError(
            f"{name} is an included model with weights, not an architecture: use vitrail.load({name!r})"
        )
    spellings = {
        spelling.lower(): known for known in MODELS for spelling in (known, f"ViT-{known}", f"BiT-{known}")
    }
    for word, short in TIMM_SIZES.items():
        spellings |= {f"vit_{word}_patch{p}": f"{short}/{p}" for p in (8, 14, 16, 32)}
    spellings |= {included: f"{included} (included)" for included in INCLUDED_NAMES}
    near = [spellings[s] for s in difflib.get_close_matches(name.lower(), spellings, n=3, cutoff=0.4)]
    suggestion = f"; did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
    return ConfigError(
        f"unknown model {name!r}{suggestion} (names look like B/16, L/16@512 or R50x1; `vitrail models` lists them)"
    )
