"""Google's `.npz` checkpoints <-> ours: the ViT paper's, AugReg, Linen, big_vision, hybrids, BiT-M.

The architecture is inferred from the arrays alone. What differs between the codes that wrote such files is a
Dialect (google_dialect.py); it is kept in the provenance, so that writing gives the same file again, key by key and
bit by bit.

D width, h heads, d = D / h, M mlp_dim, P patch. Their kernels are (in, out) and (rows, columns, in, out).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoints import mapping
from vitrail.checkpoints.checkpoint import (
    Checkpoint,
    check_extent,
    listing,
    parameter_shapes,
    unwritten_names,
)
from vitrail.checkpoints.google_config import config_of
from vitrail.checkpoints.google_dialect import Dialect, as_stored, canonical, oddities, spelled, tensor_of
from vitrail.checkpoints.google_names import BLOCKS, SCANNED, TOP_POSITIONS, entries_of, naming_of
from vitrail.checkpoints.license import unwritten_license
from vitrail.checkpoints.npz import read_npz, write_npz
from vitrail.checkpoints.plain import plain, with_table
from vitrail.checkpoints.unsaid import NOTHING, Asked
from vitrail.data import preprocess as pp
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.checking import MOST
from vitrail.models.hybrid import HybridConfig
from vitrail.models.names import Config
from vitrail.models.resnet import BiTConfig, StemConfig
from vitrail.models.vit import ViTConfig
from vitrail.runtime.log import note, visible

# What may stand in a file beside the model: optimizer state, the text tower and scalars of SigLIP.
NOT_THE_MODEL = re.compile(r"(opt/state|opt/|states?/|params/txt/|txt/|params/[tb]$|[tb]$|extra/)")


def read(
    path: Path, asked: Asked = NOTHING, *, image_size: int | tuple[int, int] | None = None
) -> Checkpoint:
    """`image_size` is asked for only where the file has a grid that is not square; `asked` where a model was not made
    by the published code, whose GELU and epsilon are the only ones there are."""
    arrays = read_npz(path)
    prefix = prefix_of(arrays, path)
    inside = {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
    beside = [k for k in arrays if not k.startswith(prefix) or NOT_THE_MODEL.match(k.removeprefix(prefix))]
    if strange := [k for k in beside if not NOT_THE_MODEL.match(k)]:
        raise CheckpointError(f"{path}: extra {listing(strange)}")
    inside = {k: a for k, a in inside.items() if prefix + k not in beside}
    if beside:
        note(f"{path.name}: {len(beside)} arrays beside the model (optimizer, other towers) are left out")
    tensors = {key: tensor_of(a, f"{path}: {key}") for key, a in inside.items()}
    scan = any(key.startswith(SCANNED) for key in inside)
    try:
        dialect = Dialect(prefix, naming_of(inside), scan, TOP_POSITIONS in inside, oddities(inside))
        tensors = {canonical(key): w for key, w in unscanned(tensors).items()}
        config = config_of(tensors, image_size, path)
    except (KeyError, IndexError, ValueError) as error:
        raise CheckpointError(f"{path}: the architecture cannot be inferred ({error})") from error
    if isinstance(config, ViTConfig):
        free = {name: value for name, value in asked.said.items() if name in ("activation", "norm_eps")}
        config = replace(config, **free)
    asked.check(config, str(path))
    check_extent(config, tensors, str(path))
    entries = list(entries_of(config, names=dialect.names, top=dialect.top))
    weights = mapping.read(entries, tensors, parameter_shapes(config), str(path))
    head = weights.get("head.classifier.weight")
    if head is not None and not head.any():
        note(f"{path.name}: the head is all zero (so were the published ImageNet-21k ones): no predictions")
    if any(a.dtype == np.float64 for a in inside.values()):
        note(f"{path.name}: float64 weights are rounded to float32")
    provenance = {"format": "npz", "file": visible(path.name), "dialect": asdict(dialect)}
    return Checkpoint(config, weights, line_of(config, dialect), provenance=provenance)


def write(checkpoint: Checkpoint, path: Path) -> list[str]:
    """In the dialect the weights came in, else in the original naming, which others read."""
    dialect = dialect_of(checkpoint)
    checkpoint = with_counterpart(checkpoint, known=checkpoint.provenance.get("format") == "npz")
    config, weights = checkpoint.config, checkpoint.weights
    table = weights.get("positions.table")
    if dialect.top and table is not None and "cls" in weights and table[:, :1].any():
        # This dialect has no position of the class token: what was learned of one goes into the token.
        weights = {**weights, "cls": weights["cls"] + table[:, :1]}
    tensors = mapping.write(list(entries_of(config, names=dialect.names, top=dialect.top)), weights)
    if dialect.scan:
        tensors = scanned(tensors)
    arrays, notes = {}, reader_notes(checkpoint, dialect)
    for key, w in tensors.items():
        name, spec = spelled(key, dialect)
        arrays[dialect.prefix + name], exact = as_stored(w.numpy(), spec)
        if not exact:
            notes.append(f"{name} is written as float32: {spec[0]} cannot hold its values any more")
    write_npz(path, arrays)
    return notes


def prefix_of(arrays: Mapping[str, np.ndarray], path: Path) -> str:
    """What stands before the one key that every model of a family has."""
    for landmark in (r"(.*?)embedding/kernel", r"(.*?)resnet/root_block/standardized_conv2d(_\d+)?/kernel"):
        found = [m for m in (re.fullmatch(landmark, key) for key in arrays) if m]
        if found:
            return min((m[1] for m in found), key=len)
    raise CheckpointError(
        f"{path} is not a ViT, hybrid or BiT checkpoint: it has neither embedding/kernel nor "
        f"resnet/root_block; its keys begin {', '.join(list(arrays)[:3]) or '(none)'}"
    )


def line_of(config: Config, dialect: Dialect) -> str:
    fixed_positions = isinstance(config, ViTConfig) and config.positions == "sincos"
    published = "big_vision_eval" if dialect.top or dialect.scan or fixed_positions else "official_eval"
    return str(pp.parse(pp.PRESETS[published]).at(config.image_size))


def reader_line(checkpoint: Checkpoint) -> str:
    """The published code's."""
    return line_of(checkpoint.config, dialect_of(checkpoint))


