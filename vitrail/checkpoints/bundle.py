"""A bundle: a model as a folder that anyone can read.

    model.safetensors   the weights, by the names of the model's parameters
    model.json          architecture, preprocessing line, class names, provenance, metrics, license; and under
                        sha256 the digests of the weights' file and of all else in this one, checked on loading

Written whole or not at all. A folder that holds anything else is never overwritten. Weights are stored in single or
half precision, and used in single. Bundles of version 1 have no digests: what damage did to them cannot be seen.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitrail.checkpoints import torch_files
from vitrail.checkpoints.checkpoint import Checkpoint, check_extent, config_from_json, config_to_json, listing
from vitrail.checkpoints.license import both_parts, check_license, known
from vitrail.data import preprocess as pp
from vitrail.errors import CheckpointError, ConfigError
from vitrail.runtime.files import atomic_folder

WEIGHTS, CARD = "model.safetensors", "model.json"
VERSION = 2
UNSEALED = 1  # the last version without digests
PRECISIONS = {"float32": torch.float32, "float16": torch.float16}
# What the entries of a card must be.
KINDS: dict[str, Any] = {
    "version": int,
    "architecture": dict,
    "preprocess": str,
    "class_names": list | None,
    "provenance": dict,
    "metrics": dict,
    "license": dict,
    "sha256": dict,
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
    stored = torch_files.read_safetensors(folder / WEIGHTS)
    if "sha256" in card and digest_of_file(folder / WEIGHTS) != card["sha256"].get(WEIGHTS):
        raise CheckpointError(f"{folder / WEIGHTS} is damaged: its SHA-256 is not the one in {CARD}")
    check_extent(config, stored, str(where))
    # Copied out of the file, which others may cut or replace while the model is in use.
    weights = {name: w.to(torch.float32, copy=True) for name, w in stored.items()}
    return Checkpoint(
        config, weights, card["preprocess"], class_names, card.get("provenance", {}), card.get("metrics", {}),
        known(card.get("license", {})),
    )  # fmt: skip


def in_precision(checkpoint: Checkpoint, precision: str) -> Checkpoint:
    """The same with its weights as they are to be stored; refused where one of them has no place in that range."""
    if precision not in PRECISIONS:
        raise ConfigError(f"precision {precision!r} is not one of {', '.join(PRECISIONS)}")
    weights = {name: w.to(PRECISIONS[precision]) for name, w in checkpoint.weights.items()}
    lost = [name for name, w in weights.items() if (w.isinf() & checkpoint.weights[name].isfinite()).any()]
    if lost:
        most = torch.finfo(PRECISIONS[precision]).max
        raise CheckpointError(f"weights beyond {most:,.0f}, the most of {precision}: {listing(lost)}")
    return replace(checkpoint, weights=weights)


def write(checkpoint: Checkpoint, folder: Path) -> list[str]:
    torch_files.check_own_folder(folder, (WEIGHTS, CARD) if recognises(folder) else (), "bundled")
    card = {
        "format": "vitrail bundle",
        "version": VERSION,
        "architecture": config_to_json(checkpoint.config),
        "preprocess": checkpoint.preprocess,
        "class_names": checkpoint.class_names,
        "provenance": checkpoint.provenance,
        "metrics": checkpoint.metrics,
        "license": both_parts(checkpoint.license),
    }
    with atomic_folder(folder) as temporary:
        torch_files.save_safetensors(checkpoint.weights, temporary / WEIGHTS)
        torch_files.save_json(sealed(card, temporary / WEIGHTS), temporary / CARD)
    return []


def sealed(card: dict[str, Any], weights: Path) -> dict[str, Any]:
    """A card with the digests of the weights' file and of its own content."""
    return {**card, "sha256": {WEIGHTS: digest_of_file(weights), CARD: digest_of_card(card)}}


def digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_card(card: dict[str, Any]) -> str:
    """Of the content, however it is spaced and ordered, as a reader of the JSON gets it."""
    content = json.loads(json.dumps({name: entry for name, entry in card.items() if name != "sha256"}))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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
    try:
        check_license(card.get("license", {}))
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if card["version"] > VERSION:
        raise CheckpointError(f"{path} is version {card['version']}; this vitrail reads up to {VERSION}")
    if "sha256" not in card and card["version"] > UNSEALED:
        raise CheckpointError(f"{path} lacks sha256")
    if "sha256" in card and digest_of_card(card) != card["sha256"].get(CARD):
        raise CheckpointError(
            f"{path} is damaged, or was edited by hand: its SHA-256 is not the one written in it. Change a model in "
            "Python (vitrail.load, its preprocess or class_names, vitrail.save) or by vitrail convert"
        )
    return card
