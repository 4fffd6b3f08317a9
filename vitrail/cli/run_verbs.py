"""Runs: what was trained, how far it is, and its scores."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, Common, Output, table
from vitrail.evaluators.score import format_score, score_label

if TYPE_CHECKING:
    from vitrail.checkpoints.run.summary import Summary

COLUMNS = ("run", "state", "model", "data", ">lr", ">loss", ">best", ">score", ">time")
# In a narrow terminal the columns that say least are left out, in this order; --json has all.
DISPENSABLE = (">time", ">lr", "data", "model", ">best", ">loss")


def runs(folder: Annotated[Positional[str], arg(metavar="DIR")], *, common: Common = COMMON) -> Output:
    """List and compare the runs in a folder.

    Args:
        folder: a run, or a folder with runs at any depth
    """
    from dataclasses import asdict
    from pathlib import Path

    from rich.console import Console, Group

    from vitrail.checkpoints.run.summary import differences, find_runs, summarize
    from vitrail.errors import VitrailError

    top = Path(folder).expanduser()

    def name(path: Path) -> str:
        return str(path.relative_to(top)) if path != top else path.resolve().name

    listed: list[Summary] = []
    problems = []
    for path, parent in find_runs(top):
        try:
            listed.append(summarize(path, name(path), None if parent is None else name(parent)))
        except (VitrailError, OSError) as error:
            problems.append(str(error))
    tables = [table(*fit_columns(list(COLUMNS), [cells(run) for run in listed], Console().width))]
    whole = [run for run in listed if run.parent is None]  # the members of a sweep differ by what it varies
    different = differences(whole)
    # A setting that only one kind of run has does not say how two runs differ.
    compared = [
        key
        for key in different
        if len({json.dumps(run.config[key]) for run in whole if key in run.config}) > 1
    ]
    if compared:
        tables.append(
            table(["", "settings that differ"], [[run.name, settings(compared, run)] for run in whole])
        )
    result = {"runs": [asdict(run) for run in listed], "differences": different, "errors": problems}
    return Output(common, [], [], result, body=Group(*tables), problems=problems)


def cells(run: Summary) -> list[str]:
    name = run.name if run.parent is None else f"  {run.name.removeprefix(f'{run.parent}/')}"
    state = run.state if run.step is None else f"{run.state}, step {run.step:,}"
    if run.step is not None and run.steps is not None and run.state != "finished":
        state += f" of {run.steps:,}"
    best = "-" if run.best is None else f"{named_score(run.monitor or '', run.best)} at {run.best_step:,}"
    minutes, seconds = divmod(round(run.seconds or 0), 60)
    return [
        name,
        state,
        run.model or "-",
        run.data or "-",
        "-" if run.lr is None else f"{run.lr:g}",
        "-" if run.loss is None else f"{run.loss:.4f}",
        best,
        final_score(run.results, run.examples) or last_score(run) or "-",
        "-" if run.seconds is None else f"{minutes // 60}:{minutes % 60:02}:{seconds:02}",
    ]


def final_score(results: dict[str, float], examples: int | None = None) -> str:
    """Return the first score of the test split (a mean over seeds, or of one run), else of val; never of a sweep."""
    scores = {name: value for name, value in results.items() if not name.startswith("sweep.")}
    tested = {name: value for name, value in scores.items() if not name.startswith("val.")}
    first = [name for name in ("scores.top1.mean", "test.top1") if name in tested]
    for name in (*first, *tested, *scores):
        n = examples if name in first else None
        return named_score(name.removesuffix(".mean").split(".")[-1], scores[name], n)
    return ""


def last_score(run: Summary) -> str:
    """Return the monitored score of the last evaluation, else top-1 accuracy, else the first."""
    for name in (run.monitor, "val_top1", *run.scores):
        if name is not None and name in run.scores:
            return named_score(name, run.scores[name])
    return ""


def named_score(name: str, value: float, n: int | None = None) -> str:
    return f"{score_label(name)} {format_score(name, value, n)}".lstrip()


def settings(compared: list[str], run: Summary) -> str:
    """Return the compared settings that a run has; text and None as flags have them, else as JSON."""
    values = {name: run.config[name] for name in compared if name in run.config}
    texts = {
        name: str(v) if v is None or (v and isinstance(v, str)) else json.dumps(v)
        for name, v in values.items()
    }
    return "  ".join(f"{name} {text}" for name, text in texts.items()) or "-"


def fit_columns(columns: list[str], rows: list[list[str]], width: int) -> tuple[list[str], list[list[str]]]:
    """Leave out the columns that are empty, and those that do not fit."""
    for name in DISPENSABLE:
        needed = 1 + sum(3 + max(map(len, column)) for column in zip(columns, *rows, strict=True))
        empty = all(row[columns.index(name)] == "-" for row in rows)
        if needed <= width and not empty:
            continue
        position = columns.index(name)
        columns, *rows = (row[:position] + row[position + 1 :] for row in [columns, *rows])
    return columns, rows
