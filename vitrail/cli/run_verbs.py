"""Runs: what was trained, how far it is, and what it gave."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, Common, Shown, table

if TYPE_CHECKING:
    from vitrail.checkpoints.run.summary import Summary

# In a narrow terminal the columns that say least go, in this order; --json has all.
DISPENSABLE = (">seconds", ">steps", ">rate", "data", "model", ">best")
COLUMNS = ("run", "state", "model", "data", ">steps", ">rate", ">last loss", ">best", "final", ">seconds")


def runs(folder: Annotated[Positional[str], arg(metavar="DIR")], *, common: Common = COMMON) -> Shown:
    """List and compare the runs below a folder.

    Args:
        folder: a run, or a folder with runs at any depth
    """
    from dataclasses import asdict
    from pathlib import Path

    from rich.console import Console, Group

    from vitrail.checkpoints.run.summary import differences, run_folders, summary
    from vitrail.errors import VitrailError

    top = Path(folder).expanduser()
    found: list[Summary] = []
    problems = []
    for run in run_folders(top):
        try:
            found.append(summary(run, str(run.relative_to(top)) if run != top else run.resolve().name))
        except (VitrailError, OSError) as error:
            problems.append(str(error))
    differ = differences(found)
    tables = [table(*fitting(list(COLUMNS), [cells(run) for run in found], Console().width))]
    compared = [name for name in differ if comparable(name, found)]
    if compared:
        rows = [[run.name, settings(compared, run)] for run in found]
        tables.append(table(["", "what differs"], rows))
    result = {"runs": [asdict(run) for run in found], "differences": differ, "errors": problems}
    return Shown(common, [], [], result, body=Group(*tables), problems=problems)


def cells(run: Summary) -> list[str]:
    best = "-" if run.best is None else f"{run.watch or ''} {run.best:.4g} at {run.best_step:,}".lstrip()
    return [
        run.name,
        run.state,
        run.model or "-",
        run.data or "-",
        "-" if run.steps is None else f"{run.steps:,}",
        "-" if run.rate is None else f"{run.rate:g}",
        "-" if run.loss is None else f"{run.loss:.4f}",
        best,
        final_score(run.results),
        "-" if run.seconds is None else f"{run.seconds:,.0f}",
    ]


def final_score(results: dict[str, float]) -> str:
    """The first, by its short name: of the test split (a mean over seeds, or of one run), else of val; what a sweep
    chose by is none."""
    scores = {name: value for name, value in results.items() if not name.startswith("sweep.")}
    tested = {name: value for name, value in scores.items() if not name.startswith("val.")}
    best = [name for name in ("scores.top1.mean", "test.top1") if name in tested]
    for name in (*best, *tested, *scores):
        return f"{name.removesuffix('.mean').split('.')[-1]} {scores[name]:.4g}"
    return "-"


def comparable(name: str, runs: list[Summary]) -> bool:
    """Whether a setting says how runs differ: two that have it have it otherwise."""
    return len({json.dumps(run.config[name]) for run in runs if name in run.config}) > 1


def settings(compared: list[str], run: Summary) -> str:
    """Those that it has; None as the flags write it."""
    had = {name: run.config[name] for name in compared if name in run.config}
    return (
        "  ".join(f"{name} {v if isinstance(v, str | None) else json.dumps(v)}" for name, v in had.items())
        or "-"
    )


def fitting(columns: list[str], rows: list[list[str]], width: int) -> tuple[list[str], list[list[str]]]:
    """Without the columns that there is no room for."""
    for name in DISPENSABLE:
        needed = sum(2 + max(map(len, column)) for column in zip(columns, *rows, strict=True))
        if needed + 2 <= width:
            break
        gone = columns.index(name)
        columns, *rows = (row[:gone] + row[gone + 1 :] for row in [columns, *rows])
    return columns, rows
