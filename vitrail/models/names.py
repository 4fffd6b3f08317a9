"""Names as people write them -> a config -> a model.

    B/16  ViT-B/16  vit-b_16  L/16@512  B/16@224x384                this paper and its code
    R50+ViT-B/16  R26+S/32  BiT-R152x2  R50x1  BiT-M-R101x3         its hybrids and baselines; R14x0.5 is smaller
    vit_base_patch16_224  vit_base_r50_s16_384  resnetv2_50x1_bit   timm
    google/vit-base-patch16-224-in21k  vit_b_16                     transformers, torchvision

Case does not matter, except for g (giant) and G (gigantic).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
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
# Spellings of a ViT, a hybrid and a BiT ResNet, in any case.
PAPER = (
    r"(?:vit[-_])?(?P<variant>[a-z0-9]+(?:-[a-z]+)?)[-/_](?P<patch>\d+)",
    r"r(?P<layers>\d*)\+(?:vit[-_])?(?P<variant>[a-z]+)[/_](?P<patch>\d+)",
    r"(?:bit[-_])?(?:[sml][-_])?r(?P<layers>\d+)x(?P<factor>\d+|0\.5)",
)
TIMM = (  # and transformers
    r"vit_(?P<variant>[a-z0-9]+)_patch(?P<patch>\d+)(?:_(?P<gap>gap_)?(?P<pixels>\d+))?",
    r"vit_(?P<variant>[a-z]+)_r(?P<layers>\d*)_s(?P<patch>\d+)(?:_p8)?(?:_(?P<pixels>\d+))?",
    r"resnetv2_(?P<layers>\d+)x(?P<factor>\d+)_bit[ms]?",
)


def make_config(name: str, **overrides: Any) -> Config:
    """Return the config of a named model, with any of its fields replaced."""
    config = parse_name(name)
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


def parse_name(name: str) -> Config:
    text, image_size = split_size(re.sub(r"^(google|timm|facebook)/", "", name.strip(), flags=re.IGNORECASE))
    timm = re.sub(r"\..*|_in\d+k$", "", text.lower().replace("-", "_"))  # without its tag
    for pattern, spelling in [*((one, text) for one in PAPER), *((one, timm) for one in TIMM)]:
        match = re.fullmatch(pattern, spelling, re.IGNORECASE)
        if match is None:
            continue
        groups = match.groupdict()
        word = groups.get("variant") or ""
        variant = TIMM_SIZES.get(word) if pattern in TIMM else in_any_case(word, VARIANTS)
        pixels = groups.get("pixels")
        size = (int(pixels), int(pixels)) if pixels else image_size
        if "factor" in groups:
            if units := UNITS.get(f"R{groups['layers']}"):
                factor = groups["factor"]
                return BiTConfig(units, 0.5 if factor == "0.5" else int(factor), size)
        elif "layers" in groups:
            if known := in_any_case(f"R{groups['layers']}+{variant}/{groups['patch']}", HYBRIDS):
                stem, vit, patch_size = HYBRIDS[known]
                return HybridConfig(*VARIANTS[vit], patch_size, size, stem=StemConfig(stem))
        elif variant:
            config = ViTConfig(*VARIANTS[variant], int(groups["patch"]), size)
            return replace(config, pool="mean", class_token=None) if groups.get("gap") else config
    raise unknown_model(name)


def in_any_case(text: str, names: Iterable[str]) -> str | None:
    """Return the name that equals the text, else the first that differs from it only in case: g before G."""
    known = list(names)
    return text if text in known else next((name for name in known if name.lower() == text.lower()), None)


def split_size(text: str) -> tuple[str, tuple[int, int]]:
    """Split 'L/16@512' into ('L/16', (512, 512)); the default size is 224."""
    match = re.fullmatch(r"(.*)@(\d+)(?:[xX](\d+))?", text)
    if not match:
        return text, (224, 224)
    return match[1], (int(match[2]), int(match[3] or match[2]))


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
