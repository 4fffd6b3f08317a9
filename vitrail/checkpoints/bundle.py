"""A bundle: a model as a folder that anyone can read.

    model.safetensors   the weights, by the names of the model's parameters
    model.json          architecture, preprocessing line, class names, provenance, metrics, license, calibration
                        (temperature, thresholds), scales for fp8; under sha256 the digests of the weights' file and
                        of the rest of this one, checked on loading

Written completely or not at all. A folder with other contents is never overwritten. Weights are stored in single or
half precision, and used in single. Bundles of version 1 have no digests: damage to them cannot be detected.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

import torch

from vitrail.checkpoints import torch_files
from vitrail.checkpoints.checkpoint import Checkpoint, check_extent, config_from_json, config_to_json, listing
from vitrail.checkpoints.json_files import read_object, save_json
from vitrail.checkpoints.license import check_license, complete_license, stated_license
from vitrail.checkpoints.mapping import read_weights
from vitrail.data import preprocess as pp
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.calibration import Calibration
from vitrail.runtime.files import atomic_folder

WEIGHTS, CARD = "model.safetensors", "model.json"
VERSION = 2
UNSEALED = 1  # the last version without digests
PRECISIONS = {"float32": torch.float32, "float16": torch.float16}


class Required(TypedDict):
    version: int
    architecture: dict[str, Any]
    preprocess: str


class Card(Required, total=False):
    """Schema of model.json."""

    class_names: list[str] | None
    provenance: dict[str, Any]
    metrics: dict[str, Any]
    license: dict[str, Any]
    fp8: dict[str, Any]
    calibration: dict[str, Any]
    sha256: dict[str, Any]


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
        calibration = Calibration.from_json(card.get("calibration", {}))
        calibration.check(config.classes)
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error
    stored = torch_files.read_safetensors(folder / WEIGHTS)
    if "sha256" in card and digest_file(folder / WEIGHTS) != card["sha256"].get(WEIGHTS):
        raise CheckpointError(f"{folder / WEIGHTS} is damaged: its SHA-256 is not the one in {CARD}")
    check_extent(config, stored, str(where))
    # Copied out of the file, which others may truncate or replace while the model is in use.
    weights = read_weights(None, stored, config, str(folder))
    return Checkpoint(
        config, weights, card["preprocess"], class_names, card.get("provenance", {}), card.get("metrics", {}),
        stated_license(card.get("license", {})), card.get("fp8", {}),
        calibration,
    )  # fmt: skip


def cast_weights(checkpoint: Checkpoint, precision: str) -> Checkpoint:
    """Return the checkpoint with its weights in a precision; raise an error if one of them would overflow."""
    if precision not in PRECISIONS:
        raise ConfigError(f"precision {precision!r} is not one of {', '.join(PRECISIONS)}")
    weights = {name: w.to(PRECISIONS[precision]) for name, w in checkpoint.weights.items()}
    lost = [name for name, w in weights.items() if (w.isinf() & checkpoint.weights[name].isfinite()).any()]
    if lost:
        most = torch.finfo(PRECISIONS[precision]).max
        raise CheckpointError(
            f"weights above {most:,.0f}, the largest number of {precision}: {listing(lost)}"
        )
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
        "license": complete_license(checkpoint.license),
        **({"fp8": checkpoint.fp8} if checkpoint.fp8 else {}),
        **({"calibration": c} if (c := checkpoint.calibration.as_json()) else {}),
    }
    with atomic_folder(folder) as temporary:
        torch_files.save_safetensors(checkpoint.weights, temporary / WEIGHTS)
        save_json(seal_card(card, temporary / WEIGHTS), temporary / CARD)
    return []


def seal_card(card: dict[str, Any], weights: Path, name: str = CARD) -> dict[str, Any]:
    """Add the digests of the weights' file and of the card itself, which will have this name."""
    return {**card, "sha256": {weights.name: digest_file(weights), name: digest_card(card)}}


def digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_card(card: dict[str, Any]) -> str:
    """Return the digest of the content, independent of spacing and order."""
    content = json.loads(json.dumps({name: entry for name, entry in card.items() if name != "sha256"}))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_card(path: Path, kind: Any = Card, version: int = VERSION) -> dict[str, Any]:
    """Read a card of up to a version, check it against a schema, and its digest."""
    card = read_object(path, kind, follow_links=True)
    try:
        check_license(card.get("license", {}))
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if card["version"] > version:
        raise CheckpointError(
            f"{path} has version {card['version']}; this version of vitrail reads up to {version}"
        )
    if "sha256" not in card and card["version"] > UNSEALED:
        raise CheckpointError(f"{path} lacks sha256")
    if "sha256" in card and digest_card(card) != card["sha256"].get(path.name):
        raise CheckpointError(
            f"{path} is damaged, or was edited by hand: its SHA-256 is not the one written in it. Change a model in "
            "Python (vitrail.load, set its preprocess or class_names, vitrail.save) or with vitrail convert"
        )
    return card
