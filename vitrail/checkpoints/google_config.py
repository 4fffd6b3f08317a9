"""Google's arrays -> the architecture, from their names and shapes alone."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.checkpoints.google_names import BLOCK_NAMES, BLOCKS, POSITIONS, TOP_POSITIONS, naming_of
from vitrail.checkpoints.sizes import grid_at
from vitrail.errors import CheckpointError
from vitrail.models.hybrid import HybridConfig
from vitrail.models.names import Config
from vitrail.models.resnet import BiTConfig, StemConfig
from vitrail.models.vit import ViTConfig


def config_of(tensors: Mapping[str, Tensor], image_size: int | tuple[int, int] | None, path: Path) -> Config:
    if "embedding/kernel" not in tensors:
        return bit_config(tensors, image_size)
    patch_size, _, channels, width = tensors["embedding/kernel"].shape
    depth = numbered(tensors, rf"{BLOCKS}(\d+)/", first=0)
    if not depth:
        raise ValueError("there are no encoder blocks")
    part = BLOCK_NAMES[naming_of(tensors)]
    heads = tensors[f"{BLOCKS}0/{part['attention']}/query/kernel"].shape[1]
    shared: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "mlp_dim": tensors[f"{BLOCKS}0/{part['mlp']}/Dense_0/kernel"].shape[1],
        "heads": heads,
        "patch_size": patch_size,
        "classes": tensors["head/kernel"].shape[-1] if "head/kernel" in tensors else 0,
        "pre_logits": tensors["pre_logits/kernel"].shape[-1] if "pre_logits/kernel" in tensors else 0,
        "class_token": "cls" in tensors,
        "pool": "token" if "cls" in tensors else "attention" if "MAPHead_0/probe" in tensors else "mean",
    }
    stem = stem_config(tensors)
    stride = patch_size * (stem.stride if stem else 1)
    grid, kind = grid_of(tensors, image_size, stride, path)
    shared |= {"image_size": (grid[0] * stride, grid[1] * stride), "positions": kind}
    shared["channels"] = tensors["conv_root/kernel"].shape[2] if stem else channels
    return HybridConfig(**shared, stem=stem) if stem else ViTConfig(**shared)


def grid_of(
    tensors: Mapping[str, Tensor], image_size: int | tuple[int, int] | None, stride: int, path: Path
) -> tuple[tuple[int, int], Any]:
    """Rows and columns, and the kind of positions. A file without any is big_vision's fixed sin-cos."""
    asked_grid = grid_at(image_size, stride) if image_size else None
    table = tensors.get(POSITIONS, tensors.get(TOP_POSITIONS))
    if table is None:
        if "cls" in tensors or naming_of(tensors) == "original":
            raise CheckpointError(f"{path}: missing {POSITIONS}")
        return asked_grid or grid_at(224, stride), "sincos"
    N = table.shape[1] - (POSITIONS in tensors and "cls" in tensors)
    side = math.isqrt(N)
    if side * side == N:
        return (side, side), "1d"
    if asked_grid and asked_grid[0] * asked_grid[1] == N:
        return asked_grid, "1d"
    raise CheckpointError(
        f"{path} has positions for {N} patches, which are not a square: say image_size=(height, width)"
    )


def stem_config(tensors: Mapping[str, Tensor]) -> StemConfig | None:
    if "conv_root/kernel" not in tensors:
        return None
    stages = numbered(tensors, r"block(\d+)/", first=1)
    units = tuple(numbered(tensors, rf"block{s}/unit(\d+)/", first=1) for s in range(1, stages + 1))
    return StemConfig(units, tensors["conv_root/kernel"].shape[-1] / 64)


def bit_config(tensors: Mapping[str, Tensor], image_size: int | tuple[int, int] | None) -> BiTConfig:
    """A ResNet takes any image size; its arrays do not tell which: 224, where nothing is asked for."""
    stages = numbered(tensors, r"resnet/block(\d+)/", first=1)
    units = tuple(numbered(tensors, rf"resnet/block{s}/unit(\d+)/", first=1) for s in range(1, stages + 1))
    root = tensors["resnet/root_block/standardized_conv2d/kernel"]
    head = tensors.get("resnet/head/conv2d/kernel")
    size: Any = image_size or (224, 224)
    return BiTConfig(units, root.shape[-1] / 64, size, root.shape[2], 0 if head is None else head.shape[-1])


def numbered(tensors: Mapping[str, Tensor], pattern: str, *, first: int) -> int:
    """How many there are of what the pattern counts; without gaps, from `first` on."""
    found = sorted({int(m[1]) for m in (re.match(pattern, key) for key in tensors) if m})
    if found != list(range(first, first + len(found))):
        raise ValueError(f"{pattern} counts {found}")
    return len(found)
