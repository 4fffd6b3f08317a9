"""Right answers of a model for the examples of a data set: by classes, or by ImageNet's reassessed labels (ReaL).

    mapping            right answers for an example of a data class
    None               the model's class of the same name ("goldfish" and "n01443537" are "n01443537 goldfish"); by
                       order, where the model or the data names none
    "order"            class k of the data is class k of the model, whatever they are called
    a JSON file        {data class: [model classes, names or indices], ...}: any of those listed; examples of a
                       class that is not in the file are left out. ObjectNet is scored in this way: by its classes
                       that ImageNet has too, of which several may be right for one object

    real.json          a list of lists of class indices, in the order ILSVRC2012_val_00000001, 00000002, ...

ReaL (Beyer et al., "Are we done with ImageNet?", arXiv:2006.07159) has a set of right classes for each validation
image; one whose set is empty is not scored. Its indices are ImageNet's usual order, which must be the model's.

K classes of the model, L of the data, C that scores are counted by, m right answers at most.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitrail.data.bounded_files import read_json
from vitrail.data.readers.class_names import forms
from vitrail.data.sources import Source
from vitrail.errors import ConfigError, DataError
from vitrail.inference.exported import Runnable
from vitrail.inference.predict import class_names

BY_ORDER = "order"
ADVICE = "pass --mapping FILE with the model classes of each, or --mapping order to match them by order"
NUMBER = re.compile(r"val_(\d{8})(?!\d)")  # in the name of a validation image of ImageNet


@dataclass(frozen=True)
class ClassMapping:
    """The class by which each data class is scored, and its right answers."""

    class_names: list[str]  # C: the model's, where one answer is right for each; with a file, the data's
    model_class_names: list[str]  # K
    row: np.ndarray  # int64 (L,): the class of C of a data class; -1: left out
    right: np.ndarray  # int64 (C, m): the model classes that are right, ascending, then -1


def map_classes(model: Runnable, source: Source, mapping: str | Path | None = None) -> ClassMapping:
    """Match the classes of `source` with the model's; DataError if that is not possible."""
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
            f"{source.name} has {len(data_names):,} classes and the model {K:,}: to match them by order, the numbers "
            "must be equal; pass --mapping FILE with the model classes of each"
        )
    return by_order(names or data_names)


def by_order(names: list[str]) -> ClassMapping:
    """Return the mapping of class k to class k."""
    return ClassMapping(names, names, np.arange(len(names)), np.arange(len(names))[:, None])


def by_name(names: list[str], source: Source) -> ClassMapping:
    """Match names as they are, else in any of the forms that ImageNet's names have (`forms`)."""
    exact, any_form = (
        classes_by_name([[name] for name in names]),
        classes_by_name([forms(name) for name in names]),
    )
    matches = [
        exact.get(name) or next((any_form[form] for form in forms(name) if form in any_form), [])
        for name in source.class_names
    ]
    if unknown := [name for name, place in zip(source.class_names, matches, strict=True) if not place]:
        raise DataError(
            f"{source.name}: the model lacks {len(unknown):,} of its {len(matches):,} classes "
            f"({some(unknown)}; the model's {len(names):,} are {some(names)}): {ADVICE}"
        )
    if twice := [name for name, place in zip(source.class_names, matches, strict=True) if len(place) > 1]:
        raise DataError(f"{source.name}: several classes of the model are called {some(twice)}: {ADVICE}")
    return replace(by_order(names), row=np.array([place[0] for place in matches]))


def from_file(path: Path, names: list[str], source: Source) -> ClassMapping:
    """Read a mapping, of model classes by name or index."""
    table, K, place = (
        read_json(path, "a class mapping"),
        len(names),
        classes_by_name([[name] for name in names]),
    )
    if not isinstance(table, dict) or not table:
        raise DataError(f"{path}: a class mapping is an object {{data class: [model classes, ...], ...}}")
    if unknown := sorted(table.keys() - set(source.class_names)):
        raise DataError(
            f"{path}: {len(unknown):,} of its {len(table):,} names are not classes of {source.name}: {some(unknown)} "
            f"(its classes: {some(source.class_names)})"
        )
    answers: dict[str, list[int]] = {}
    for name, classes in table.items():
        where = f"{path}, {name!r}"
        if not isinstance(classes, list) or not classes:
            raise DataError(
                f"{where}: expected a list of model classes, at least one, not {str(classes)[:60]!r}"
            )
        indices = set()
        for one in classes:
            matches = place.get(one, []) if isinstance(one, str) else [one]
            if len(matches) > 1:
                raise DataError(f"{where}: the model has {one!r} at {matches}: write the index")
            if not matches or type(matches[0]) is not int or not 0 <= matches[0] < K:
                raise DataError(f"{where}: {str(one)[:60]!r} is not one of the model's {K:,} classes")
            indices.add(matches[0])
        answers[name] = sorted(indices)
    right = np.full((len(source.class_names), max(map(len, answers.values()))), -1)  # (C, m)
    for label, name in enumerate(source.class_names):
        right[label, : len(answers.get(name, []))] = answers.get(name, [])
    row = np.where(right[:, 0] >= 0, np.arange(len(right)), -1)  # (C,)
    return ClassMapping(source.class_names, names, row, right)


def classes_by_name(names: list[list[str]]) -> dict[str, list[int]]:
    """Return the classes of each name; `names`: those of each class, which may have several."""
    classes: dict[str, list[int]] = {}
    for index, aliases in enumerate(names):
        for name in aliases:
            classes.setdefault(name, []).append(index)
    return classes


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first few names, for messages."""
    return ", ".join(map(repr, names[:most])) + (", ..." if len(names) > most else "")


def real_sets(path: str | Path, source: Source, mapping: ClassMapping) -> list[set[int]]:
    """Read ReaL: return the right classes of each example of `source`; an empty set is not scored.

    Images are matched by the number in their name; if no name has one, by order, provided that the numbers of images
    are equal and most sets contain the image's own label.
    """
    table, K = read_json(Path(path), "a file of reassessed labels"), len(mapping.model_class_names)
    if not isinstance(table, list) or not table or not all(isinstance(row, list) for row in table):
        raise DataError(f"{path}: expected a list of lists of class indices, one for each image")
    for number, row in enumerate(table, 1):
        if not all(type(k) is int and 0 <= k < K for k in row):
            raise DataError(
                f"{path}, image {number}: {str(row)[:60]} are not all of the model's {K:,} classes"
            )
    sets = [set(row) for row in table]
    numbers = [NUMBER.search(source.key(i)) for i in range(len(source))]
    if any(numbers):
        for i, match in enumerate(numbers):
            if match is None or not 1 <= int(match[1]) <= len(sets):
                raise DataError(
                    f"{source.name}: {source.key(i)!r} has no number from val_00000001 to val_{len(sets):08} in its "
                    f"name, by which its label in {path} is found"
                )
        return [sets[int(match[1]) - 1] for match in numbers if match]
    if len(source) != len(sets):
        raise DataError(
            f"{path} has labels of {len(sets):,} images, {source.name} {len(source):,} images, whose names "
            f"({source.key(0)!r}) have no number val_00000001, ... to find their labels by"
        )
    rows = zip(mapping.row[source.labels], sets, strict=True)
    agree = [bool(classes.intersection(mapping.right[row])) for row, classes in rows if classes and row >= 0]
    if 2 * sum(agree) < len(agree):
        raise DataError(
            f"{path} is not in the order of {source.name}: only {sum(agree):,} of {len(agree):,} labels agree. "
            "Images named as ImageNet's validation images are found in any order"
        )
    return sets
