"""The adapters of a run apart from the weights that they were trained for: a folder, small beside a bundle.

    adapter.safetensors   the matrices of the adapters and the head, by the names of the parameters
    adapter.json          the digest of the base weights, the architecture, preprocessing line, class names, license,
                          and the digests of both files, as in a bundle

    apply(read("ti8-64"), folder)      the base and the adapters merged: the run's own bundle again

They fit the weights that they were trained for, which is checked, and nothing in the folder names a file to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from torch import Tensor

from vitrail.checkpoints import torch_files
from vitrail.checkpoints.bundle import digest_file, read_card, seal_card
from vitrail.checkpoints.checkpoint import (
    Checkpoint,
    change_classes,
    change_image_size,
    check_finite_weights,
    config_from_json,
    config_to_json,
    listing,
    weights_digest,
)
from vitrail.checkpoints.json_files import save_json
from vitrail.checkpoints.license import complete_license, inherit_license, stated_license
from vitrail.data import preprocess as pp
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.adapters import DOWN, SCALE, UP, base_weights, merge
from vitrail.models.names import Config
from vitrail.runtime.files import atomic_folder

WEIGHTS, CARD = "adapter.safetensors", "adapter.json"
VERSION = 1
# Fields of an architecture that may differ from those of the base: they change the head and the positions alone.
FREE = ("classes", "image_size", "pre_logits", "dropout", "attention_dropout", "drop_path", "head_bias")


class Card(TypedDict):
    """Schema of adapter.json."""

    format: str
    version: int
    base: str
    scale: float
    architecture: dict[str, Any]
    preprocess: str
    class_names: list[str] | None
    provenance: dict[str, Any]
    metrics: dict[str, Any]
    license: dict[str, Any]
    sha256: dict[str, Any]


def base_digest(checkpoint: Checkpoint) -> str:
    """Return the digest of the weights that a run starts from, without their head, which is never kept."""
    return weights_digest(dict(sorted(change_classes(checkpoint, 0).weights.items())))


def write(merged: Checkpoint, weights: Mapping[str, Tensor], base: str, folder: Path) -> None:
    """Write the adapters and the head among the weights of an adapted model; `merged` is what they amount to."""
    torch_files.check_own_folder(folder, (WEIGHTS, CARD), "saved")
    own = {
        name: w.float().cpu()
        for name, w in weights.items()
        if name.startswith("head.") or name.endswith((DOWN, UP))
    }
    card = {
        "format": "vitrail adapter",
        "version": VERSION,
        "base": base,
        "scale": SCALE,
        "architecture": config_to_json(merged.config),
        "preprocess": merged.preprocess,
        "class_names": merged.class_names,
        "provenance": merged.provenance,
        "metrics": merged.metrics,
        "license": complete_license(merged.license),
    }
    with atomic_folder(folder) as temporary:
        torch_files.save_safetensors(own, temporary / WEIGHTS)
        save_json(seal_card(card, temporary / WEIGHTS, CARD), temporary / CARD)


def apply(base: Checkpoint, folder: Path) -> Checkpoint:
    """Return the base with the adapters of a folder merged into it, and with their head."""
    where = folder / CARD
    card = read_card(where, Card, VERSION)
    if card["scale"] != SCALE:
        raise CheckpointError(f"{where}: scale {card['scale']:g}; this version of vitrail reads {SCALE}")
    config = config_from_json(card["architecture"], str(where))
    if base_digest(base) != card["base"]:
        raise CheckpointError(
            f"{folder} was trained for other weights: their digest is {card['base'][:40]}, that of these "
            f"{base_digest(base)}"
        )
    check_same(base.config, config, where)
    names = card["class_names"]
    if names is not None and len(names) != config.classes:
        raise CheckpointError(f"{where}: {len(names)} class names for {config.classes} classes")
    try:
        pp.parse(card["preprocess"])
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error
    changed = change_image_size(change_classes(change_classes(base, 0), config.classes), config.image_size)
    own = torch_files.read_safetensors(folder / WEIGHTS)
    if digest_file(folder / WEIGHTS) != card["sha256"].get(WEIGHTS):
        raise CheckpointError(f"{folder / WEIGHTS} is damaged: its SHA-256 is not the one in {CARD}")
    check_finite_weights(own, str(folder / WEIGHTS))
    weights = merge(with_adapters(changed.weights, own, folder / WEIGHTS))
    license = stated_license(card["license"]) | inherit_license(base.license)
    return Checkpoint(
        config, weights, card["preprocess"], names, card["provenance"], card["metrics"], license
    )


def check_same(base: Config, config: Config, where: Path) -> None:
    """Raise an error if an architecture differs from that of the base in more than the head and the image size."""
    ours, theirs = config_to_json(base), config_to_json(config)
    differing = [name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)]
    if wrong := sorted(set(differing) - set(FREE)):
        texts = [f"{name} {theirs.get(name)}, not {ours.get(name)}" for name in wrong]
        raise CheckpointError(f"{where} is for another architecture: {listing(texts)}")


def with_adapters(weights: dict[str, Tensor], own: dict[str, Tensor], where: Path) -> dict[str, Tensor]:
    """Return the weights of the adapted model; raise an error unless every tensor belongs to a layer, and fits it."""
    heads = {name for name in weights if name.startswith("head.")}
    layers = {name.removesuffix(end) for name in own for end in (DOWN, UP) if name.endswith(end)}
    expected = heads | {layer + end for layer in layers for end in (DOWN, UP)}
    problems = [f"{name} is missing" for name in sorted(expected - own.keys())]
    problems += [f"{name} is unknown" for name in sorted(own.keys() - expected)]
    problems += [
        f"{layer} is no layer of the base" for layer in sorted(layers) if f"{layer}.weight" not in weights
    ]
    if not problems:
        problems += [
            f"{name} is {tuple(own[name].shape)}" for name in heads if own[name].shape != weights[name].shape
        ]
        for layer in sorted(layers):
            down, up, W = own[layer + DOWN], own[layer + UP], weights[f"{layer}.weight"]
            if (
                down.ndim != 2
                or W.ndim != 2
                or down.shape[1:] != W.shape[1:]
                or up.shape != (len(W), len(down))
            ):
                problems.append(f"{layer}: {tuple(down.shape)}, {tuple(up.shape)} for {tuple(W.shape)}")
    if problems:
        raise CheckpointError(f"{where}: {listing(problems)}")
    return base_weights(weights) | own
