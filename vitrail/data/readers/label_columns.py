"""The columns of a table of labels (label_files.py): which have images, labels and splits, and the labels in them.

They are found by the names that people give them; listed.py describes this for those who write such files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from vitrail.data.readers.file_names import is_image_name
from vitrail.data.readers.label_files import Cell, Table
from vitrail.data.splits import WORDS
from vitrail.errors import ConfigError, DataError

IMAGE = ("file_name", "filename", "file", "image", "img", "image_name", "image_path", "img_path", "path", "filepath",
         "image_id", "img_id", "name", "id")  # fmt: skip
LABEL = ("label", "labels", "class", "classes", "class_name", "category", "categories", "target", "targets", "tags",
         "tag", "y", "label_name", "category_name", "class_id", "label_id", "category_id")  # fmt: skip
SPLIT = ("split", "subset", "partition")
JOINT = "\x1f"  # between several labels of an image
SEVERAL = "labels of the columns"
BITS = {"0": False, "1": True, "false": False, "true": True, "0.0": False, "1.0": True}


def find_column(
    table: Table, role: str, usual: Sequence[str], asked: str | None, but: str | None = None
) -> str | None:
    """Return the column that is asked for, else the first of the usual names; None: there is none."""
    if asked is not None:
        if asked not in table.columns:
            raise ConfigError(
                f"{table.path}: no column {asked!r} ({role}); columns: {', '.join(table.columns)}"
            )
        return asked
    plain = {re.sub(r"[\s\-.]+", "_", name.lower()): name for name in reversed(table.columns) if name != but}
    return next((plain[name] for name in usual if name in plain), None)


def find_image_column(table: Table, asked: str | None) -> str:
    column = find_column(table, "image", IMAGE, asked)
    if column is not None:
        return column
    named = [
        name
        for name, cells in table.columns.items()
        if all(isinstance(cell, str) and is_image_name(cell) for cell in cells[:100])
    ]
    if len(named) != 1:
        raise DataError(
            f"{table.path}: cannot tell which column has the names of the images, of {', '.join(table.columns)}; "
            "name it: ?image=COLUMN"
        )
    return named[0]


def find_label_column(table: Table, asked: str | None, image: str, split: str | None) -> str:
    """Return the column of labels: the one asked for, else one of a usual name, else the only one that is left."""
    column = find_column(table, "label", LABEL, asked, but=image)
    left = [name for name in table.columns if name not in (image, split)]
    if column is None and len(left) != 1:
        raise DataError(
            f"{table.path}: cannot tell which column is the label, of {', '.join(table.columns)}; name it: "
            "?label=COLUMN"
        )
    return left[0] if column is None else column


def find_split_column(table: Table, asked: str | None) -> str | None:
    """Return the column of splits: the one asked for, else one of the usual name that has only words for splits."""
    column = find_column(table, "split", SPLIT, asked)
    if asked is None and column is not None:
        values = {cell for cell in table[column] if cell is not None}
        if not values or not all(isinstance(value, str) and value.lower() in WORDS for value in values):
            return None
    return column


def whole_numbers(cells: list[Cell]) -> list[str | None]:
    """Return labels as text; 3.0 is 3 where all are such, as pandas writes whole numbers beside empty cells."""
    texts = [", ".join(cell) if isinstance(cell, tuple) else cell for cell in cells]
    if all(text is None or re.fullmatch(r"\d+\.0", text) for text in texts):
        return [text and text.removesuffix(".0") for text in texts]
    return texts


def label_sets(cells: list[Cell], mark: str) -> list[str | None]:
    """Return the labels of each cell, sorted and joined by JOINT; a text is cut at the mark."""
    texts: list[str | None] = []
    for cell in cells:
        parts: Sequence[str] = cell if isinstance(cell, tuple) else [cell or ""]
        if isinstance(cell, str) and mark not in ("", "rows"):
            parts = cell.split(mark)
        each = sorted({part.strip() for part in parts} - {""})
        texts.append(None if cell is None else JOINT.join(each))
    return texts


def one_column(table: Table, options: dict[str, str], but: set[str | None]) -> Table:
    """Return the table with the names of the columns that have a 1, in a column of their own."""
    asked = [name.strip() for name in options.get("label", "").split(",") if name.strip()]
    split = find_split_column(table, options.get("split") if options.get("split") != "none" else None)
    names = asked or [name for name in table.columns if name not in but | {split}]
    for name in names:
        if name not in table.columns:
            raise ConfigError(
                f"{table.path}: no column {name!r} (label); columns: {', '.join(table.columns)}"
            )
    sets: list[Cell] = []
    for row in range(len(table)):
        cells = {name: str(table[name][row] or "0").lower() for name in names}
        if wrong := [name for name, text in cells.items() if text not in BITS]:
            raise DataError(
                f"{table.place(row)}: {wrong[0]!r} is {cells[wrong[0]]!r:.40}, not 0 or 1; name the columns of the "
                "classes: ?label=a,b,c"
            )
        sets.append(tuple(name for name, text in cells.items() if BITS[text]))
    return Table(table.path, table.columns | {SEVERAL: sets}, table.lines)


def one_row(table: Table, image: str, texts: list[str | None]) -> tuple[Table, list[str | None]]:
    """Return the table with the first row of each image, and the labels of all of its rows."""
    sets: dict[Cell, set[str]] = {}
    first: dict[Cell, int] = {}
    for row, (cell, text) in enumerate(zip(table[image], texts, strict=True)):
        first.setdefault(cell, row)
        sets.setdefault(cell, set()).update(text.split(JOINT) if text else ())
    kept = list(first.values())
    columns = {name: [cells[row] for row in kept] for name, cells in table.columns.items()}
    merged: list[str | None] = [JOINT.join(sorted(sets[cell])) or None for cell in first]
    return Table(table.path, columns, [table.lines[row] for row in kept]), merged
