"""Settings by keyword, as Python users give them: each is put where it belongs, with the type of its annotation.

    override(experiment, {"lr": 1e-3, "pool": "mean"})

The command line needs none of this: its parser reads the same annotations.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from vitrail.checkpoints.json_files import is_a
from vitrail.errors import ConfigError
from vitrail.objectives import objective_named
from vitrail.objectives.objective import Objective

WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text", NoneType: "None"}
Settings = TypeVar("Settings")


def override(settings: Settings, keywords: dict[str, Any]) -> Settings:
    """Return the settings, a dataclass of dataclasses, with the keywords set wherever they are fields."""
    changed, left = override_known(settings, keywords)
    if left:
        known = sorted(field_names(settings))
        near = [match for name in sorted(left) for match in difflib.get_close_matches(name, known, n=1)]
        suggestion = f"; did you mean {' and '.join(near)}?" if near else ""
        raise ConfigError(
            f"there is no setting {', '.join(sorted(left))}{suggestion} (the settings are {', '.join(known)})"
        )
    return changed


def field_names(settings: Any) -> list[str]:
    """Return the names that `override` can set."""
    names: list[str] = []
    for name, value in vars(settings).items():
        names += field_names(value) if dataclasses.is_dataclass(value) else [name]
    return names


def override_known(settings: Settings, keywords: dict[str, Any]) -> tuple[Settings, dict[str, Any]]:
    """Return the settings with the keywords that they have, and the keywords that are left."""
    assert dataclasses.is_dataclass(settings) and not isinstance(settings, type)
    changes: dict[str, Any] = {}
    left = dict(keywords)
    annotations = get_type_hints(type(settings))
    # The objective comes last: one of a person's own may have a setting named as another is, such as momentum.
    for field in sorted(dataclasses.fields(settings), key=lambda field: field.name == "objective"):
        value = getattr(settings, field.name)
        if field.name == "objective" and "objective" in left:
            chosen = left.pop("objective")
            value = objective_named(chosen) if isinstance(chosen, str) else check_objective(chosen)
            changes[field.name] = value
        if dataclasses.is_dataclass(value):
            changes[field.name], left = override_known(value, left)
        elif field.name in left and field.name != "objective":
            changes[field.name] = check_type(field.name, left.pop(field.name), annotations[field.name])
    return dataclasses.replace(settings, **changes), left


def check_objective(objective: Any) -> Objective:
    """Return a user-defined objective; ConfigError if it lacks a method, or run.json cannot store its fields."""
    missing = [name for name in ("needs_labels", "views", "build") if not hasattr(objective, name)]
    if missing or isinstance(objective, type) or not dataclasses.is_dataclass(objective):
        raise ConfigError(
            f"objective must be a name or an object of a dataclass with needs_labels, views and build, not of type "
            f"{type(objective).__name__}" + (f" without {', '.join(missing)}" if missing else "")
        )
    settings: dict[str, Any] = dataclasses.asdict(objective)  # type: ignore[arg-type]
    for name, value in settings.items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise ConfigError(
                f"objective {type(objective).__name__}: {name} is of type {type(value).__name__}, which run.json "
                "cannot store"
            ) from error
    return cast(Objective, objective)


def check_type(name: str, value: Any, annotation: Any) -> Any:
    """Return the value with the type of its annotation: a list or one text becomes a tuple, a path becomes text."""
    plain = str(value) if isinstance(value, Path) else value
    for kind in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,):
        if get_origin(kind) is tuple:
            several = (plain,) if isinstance(plain, str) else plain
            if isinstance(several, tuple | list) and all(fits(one, get_args(kind)[0]) for one in several):
                return tuple(several)
        elif fits(plain, kind):
            return plain
    text = f" {value!r:.60}" if isinstance(value, str | int | float | tuple | list) else ""
    raise ConfigError(f"{name} must be {describe_type(annotation)}, not of type {type(value).__name__}{text}")


def fits(value: Any, kind: Any) -> bool:
    return value in get_args(kind) if get_origin(kind) is Literal else is_a(value, kind)


def describe_type(kind: Any) -> str:
    inner, origin = get_args(kind), get_origin(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is tuple:
        return f"several of {describe_type(inner[0])}"
    return " or ".join(map(describe_type, inner)) if inner else WORDS[kind]
