"""What VTAB's tasks come to: a row for each, means of whole groups, and the table that people read.

A task whose data is absent, or that is not finished, has no accuracy and enters no mean; a group with such a task
has no mean either, and says how many of its tasks are done.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, TypedDict

from vitrail.checkpoints.json_files import Count
from vitrail.transfer.claim import results_in
from vitrail.transfer.tables import percent
from vitrail.transfer.vtab_tasks import GROUPS, TASKS


class Found(TypedDict):
    """In run.json, of a finished task; its rates and their scores besides."""

    accuracy: float
    std: float | None
    values: list[float]
    test_examples: Count
    manifest: str


def collected(names: list[str], there: list[str], folder: Path, beside: dict[str, float]) -> dict[str, Any]:
    """The rows of the tasks `names`, of which the data of `there` is there; the paper's accuracies `beside`."""
    rows: list[dict[str, Any]] = []
    for name in names:
        task = TASKS[name]
        found = results_in(folder / "tasks" / name, Found) if name in there else None
        status = "done" if found else "unfinished" if name in there else "absent"
        row = {"task": name, "group": task.group, "classes": task.classes, "status": status}
        rows.append({**row, **(found or {"accuracy": None}), **row, "paper": beside.get(name)})
    accuracies = {row["task"]: row["accuracy"] for row in rows if row["accuracy"] is not None}
    groups = {group: mean_of([n for n in TASKS if TASKS[n].group == group], accuracies) for group in GROUPS}
    return {
        "rows": rows,
        "groups": groups,
        "vtab": mean_of(list(TASKS), accuracies),
        "paper_vtab": statistics.fmean(beside.values()) if beside else None,
    }


def mean_of(names: list[str], accuracies: dict[str, float]) -> dict[str, Any]:
    """Of all of them or of none."""
    done = [accuracies[name] for name in names if name in accuracies]
    mean = statistics.fmean(done) if len(done) == len(names) else None
    return {"mean": mean, "done": len(done), "of": len(names)}


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows, for people."""
    rows = []
    for row in result["rows"]:
        if row["status"] == "done":
            tested = f"{row['test_examples']:,}"
            cells = [percent(row["accuracy"]), percent(row["std"]), str(len(row["values"])), tested]
        else:
            cells = [row["status"], "-", "-", "-"]
        rows.append([row["task"], row["group"], *cells, percent(row["paper"])])
    for group, mean in result["groups"].items():
        rows.append([f"mean of {group}", "", whole_mean(mean), "", "", "", ""])
    rows.append(["mean of 19", "", whole_mean(result["vtab"]), "", "", "", percent(result["paper_vtab"])])
    return ["task", "group", "accuracy", "std", "runs", "tested", "paper"], rows


def whole_mean(mean: dict[str, Any]) -> str:
    return f"- ({mean['done']} of {mean['of']})" if mean["mean"] is None else percent(mean["mean"])


def below(result: dict[str, Any]) -> list[str]:
    p = result["protocol"]
    sizes = (p["train_examples"], p["val_examples"])
    lines = [
        f"{result['image_size']} px, {p['steps']:,} steps of {p['batch']} images, normalisation "
        f"{result['normalisation']}, augmentation {p['augment']}; {sizes[0]} + {sizes[1]} training examples"
    ]
    if sizes != (800, 200):
        lines.append("not VTAB-1k: that takes 800 + 200 examples of each task")
    return lines
