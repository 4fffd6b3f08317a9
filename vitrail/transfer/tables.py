"""Tables of results that several processes fill: each takes pieces of the work that no other is working on.

    CUDA_VISIBLE_DEVICES=0 vitrail vtab ... --out DIR &
    CUDA_VISIBLE_DEVICES=1 vitrail vtab ... --out DIR        the same command: a device each, one folder of results

    for each piece:  claim_piece, run, finish  ──►  results_lock, read_piece of all, write_tables

A piece is a run folder (checkpoints/run/). Locks are the operating system's: they end with their process. The
table is results.md to read, results.csv to compute with, results.json with everything.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from vitrail.checkpoints.checkpoint import model_digest
from vitrail.checkpoints.formats import load, save
from vitrail.checkpoints.run import Run
from vitrail.checkpoints.run.folder import lock
from vitrail.checkpoints.run.records import RUN_JSON, read_results
from vitrail.errors import ConfigError
from vitrail.inference.engine import ModelLike
from vitrail.runtime.distributed import launched
from vitrail.runtime.files import atomic_file, open_own
from vitrail.runtime.log import visible

LOCK = ".results.lock"  # held while results are written; its presence shows that they are ours
START = "start"  # bundle of a model object
RESULTS = ("results.md", "results.csv", "results.json")
Table = tuple[list[str], list[list[str]], list[str]]  # columns, rows, lines below


def check_results_folder(folder: Path, inside: Iterable[str] = ()) -> None:
    """Refuse results that were not written under our lock, which would be replaced, and links that would be followed:
    to the lock, or to one of the folders `inside` that are written to."""
    for name in (LOCK, *inside):
        check_no_link(folder / name)
    others = [name for name in RESULTS if os.path.lexists(folder / name)]
    if others and not (folder / LOCK).exists():
        raise ConfigError(
            f"{folder} has {', '.join(others)} of another program: move them, or choose another folder (--out)"
        )


def check_no_link(path: Path) -> None:
    if path.is_symlink():
        raise ConfigError(f"{path} is a link, and nothing is written through links: remove it")


def model_path(model: ModelLike, folder: Path) -> str:
    """Return the path or name of a model; a model object is saved into the folder of results first."""
    if isinstance(model, str | Path):
        return str(model)
    path = folder / START
    if not path.exists():
        save(model, path)
    elif model_digest(load(path)) != model_digest(model):
        raise ConfigError(f"{path} is another model than the one that was passed: choose another folder")
    return str(path)


@contextmanager
def claim_piece(folder: Path, config: dict[str, Any]) -> Iterator[Run | None]:
    """Open the run in `folder` for this process alone; None if another process is working on it.

    After a ConfigError a new folder is removed: it would refuse the corrected call.
    """
    if launched():
        raise ConfigError(
            "this command does not use torchrun: start it once for each device, and the processes share the work"
        )
    check_no_link(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = lock(folder.parent / f".{folder.name}.lock")
    except ConfigError:
        yield None
        return
    fresh = not folder.exists()
    try:
        with closing(Run.open(folder, config)) as run:
            yield run
    except ConfigError:
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(handle)


@contextmanager
def results_lock(folder: Path) -> Iterator[None]:
    """Let one process at a time collect results; others wait, so that the last one has seen them all."""
    handle = open_own(folder / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def read_piece(folder: Path, kind: Any = dict[str, Any]) -> dict[str, Any] | None:
    """Return the results of a finished piece, checked to be of a kind; None where it is not finished or not begun."""
    return read_results(folder, kind) if os.path.lexists(folder / RUN_JSON) else None


def write_tables(
    folder: Path, result: dict[str, Any], columns: list[str], rows: list[list[str]], below: list[str]
) -> None:
    """Write `columns`, `rows` and the lines `below` for people; the CSV has the rows of `result["rows"]`."""
    head, *rest = (f"| {' | '.join(map(escape_markdown, row))} |" for row in (columns, *rows))
    lines = [head, f"|{'---|' * len(columns)}", *rest, "", *below]
    with atomic_file(folder / "results.md") as path:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
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
    """Put an apostrophe before text that begins like a formula and is not a number: spreadsheets would compute it."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    with suppress(ValueError):
        float(text)
        return text
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def std_cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"
