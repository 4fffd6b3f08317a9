"""Their names <-> ours: a format is a table, read in both directions.

    "encoder.blocks.{i}.mlp.fc1": "blocks.{i}.mlp.fc1"                            its weight and its bias
    "encoder.blocks.{i}.attention.qkv": ("….query", "….key", "….value")           stacked along the first dimension

{i} is a layer, {s} a stage and {u} a unit of a ResNet, counted from 0; {s1} and {u1} are the same, counted from 1.
If theirs has another layout, the row is an Entry: `into` converts one of theirs to our layout, `back` is the inverse.
Reading consumes every key and sets every parameter, or names those it could not.

Some of our architectures are written differently elsewhere but compute the same: `make_plain` converts them to that
form, exactly. Architectures that compute something else have no counterpart, and are refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoints.checkpoint import Checkpoint, listing, parameter_shapes
from vitrail.errors import CheckpointError
from vitrail.models import positions
from vitrail.models.hybrid import HybridConfig
from vitrail.models.names import Config
from vitrail.models.vit import ViTConfig


def unchanged(w: Tensor) -> Tensor:
    return w


@dataclass(frozen=True)
class Entry:
    theirs: tuple[str, ...]
    into: Callable[[Tensor], Tensor] = unchanged
    back: Callable[[Tensor], Tensor] = unchanged


Row = str | tuple[str, ...] | Entry
Table = Mapping[str, Row]  # by our names; one without .weight or .bias is of both


@cache
def pattern(template: str) -> re.Pattern[str]:
    numbered = re.sub(r"\\{(\w+)(?::02)?\\}", r"(?P<\1>\\d+)", re.escape(template))
    return re.compile(rf"{numbered}(?P<leaf>|\.weight|\.bias)")


def as_entry(row: Row) -> Entry:
    return row if isinstance(row, Entry) else Entry((row,) if isinstance(row, str) else row)


def find_entry(table: Table, name: str) -> Entry:
    """Return the row of one of our parameters, with its numbers filled in."""
    for ours, row in table.items():
        if match := pattern(ours).fullmatch(name):
            leaf, entry = match["leaf"], as_entry(row)
            numbers = {letter: int(n) for letter, n in match.groupdict().items() if letter != "leaf"}
            numbers |= {f"{letter}1": n + 1 for letter, n in numbers.items()}
            return dataclasses.replace(entry, theirs=tuple(t.format(**numbers) + leaf for t in entry.theirs))
    raise AssertionError(f"no row for {name}")


def by_our_names(table: Table, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return views of the tensors that the table knows, as ours; of stacked ones, the first."""
    rows = [(ours, as_entry(row)) for ours, row in table.items()]
    renamed = {}
    for key, w in tensors.items():
        for ours, entry in rows:
            if match := pattern(entry.theirs[0]).fullmatch(key):
                groups = {name: int(n) for name, n in match.groupdict().items() if name != "leaf"}
                # s1: s counted from 1
                numbers = {name[0]: n - (name[1:] == "1") for name, n in groups.items()}
                try:
                    turned = entry.into(w)
                except (RuntimeError, IndexError):  # of another number of dimensions, which read_weights says
                    turned = w
                renamed[ours.format(**numbers) + match["leaf"]] = turned
                break
    return renamed


def read_weights(
    table: Table | None, tensors: Mapping[str, Tensor], config: Config, where: str, *, zeros: str = ""
) -> dict[str, Tensor]:
    """Return their tensors as ours, float32 copies in the shapes of `config`.

    `table`: None if the names are ours already. `zeros`: the ending of parameters that a model may lack altogether;
    zeros compute the same.
    """
    shapes = parameter_shapes(config)
    entries = {name: find_entry(table, name) if table else Entry((name,)) for name in shapes}
    lacking = {name for name in entries if zeros and name.endswith(zeros)}
    if any(key in tensors for name in lacking for key in entries[name].theirs):
        lacking = set()
    sources = [(name, e, key) for name, e in entries.items() if name not in lacking for key in e.theirs]
    expected = {key for _, _, key in sources}
    problems = [f"missing {key}" for _, _, key in sources if key not in tensors]
    problems += [f"extra {key}" for key in sorted(set(tensors) - expected)]
    problems += [
        f"{key} is {list(tensors[key].shape)}, which does not give {list(shapes[name])}"
        for name, entry, key in sources
        if key in tensors and not fits(entry, tensors[key], shapes[name])
    ]
    if problems:
        raise CheckpointError(f"{where}: {listing(problems)}")
    weights = {n: torch.zeros(s) if n in lacking else torch.empty(s) for n, s in shapes.items()}
    # One pass over memory: each part is turned and converted into its place.
    for name, entry in entries.items():
        if name not in lacking:
            for part, key in zip(weights[name].chunk(len(entry.theirs)), entry.theirs, strict=True):
                part.copy_(entry.into(tensors[key]))
    return weights


def fits(entry: Entry, tensor: Tensor, shape: tuple[int, ...]) -> bool:
    rows, odd = divmod(shape[0], len(entry.theirs)) if shape else (0, 0)
    try:
        return not odd and tuple(entry.into(tensor).shape) == (rows, *shape[1:])
    except (RuntimeError, IndexError):  # not even the number of dimensions is right
        return False


