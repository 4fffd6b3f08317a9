"""Write a table of results as files: results.md to read, results.csv to compute with, results.json with all."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrail.evaluators.score import format_accuracy
from vitrail.runtime.files import atomic_file
from vitrail.runtime.log import visible


def write_tables(
    folder: Path,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    result: dict[str, Any],
    below: Sequence[str],
) -> None:
    """Write `columns`, `rows` and the lines `below` for people; the CSV has the rows of `result["rows"]`."""
    head, *rest = (f"| {' | '.join(map(escape_markdown, row))} |" for row in (columns, *rows))
    lines = [head, f"|{'---|' * len(columns)}", *rest]
    with atomic_file(folder / "results.md") as path:
        path.write_text("\n".join([*lines, "", *below]) + "\n", encoding="utf-8")
    with atomic_file(folder / "results.json") as path:
        path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    plain = [
        {k: escape_csv(v) for k, v in row.items() if not isinstance(v, dict | list)} for row in result["rows"]
    ]
    names = list(dict.fromkeys(name for row in plain for name in row))
    with atomic_file(folder / "results.csv") as path, path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(plain)


def escape_markdown(text: str) -> str:
    """Escape a cell, so that it stays one cell whatever a data set is called."""
    return visible(text).replace("\\", "\\\\").replace("|", "\\|")


def escape_csv(value: Any) -> Any:
    """Put an apostrophe before text that begins like a formula: spreadsheets would compute it."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not is_number(text) else text


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def accuracy_cell(value: float | None, n: int | None = None) -> str:
    """Return an accuracy with its interval where n, the number of test images, is given; a dash for none."""
    return "-" if value is None else format_accuracy(value, n)


def std_cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"
