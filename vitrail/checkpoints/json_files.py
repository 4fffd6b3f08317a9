"""JSON files that may be untrusted: read within limits, and checked against a schema once.

    run.json, facts.json, manifest.json, shards.json (run/)            read_object
    a line of metrics.jsonl (run/records.py)                           parse_object
    results, by the verb that reads them (train/, transfer/)           check_kind
    config files beside the weights of other libraries                 read_object, check_entries

A schema is a Python type: dict[str, float | None], a TypedDict, a dataclass. A TypedDict allows further keys, a
dataclass does not. (`Required` is not visible in annotations that are kept as text: keys that may be missing are put
into a separate TypedDict.)
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints, is_typeddict

from vitrail.errors import CheckpointError
from vitrail.runtime.files import check_regular, open_own

Count = NewType("Count", int)  # not negative
Number = NewType("Number", float)  # finite

MAX_BYTES = 16 << 20  # of a file
MAX_DIGITS = 20  # of an integer
MAX_TEXT = 1 << 20  # characters of a string
MAX_DEPTH = 32  # of nested objects and lists
MISSING = object()
NOTHING = ()  # a type that no value has


def read_object(
    path: Path, kind: Any = dict[str, Any], most: int = MAX_BYTES, *, follow_links: bool = False
) -> dict[str, Any]:
    """Read a JSON object of at most `most` bytes and check it against `kind`."""
    try:
        if follow_links:
            check_regular(path)
        with path.open("rb") if follow_links else os.fdopen(open_own(path), "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > most:
        raise CheckpointError(f"{path} has more than {most:,} bytes, the most that are read")
    return parse_object(content, kind, str(path))


def parse_object(content: bytes, kind: Any, where: str) -> dict[str, Any]:
    try:
        value = json.loads(content.decode(), object_pairs_hook=unique_keys, parse_int=bounded_int)
        check_bounds(value)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} holds a JSON {type(value).__name__}, not an object")
    check_kind(value, kind, where)
    return value


def save_json(entries: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(entries, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a key appears twice")
    return entries


def bounded_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def check_bounds(value: Any, depth: int = 0) -> None:
    """Raise ValueError for deep nesting, and for text that is too long or could not be written again."""
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise ValueError(f"a string of {len(value):,} characters")
        value.encode()  # fails for half of a pair of surrogates
    elif isinstance(value, dict | list):
        for inner in (*value, *value.values()) if isinstance(value, dict) else value:
            check_bounds(inner, depth + 1)


def check_kind(value: dict[str, Any], kind: Any, where: str) -> None:
    """Raise an error that names the first part of `value` that does not fit `kind`."""
    if (name := misfit(value, kind, where)) is not None:
        raise CheckpointError(
            f"{name} is missing or of a wrong type: the file is damaged, or was edited by hand"
        )


def check_entries(entries: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the entries of a config file that are not null, each checked against its type in the schema."""
    entries = {key: value for key, value in entries.items() if value is not None}
    for key, value in entries.items():
        kind = schema.get(key, Any)
        if misfit(value, kind, key) is not None:
            words = kind.__name__ if isinstance(kind, type) else str(kind)
            words = re.sub(r"\b[a-z_]+\.", "", words).replace("Number", "number")
            raise CheckpointError(f"{where}: {key} is {value!r:.60} in its config file; expected {words}")
    return entries


def list_class_names(labels: Any, entry: str, classes: int, where: str) -> list[str]:
    """Return the names in a list or in {"0": ..., "1": ..., ...}, one for each class."""
    if len(labels) != classes:
        raise CheckpointError(f"{where}: {len(labels)} names in {entry} for {classes} classes")
    if isinstance(labels, dict):
        if set(labels) != {str(i) for i in range(classes)}:
            raise CheckpointError(f"{where}: the keys of {entry} are not the numbers from 0 to {classes - 1}")
        return [labels[str(i)] for i in range(classes)]
    return list(labels)


def misfit(value: Any, kind: Any, name: str) -> str | None:
    """Return the name of the first part of a JSON value that is not of its type; None if all fits."""
    origin, inner = get_origin(kind), get_args(kind)
    checks: list[tuple[Any, Any, Any]] = []  # name, value, type
    if origin in (Union, UnionType):
        return None if any(misfit(value, one, name) is None for one in inner) else name
    if origin is list and isinstance(value, list):
        checks = [(i, one, inner[0]) for i, one in enumerate(value)]
    elif origin is tuple and isinstance(value, list) and len(value) == len(inner):
        checks = [(i, *pair) for i, pair in enumerate(zip(value, inner, strict=True))]
    elif origin is dict and isinstance(value, dict):
        checks = [(key, one, inner[1]) for key, one in value.items()]
    elif has_fields(kind) and isinstance(value, dict):
        kinds, other = field_types(kind), Any if is_typeddict(kind) else NOTHING
        required = kind.__required_keys__ if is_typeddict(kind) else ()
        checks = [(key, value.get(key, MISSING), kinds[key]) for key in required]
        checks += [(key, one, kinds.get(key, other)) for key, one in value.items()]
    elif origin is not None or has_fields(kind) or not is_a(value, kind):
        return name
    wrong = (misfit(one, its_kind, f"{name}: {key!s:.60}") for key, one, its_kind in checks)
    return next((one for one in wrong if one is not None), None)


def is_a(value: Any, kind: Any) -> bool:
    if kind is Any:
        return value is not MISSING
    whole = isinstance(value, int) and not isinstance(value, bool)
    if kind is int:
        return whole
    if kind is Count:
        return whole and value >= 0
    if kind is float:
        return whole or isinstance(value, float)
    if kind is Number:
        return (whole or isinstance(value, float)) and abs(value) <= sys.float_info.max
    return isinstance(value, kind)


def has_fields(kind: Any) -> bool:
    return is_typeddict(kind) or is_dataclass(kind)


@cache
def field_types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
