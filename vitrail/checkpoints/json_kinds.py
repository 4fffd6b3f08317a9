"""What the entries of someone's config file must be, checked once, before anything is made of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.models.checking import is_whole


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


KINDS: dict[str, Callable[[Any], bool]] = {
    "true or false": lambda value: isinstance(value, bool),
    "a whole number": is_whole,
    "a number": is_number,
    "a list of numbers": lambda value: isinstance(value, list) and all(map(is_number, value)),
    "one whole number or two": lambda value: (
        is_whole(value) or (isinstance(value, list) and len(value) == 2 and all(map(is_whole, value)))
    ),
    "three whole numbers": lambda value: (
        isinstance(value, list) and len(value) == 3 and all(map(is_whole, value))
    ),
    "a whole number or an object of them": lambda value: (
        is_whole(value)
        or (isinstance(value, dict) and all(is_whole(n) for n in value.values() if n is not None))
    ),
    "text": lambda value: isinstance(value, str),
    "a list of texts": lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value),
    "texts by number": lambda value: (
        isinstance(value, dict)
        and sorted(value) == sorted(str(i) for i in range(len(value)))
        and all(isinstance(v, str) for v in value.values())
    ),
    "texts by name": lambda value: (
        isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
    ),
    "an object": lambda value: isinstance(value, dict),
}


def checked(entries: Mapping[str, Any], kinds: Mapping[str, tuple[str, ...]], where: str) -> dict[str, Any]:
    """The entries without those that are null; an error for one that is of none of the kinds allowed for it."""
    said = {key: value for key, value in entries.items() if value is not None}
    for key, allowed in kinds.items():
        if key in said and not any(KINDS[kind](said[key]) for kind in allowed):
            given = f"{said[key]!r}"[:60]
            raise CheckpointError(
                f"{where}: {key} is {given} in its config file; it must be {' or '.join(allowed)}"
            )
    return said
