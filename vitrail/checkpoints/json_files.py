"""The JSON files of a run, which may be somebody else's: read within bounds, and checked against a schema once.

    run.json (run_card.py)  facts.json, manifest.json (run_state.py)  shards.json (run_shards.py)  ──► read_object
    a line of metrics.jsonl (run_metrics.py)                                                       ──► parse_object
    results, by what a verb finds in them (train/run.py, transfer/)                                ──► check_kind

A schema is a type as Python writes it: dict[str, float | None], a TypedDict, a dataclass. What a TypedDict does not
name may be anything within the bounds; a dataclass has no other fields. (`Required` cannot be seen in annotations
that are kept as text: what may be missing stands in a TypedDict of its own.)
"""

from __future__ import annotations

import json
import os
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints, is_typeddict

from vitrail.errors import CheckpointError
from vitrail.models.checking import is_whole
from vitrail.runtime.files import open_own

Count = NewType("Count", int)  # not below 0

MOST_BYTES = 16 << 20  # of a file
MOST_DIGITS = 20  # of a whole number
MOST_TEXT = 1 << 20  # characters of a text
MOST_DEPTH = 32  # objects and lists in each other
MISSING = object()
NOTHING = ()  # a kind that no value is of


def read_object(path: Path, kind: Any, most: int = MOST_BYTES) -> dict[str, Any]:
    """The object in a file of at most so many bytes; an error where it is none, or not of its kind."""
    try:
        with os.fdopen(open_own(path), "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > most:
        raise CheckpointError(f"{path} has more than {most:,} bytes, the most that are read")
    return parse_object(content, kind, str(path))


def parse_object(content: bytes, kind: Any, where: str) -> dict[str, Any]:
    try:
        value = json.loads(content.decode(), object_pairs_hook=unique, parse_int=bounded_whole)
        check_bounds(value)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is not JSON as a run writes it: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} holds a JSON {type(value).__name__}, not an object")
    check_kind(value, kind, where)
    return value


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name is there twice")
    return made


def bounded_whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def check_bounds(value: Any, depth: int = 0) -> None:
    """A ValueError for what is nested too deep, and for text that is too long, or could not be written again."""
    if depth > MOST_DEPTH:
        raise ValueError(f"nested more than {MOST_DEPTH} deep")
    if isinstance(value, str):
        if len(value) > MOST_TEXT:
            raise ValueError(f"a text of {len(value):,} characters")
        value.encode()  # half of a pair of surrogates is no text
    elif isinstance(value, dict | list):
        for inner in (*value, *value.values()) if isinstance(value, dict) else value:
            check_bounds(inner, depth + 1)


def check_kind(value: dict[str, Any], kind: Any, where: str) -> None:
    """An error that names what does not fit."""
    if (name := misfit(value, kind, where)) is not None:
        raise CheckpointError(
            f"{name} is missing, or of a wrong kind: the file is damaged, or changed by hand"
        )


def misfit(value: Any, kind: Any, name: str) -> str | None:
    """The name of the first part of a JSON value that is not of its kind; None: all is as it must be."""
    origin, inner = get_origin(kind), get_args(kind)
    parts: list[tuple[Any, Any, Any]] = []  # name, value, kind
    if origin in (Union, UnionType):
        return None if any(misfit(value, one, name) is None for one in inner) else name
    if origin is list and isinstance(value, list):
        parts = [(i, one, inner[0]) for i, one in enumerate(value)]
    elif origin is tuple and isinstance(value, list) and len(value) == len(inner):
        parts = [(i, *pair) for i, pair in enumerate(zip(value, inner, strict=True))]
    elif origin is dict and isinstance(value, dict):
        parts = [(key, one, inner[1]) for key, one in value.items()]
    elif has_fields(kind) and isinstance(value, dict):
        kinds, other = fields_of(kind), Any if is_typeddict(kind) else NOTHING
        parts = [(key, value.get(key, MISSING), kinds[key]) for key in required(kind)]
        parts += [(key, one, kinds.get(key, other)) for key, one in value.items()]
    elif origin is not None or has_fields(kind) or not is_a(value, kind):
        return name
    found = (misfit(one, of, f"{name}: {key!s:.60}") for key, one, of in parts)
    return next((one for one in found if one is not None), None)


def is_a(value: Any, kind: Any) -> bool:
    if kind is Any:
        return value is not MISSING
    if kind is Count:
        return is_whole(value) and value >= 0
    if kind is float:
        return is_whole(value) or isinstance(value, float)
    return is_whole(value) if kind is int else isinstance(value, kind)


def has_fields(kind: Any) -> bool:
    return is_typeddict(kind) or is_dataclass(kind)


@cache
def fields_of(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def required(kind: Any) -> frozenset[str]:
    return kind.__required_keys__ if is_typeddict(kind) else frozenset()
