"""Runs: what was trained, how far it is, and what it gave."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, Common, Shown

if TYPE_CHECKING:
    from vitrail.checkpoints.run_summary import Summary

COLUMNS = ("run", "state", "model", "data", ">steps", ">rate", ">last loss", ">best", "final", ">seconds")


def runs(folder: Annotated[Positional[str], arg(metavar="DIR")], *, common: Common = COMMON) -> Shown:
    """List and compare the runs below a folder.

    Args:
        folder: a run, or a folder with runs at any depth
    """
    from dataclasses import asdict
    from pathlib import Path

    from rich.console import Group

    from vitrail.checkpoints.run_summary import differences, run_folders, summary
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
    tables = [table(list(COLUMNS), [cells(run) for run in found])]
    if differ:
        rows = [[run.name, *(shown(v[i]) for v in differ.values())] for i, run in enumerate(found)]
        tables.append(table(["what differs", *differ], rows))
    result = {"runs": [asdict(run) for run in found], "differences": differ, "errors": problems}
    return Shown(common, [], [], result, body=Group(*tables), problems=problems)


def cells(run: Summary) -> list[str]:
    best = "-" if run.best is None else f"{run.best:.4g} at {run.best_step:,}"
    final = "  ".join(f"{name} {value:.4g}" for name, value in list(run.results.items())[:4])
    return [
        run.name,
        run.state,
        run.model or "-",
        run.data or "-",
        "-" if run.steps is None else f"{run.steps:,}",
        "-" if run.rate is None else f"{run.rate:g}",
        "-" if run.loss is None else f"{run.loss:.4f}",
        best,
        final or "-",
        "-" if run.seconds is None else f"{run.seconds:,.0f}",
    ]


def shown(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)


def table(columns: list[str], rows: list[list[str]]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD)
    for column in columns:
        justify = "right" if column.startswith(">") else "left"
        made.add_column(Text(column.removeprefix(">")), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*map(Text, row))
    return made
