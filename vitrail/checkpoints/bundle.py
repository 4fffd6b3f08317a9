"""A bundle: a model as a folder that anyone can read.

    model.safetensors   the weights, by the names of the model's parameters
    model.json          architecture, preprocessing line, class names, provenance, metrics

Written whole or not at all. A folder that holds anything else is never overwritten.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoints import torch_files
from vitrail.checkpoints.checkpoint import Checkpoint, config_from_json, config_to_json
from vitrail.data import preprocess as pp
from vitrail.errors import CheckpointError, ConfigError
from vitrail.runtime.files import atomic_folder

WEIGHTS, CARD = "model.safetensors", "model.json"
VERSION = 1
# What the entries of a card must be.
KINDS: dict[str, Any] = {
    "version": int,
    "architecture": dict,
    "preprocess": str,
    "class_names": list | None,
    "provenance": dict,
    "metrics": dict,
}


def recognises(folder: Path) -> bool:
    return (folder / CARD).is_file()


def read(folder: Path) -> Checkpoint:
    where = folder / CARD
    card = read_card(where)
    config = config_from_json(card["architecture"], str(where))
    class_names = card.get("class_names")
    if class_names is not None and len(class_names) != config.classes:
        raise CheckpointError(f"{where}: {len(class_names)} class names for {config.classes} classes")
    try:
        pp.parse(card["preprocess"])
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error
    weights = {name: as_float32(w) for name, w in torch_files.read_safetensors(folder / WEIGHTS).items()}
    return Checkpoint(
        config, weights, card["preprocess"], class_names, card.get("provenance", {}), card.get("metrics", {})
    )


def write(checkpoint: Checkpoint, folder: Path) -> list[str]:
    torch_files.check_own_folder(folder, (WEIGHTS, CARD), "bundled")
    card = {
        "format": "vitrail bundle",
        "version": VERSION,
        "architecture": config_to_json(checkpoint.config),
        "preprocess": checkpoint.preprocess,
        "class_names": checkpoint.class_names,
        "provenance": checkpoint.provenance,
        "metrics": checkpoint.metrics,
    }
    with atomic_folder(folder) as temporary:
        torch_files.save_safetensors(checkpoint.weights, temporary / WEIGHTS)
        torch_files.save_json(card, temporary / CARD)
    return []


def read_card(path: Path) -> dict[str, Any]:
    card = torch_files.read_json(path)
    missing = [name for name in ("version", "architecture", "preprocess") if name not in card]
    if missing:
        raise CheckpointError(f"{path} lacks {', '.join(missing)}")
    for name, kind in KINDS.items():
        if name in card and not isinstance(card[name], kind):
            raise CheckpointError(f"{path}: {name} is {str(card[name])[:60]!r}")
    if not all(isinstance(name, str) for name in card.get("class_names") or ()):
        raise CheckpointError(f"{path}: class_names are not all text")
    if card["version"] > VERSION:
        raise CheckpointError(f"{path} is version {card['version']}; this vitrail reads up to {VERSION}")
    return card


def as_float32(w: Tensor) -> Tensor:
    """Weights are stored in half precision at will, and used in single."""
    return w.to(torch.float32)