def dialect_of(checkpoint: Checkpoint) -> Dialect:
    """That in which the weights came, else the original naming."""
    if checkpoint.provenance.get("format") != "npz":
        return Dialect()
    try:
        return Dialect(**checkpoint.provenance["dialect"])
    except (KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(
            f"the provenance of this model does not tell its npz dialect ({error})"
        ) from error


def unscanned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One array for all layers -> one for each."""
    made: dict[str, Tensor] = {}
    for key, w in tensors.items():
        if key.startswith(SCANNED):
            if w.shape[0] > MOST["depth"]:
                raise ValueError(f"{key} is of {w.shape[0]} layers; at most {MOST['depth']}")
            made |= {f"{BLOCKS}{i}/{key.removeprefix(SCANNED)}": w[i] for i in range(w.shape[0])}
        else:
            made[key] = w
    return made


def scanned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    made: dict[str, Tensor] = {}
    layers: dict[str, dict[int, Tensor]] = {}  # name within a block: by layer
    for key, w in tensors.items():
        match = re.match(rf"{BLOCKS}(\d+)/(.*)", key)
        if match:
            layers.setdefault(match[2], {})[int(match[1])] = w
        else:
            made[key] = w
    return made | {SCANNED + k: torch.stack([by[i] for i in range(len(by))]) for k, by in layers.items()}


def with_counterpart(checkpoint: Checkpoint, *, known: bool) -> Checkpoint:
    """As the published code can have it, or refused. `known`: it came from such a file."""
    config = checkpoint.config
    if isinstance(config, BiTConfig) or (known and config.positions == "sincos"):
        return checkpoint
    checkpoint = with_table(plain(checkpoint, "npz"))
    assert isinstance(checkpoint.config, ViTConfig)
    if checkpoint.config.norm_at != "encoder":
        raise CheckpointError("npz has no counterpart for a last norm after the pooling")
    if config.class_token and config.pool != "token":
        raise CheckpointError(f"npz has no counterpart for a class token with pool={config.pool!r}")
    return checkpoint


def reader_notes(checkpoint: Checkpoint, dialect: Dialect) -> list[str]:
    """What the published code assumes and this model does not do: its reader must set it."""
    config, line = checkpoint.config, checkpoint.preprocess
    published: Config = BiTConfig() if isinstance(config, BiTConfig) else ViTConfig()
    notes = []
    if isinstance(config, BiTConfig):
        names: tuple[str, ...] = ("norm_eps", "standardisation", "standardisation_eps")
    else:
        names = ("activation", "norm_eps")
    for name in names:
        if getattr(config, name) != getattr(published, name):
            notes.append(
                f"the reader must set {name}={getattr(config, name)!r}: .npz files carry weights only"
            )
    if isinstance(config, HybridConfig) and replace(config.stem, units=(), width_factor=1) != StemConfig(()):
        notes.append(f"the reader must set the stem's {replace(config.stem, units=())}")
    if line and line != line_of(config, dialect):
        notes.append(f"the reader must prepare images as '{line}'")
    return notes + unwritten_names(checkpoint.class_names) + unwritten_license(checkpoint.license)
