"""Class names for data that has none: a `classes.txt` or `classes.json` beside it.

`classes.txt` has one class per line, in the order of the labels; a line `id <TAB> name` names the class that
is stored as `id` (a folder `n01443537`, say). `classes.json` is a list of names, or an object from label or
id to name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitrail.data.bounded_files import read_json, read_text
from vitrail.errors import DataError

MAX_BYTES = 16 << 20  # of a file of class names
MOST_UNNAMED = 1_000_000  # classes without names


def read_class_names(folder: Path) -> list[str] | None:
    """Return the names in the order of the labels; None if there is no file of names."""
    table = _read_table(folder)
    if not isinstance(table, dict):
        return None if table is None else [line.replace("\t", " ") for line in table]
    try:
        by_label = {int(label): name for label, name in table.items()}
    except ValueError as error:
        raise DataError(f"{folder / 'classes.json'}: the keys must be labels 0, 1, ...: {error}") from error
    if sorted(by_label) != list(range(len(by_label))):
        raise DataError(f"{folder / 'classes.json'}: the labels must be 0 to {len(by_label) - 1}, each once")
    return [by_label[label] for label in range(len(by_label))]


def with_titles(ids: list[str], folder: Path) -> list[str]:
    """Rename classes stored under an id by the file of names in `folder`; two of one name keep the id."""
    titles = _read_table(folder) or {}
    if not isinstance(titles, dict):
        pairs = [line.split("\t", 1) for line in titles if "\t" in line]
        titles = {pair[0].strip(): pair[1].strip() for pair in pairs}
    named = [titles.get(name, name) for name in ids]
    times = Counter(named)
    return [
        f"{title} ({name})" if times[title] > 1 else title for name, title in zip(ids, named, strict=True)
    ]


def _read_table(folder: Path) -> list[str] | dict[str, str] | None:
    """Read classes.txt, a list of its lines, or classes.json, a list or an object; None where there is neither."""
    text, json = folder / "classes.txt", folder / "classes.json"
    if text.is_file():
        lines = read_text(text, "class names", MAX_BYTES).removeprefix("\ufeff").splitlines()
        return [line.strip() for line in lines if line.strip()]
    if not json.is_file():
        return None
    table = read_json(json, "class names", MAX_BYTES)
    if isinstance(table, dict):
        check_names([*table, *table.values()], str(json))
        return table
    return check_names(table, str(json))


def readable(class_name: str) -> str:
    """Return a class name without the WordNet number that names of ImageNet's classes may begin with."""
    return re.sub(r"^n\d{8}[ _]", "", class_name)


def forms(class_name: str) -> list[str]:
    """List the names of a class, the most exact first: "n01443537 goldfish" is n01443537, and goldfish too."""
    number = re.match(r"(n\d{8})[ _]", class_name)
    title = readable(class_name)
    return [class_name, number[1], f"{title} ({number[1]})", title] if number else [class_name]


def number_names(labels: list[np.ndarray]) -> list[str]:
    """Return 0, 1, ... as names, for integer labels that nothing names, over all splits."""
    top = max((int(split.max()) for split in labels if len(split)), default=-1)
    if top > MOST_UNNAMED:
        raise DataError(
            f"a label is {top:,}, and there are no class names; allowed: labels from 0 to {MOST_UNNAMED:,}"
        )
    return [str(label) for label in range(top + 1)]


def number_labels(texts: Sequence[str], class_names: list[str], where: str) -> np.ndarray:
    """Return the labels int64 (n,) of examples that are stored with the name of their class."""
    number = {name: label for label, name in enumerate(class_names)}
    unknown = sorted(set(texts) - set(number))
    if unknown:
        raise DataError(
            f"{where}: labels that are not among the {len(number)} classes: {', '.join(unknown[:8])}"
        )
    return np.array([number[text] for text in texts], dtype=np.int64)


def check_labels(labels: np.ndarray, class_names: list[str], where: str) -> None:
    """Raise DataError unless every label is one of the classes."""
    wrong = np.flatnonzero((labels < 0) | (labels >= len(class_names)))
    if len(wrong):
        raise DataError(
            f"{where}: {len(wrong)} of {len(labels)} labels are not among the {len(class_names)} classes: "
            f"{int(labels[wrong[0]])} at example {int(wrong[0])} (-1 usually means a split without labels)"
        )


def check_names(names: object, where: str) -> list[str]:
    """Raise DataError unless class names are a list of text that can be stored again."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{where}: class names are {str(names)[:80]!r}; they must be a list of strings")
    try:
        "".join(names).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: a class name is not Unicode text: {error}") from error
    return names
