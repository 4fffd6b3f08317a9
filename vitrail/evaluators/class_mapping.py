"""The classes of a data set -> the classes of a model that are right answers for them.

    mapping            right answers for an example of a data class
    None               the model's class of the same name ("goldfish" and "n01443537" are "n01443537 goldfish"); by
                       order, where the model or the data names none
    "order"            class k of the data is class k of the model, whatever they are called
    a JSON file        {data class: [model classes, names or indices], ...}: any of those listed; examples of a
                       class that is not in the file are left out. So ObjectNet is scored: by those of its classes
                       that ImageNet has too, of which several may be right for one object

K classes of the model, L of the data, C that scores are counted by, m right answers at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.bounded_files import read_json
from vitrail.data.readers.class_names import forms
from vitrail.data.sources import Source
from vitrail.errors import ConfigError, DataError
from vitrail.inference.predict import class_names
from vitrail.models.names import Model

BY_ORDER = "order"
ADVICE = "pass --mapping FILE with the model classes of each, or --mapping order to match them by order"


@dataclass(frozen=True)
class ClassMapping:
    """The class by which each data class is scored, and its right answers."""

    class_names: list[str]  # C: the model's, where one answer is right for each; with a file, the data's
    model_class_names: list[str]  # K
    row: np.ndarray  # int64 (L,): the class of C of a data class; -1: left out
    right: np.ndarray  # int64 (C, m): the model classes that are right, ascending, then -1


def map_classes(model: Model, source: Source, mapping: str | Path | None = None) -> ClassMapping:
    """Match the classes of `source` with the model's; DataError where that is not possible."""
    K, data_names = model.config.classes, source.class_names
    if not K:
        raise ConfigError("this model has no classifier: load it with classes=, and train it, to evaluate")
    if mapping is not None and str(mapping) != BY_ORDER:
        return from_file(Path(mapping), class_names(model), source)
    names = None if model.class_names is None else class_names(model)
    numbered = data_names == [str(label) for label in range(len(data_names))]
    if names is not None and names != data_names and not numbered and mapping is None:
        return by_name(names, source)
    if len(data_names) != K:
        raise DataError(
            f"{source.name} has {len(data_names):,} classes and the model {K:,}: to match them by order they must be "
            "as many; pass --mapping FILE with the model classes of each"
        )
    return one_to_one(names or data_names, np.arange(K))


def by_order(class_names: list[str]) -> ClassMapping:
    """Return the mapping for a model made for this data: its classes are the data's."""
    return one_to_one(class_names, np.arange(len(class_names)))


def one_to_one(names: list[str], row: np.ndarray) -> ClassMapping:
    return ClassMapping(names, names, row, np.arange(len(names))[:, None])


def by_name(names: list[str], source: Source) -> ClassMapping:
    """Match names as they are, else in any of the forms that ImageNet's names have (`forms`)."""
    exact, any_form = places([[name] for name in names]), places([forms(name) for name in names])
    place = {
        name: exact.get(name) or next((any_form[form] for form in forms(name) if form in any_form), [])
        for name in source.class_names
    }
    unknown = [name for name in source.class_names if not place[name]]
    if unknown:
        raise DataError(
            f"{source.name}: the model lacks {len(unknown):,} of its {len(source.class_names):,} classes "
            f"({some(unknown)}; the model's {len(names):,} are {some(names)}): {ADVICE}"
        )
    twice = [name for name in source.class_names if len(place[name]) > 1]
    if twice:
        raise DataError(f"{source.name}: several classes of the model are called {some(twice)}: {ADVICE}")
    return one_to_one(names, np.array([place[name][0] for name in source.class_names]))


def from_file(path: Path, names: list[str], source: Source) -> ClassMapping:
    table = read_json(path, "a class mapping")
    if not isinstance(table, dict) or not table:
        raise DataError(f"{path}: a class mapping is an object {{data class: [model classes, ...], ...}}")
    unknown = sorted(table.keys() - set(source.class_names))
    if unknown:
        raise DataError(
            f"{path}: {len(unknown):,} of its {len(table):,} names are no class of {source.name}: {some(unknown)} "
            f"(its classes: {some(source.class_names)})"
        )
    place = places([[name] for name in names])
    answers = [
        indices(table[name], place, len(names), f"{path}, {name!r}") if name in table else []
        for name in source.class_names
    ]
    right = np.full((len(answers), max(map(len, answers))), -1)  # (C, m)
    for label, classes in enumerate(answers):
        right[label, : len(classes)] = classes
    row = np.array([label if classes else -1 for label, classes in enumerate(answers)])
    return ClassMapping(source.class_names, names, row, right)


def indices(classes: Any, place: dict[str, list[int]], K: int, where: str) -> list[int]:
    """Return model classes, given by name or index, as indices, ascending, each once."""
    if not isinstance(classes, list) or not classes:
        raise DataError(f"{where}: expected a list of model classes, at least one, not {str(classes)[:60]!r}")
    unique = set()
    for one in classes:
        if isinstance(one, str) and len(place.get(one, [])) > 1:
            raise DataError(f"{where}: the model has {one!r} at {place[one]}: write the index")
        if isinstance(one, str) and one in place:
            unique.add(place[one][0])
        elif type(one) is int and 0 <= one < K:
            unique.add(one)
        else:
            raise DataError(f"{where}: {str(one)[:60]!r} is none of the model's {K:,} classes")
    return sorted(unique)


def places(names: list[list[str]]) -> dict[str, list[int]]:
    """Return the classes of each name; `names`: those of each class, which may have several."""
    classes: dict[str, list[int]] = {}
    for index, aliases in enumerate(names):
        for name in aliases:
            classes.setdefault(name, []).append(index)
    return classes


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first few names, for people."""
    return ", ".join(map(repr, names[:most])) + (", ..." if len(names) > most else "")
