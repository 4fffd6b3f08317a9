"""Fields of a config as Python users give them, by name: each is of the type that its annotation says, or refused.

The command line needs none of this: its parser reads the same annotations.
"""

from __future__ import annotations

from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from vitrail.errors import ConfigError
from vitrail.models.checking import is_whole

WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text", NoneType: "None"}


def typed(name: str, given: Any, annotation: Any) -> Any:
    """The value: a list for several as a tuple, one text for several as one of them, a path as text."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    value = str(given) if isinstance(given, Path) else given
    for kind in kinds:
        if get_origin(kind) is tuple:
            several = (value,) if isinstance(value, str) else value
            if isinstance(several, tuple | list) and all(is_a(one, get_args(kind)[0]) for one in several):
                return tuple(several)
        elif is_a(value, kind):
            return value
    shown = f" {given!r:.60}" if isinstance(given, str | int | float | tuple | list) else ""
    raise ConfigError(
        f"{name} must be {' or '.join(map(in_words, kinds))}, not of type {type(given).__name__}{shown}"
    )


def is_a(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind is int:
        return is_whole(value)
    if kind is float:
        return is_whole(value) or isinstance(value, float)
    return isinstance(value, kind)


def in_words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return f"several of {WORDS[get_args(kind)[0]]}" if get_origin(kind) is tuple else WORDS[kind]