def write_weights(table: Table, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return our weights as theirs."""
    entries = {name: find_entry(table, name) for name in weights}
    return {
        key: entry.back(part).contiguous()
        for name, entry in entries.items()
        for part, key in zip(weights[name].chunk(len(entry.theirs)), entry.theirs, strict=True)
    }


def respell(tensors: Mapping[str, Tensor], spellings: Mapping[str, str], where: str) -> dict[str, Tensor]:
    """Rename tensors where two spellings are in use (pattern: replacement); a file must keep to one of them."""
    new = {}
    for name in tensors:
        new[name] = name
        for old, replacement in spellings.items():
            new[name] = re.sub(old, replacement, new[name])
    counts = Counter(new.values())
    if twice := [name for name in tensors if counts[new[name]] > 1]:
        raise CheckpointError(f"{where} holds tensors under two spellings of a name: {listing(twice)}")
    return {new[name]: w for name, w in tensors.items()}


# --- our architectures in the form that other libraries have ---


def make_plain(
    checkpoint: Checkpoint,
    to: str,
    *,
    with_positions: bool = False,
    only_token: Collection[str] = (),
    tanh: bool = True,
    parts: Collection[str] = (),
) -> tuple[Checkpoint, ViTConfig]:
    """Return the same function with one learned table of positions (or none) at the stem, as the format `to` has it.

    `with_positions`: a model without positions gets a table of zeros, for formats that always have one.
    `only_token`: the format has plain ViTs only, with these poolings. `tanh`: it has pre_logits.
    `parts`: what it has of later ViTs, as names of config fields, or as field=value; the rest is refused, but for
    missing biases, for which zeros compute the same.
    """
    c = checkpoint.config
    if not isinstance(c, ViTConfig) or (only_token and isinstance(c, HybridConfig)):
        raise CheckpointError(
            f"a checkpoint of {to} holds a plain ViT; hybrids and BiTs can be written for timm"
        )
    problem = ""
    if only_token and c.pool not in only_token:
        by = "the class token" if only_token == ("token",) else " or ".join(only_token)
        problem = f"pool={c.pool!r}: its ViTs classify by {by}"
    elif c.pre_logits and not tanh:
        problem = (
            "a tanh layer before the classifier: load the model with another number of classes (0: no classifier), "
            "which leaves its pre-training head out"
        )
    elif foreign := [part for part in find_parts(c) if not {part, part.partition("=")[0]} & set(parts)]:
        problem = ", ".join(foreign)
    elif c.positions not in ("none", "relative_bias") and (
        c.positions_at != "stem" or c.positions == "relative"
    ):
        problem = f"positions={c.positions!r}, positions_at={c.positions_at!r}: it adds one table at the stem"
    if problem:
        raise CheckpointError(f"{to} has no counterpart for {problem}")
    weights, absent = add_biases(checkpoint.weights, c, parts)
    if c.positions in ("2d", "sincos"):  # E_pos (1, T, D), computed
        module = positions.additive(c.positions, c.grid, c.width, c.prefix)
        assert module is not None
        module.load_state_dict({n: weights.pop(f"positions.{n}") for n in module.state_dict()})
        with torch.no_grad():
            weights["positions.table"] = module(c.grid)
    elif c.positions == "none" and with_positions:
        weights["positions.table"] = torch.zeros(1, c.tokens, c.width)
    if c.pool == "token" and c.norm_at == "pooled":
        # LayerNorm sees one token at a time: before or after picking one is the same.
        for name in ("weight", "bias"):
            weights[f"encoder.norm.{name}"] = weights.pop(f"pooled_norm.{name}")
    keeps_positions = c.positions == "relative_bias" or (c.positions == "none" and not with_positions)
    config = dataclasses.replace(
        c,
        positions=c.positions if keeps_positions else "1d",
        positions_at=c.positions_at if keeps_positions else "stem",
        norm_at="encoder" if c.pool == "token" and c.norm_at == "pooled" else c.norm_at,
        **absent,
    )
    return dataclasses.replace(checkpoint, config=config, weights=weights), config


# Fields of a ViTConfig that other formats may lack, each with the values that all of them have.
COMMON: dict[str, tuple[Any, ...]] = {
    "block": ("standard",),
    "norm_at": ("encoder", "pooled"),
    "activation": ("gelu", "gelu_tanh"),
    "pool": ("token", "mean", "attention"),
}
# Fields that say that biases are missing.
BIASES = ("embedding_bias", "qkv_bias", "dense_bias")


def find_parts(c: ViTConfig) -> list[str]:
    """Return what a model has of later ViTs, as field=value; missing biases are no part."""
    names = [f.name for f in dataclasses.fields(ViTConfig)]
    added = [name for name in names[names.index("registers") :] if name not in BIASES]
    parts = [f"{name}={getattr(c, name)}" for name in added if getattr(c, name) != getattr(ViTConfig, name)]
    parts += [
        f"{name}={getattr(c, name)}" for name, values in COMMON.items() if getattr(c, name) not in values
    ]
    return parts + (["positions=relative_bias"] if c.positions == "relative_bias" else [])


def add_biases(
    weights: Mapping[str, Tensor], c: ViTConfig, parts: Collection[str]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights with zeros for biases that the model lacks and the format has, and the changed fields."""
    lacking = [name for name in BIASES if not {name, f"{name}={getattr(c, name)}"} & set(parts)]
    full, changed = dict(weights), {name: getattr(ViTConfig, name) for name in lacking}
    shapes = parameter_shapes(dataclasses.replace(c, **changed))
    for name in [n for n in full if n.endswith(".qv_bias") and n not in shapes]:
        b_q, b_v = full.pop(name).chunk(2)
        full[f"{name.removesuffix('qv_bias')}bias"] = torch.cat([b_q, torch.zeros_like(b_q), b_v])
    full |= {n: torch.zeros(shape) for n, shape in shapes.items() if n not in full and n.endswith(".bias")}
    return full, changed
