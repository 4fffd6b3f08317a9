"""Finished pieces -> results.csv, a row for each run; and the points with mean and standard error.

A table never mixes two versions of the numerics: what was computed with another one is refused.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.checkpoints.checkpoint import listing
from vitrail.checkpoints.run.records import NUMERICS, RUN_JSON, flatten, read_run_json
from vitrail.errors import ConfigError
from vitrail.runtime.files import atomic_file
from vitrail.studies.claims import PointResult
from vitrail.studies.plan import RUNS, Plan
from vitrail.studies.work import PieceResults, piece_results
from vitrail.transfer.tables import escape_csv

CSV = "results.csv"
Row = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """The finished part of a study."""

    rows: list[Row]  # of results.csv
    points: dict[str, dict[str, PointResult]]  # by score, by point, in the order of the plan
    places: dict[str, float]  # the place along x of each point
    left: list[str]  # pieces that are not finished
    failed: dict[str, str]  # pieces that could not be finished, and why
    seconds: dict[str, float]  # that each finished piece took
    trials: dict[str, dict[float, float | None]]  # accuracy on held-out train, by family and lr


def collect(plan: Plan, folder: Path, scores: tuple[str, ...], x: str) -> Results:
    """Read every finished piece."""
    check_pieces(plan, folder)
    finished: dict[str, PieceResults] = {}
    for piece in plan.pieces:
        if (results := piece_results(folder, piece.name)) is not None:
            finished[piece.name] = results
    rows = [
        make_row(plan, folder, piece.name, results)
        for piece in plan.pieces
        if (results := finished.get(piece.name))
    ]
    places: dict[str, float] = {}
    points: dict[str, dict[str, PointResult]] = {score: {} for score in scores}
    trials: dict[str, dict[float, float | None]] = {}
    for piece in plan.pieces:
        if piece.trial and piece.name in finished:
            top1 = finished[piece.name]["val"].get("val_top1")
            trials.setdefault(piece.family, {})[finished[piece.name]["lr"]] = top1
    for name in dict.fromkeys(piece.point for piece in plan.pieces if piece.scores):
        pieces = [piece for piece in plan.pieces if piece.point == name and piece.scores]
        done = [finished[piece.name] for piece in pieces if piece.name in finished]
        done = [one for one in done if not one["failed"]]
        if not done:
            continue
        vals = [v for one in done if (v := one["val"].get("val_top1")) is not None]
        val = statistics.fmean(vals) if vals else math.nan
        flops = statistics.fmean(one["flops"] for one in done) / 1e18
        for score in scores:
            values = tuple(one["scores"][score] for one in done)
            points[score][name] = PointResult(name, pieces[0].family, values, val, pieces[0].tuned, flops)
        row = next(row for row in rows if row["point"] == name and row["kind"] == "run")
        if x and isinstance(row.get(x), int | float):
            places[name] = float(row[x])
    left = [piece.name for piece in plan.pieces if piece.name not in finished]
    failed = {name: one["failed"] for name, one in finished.items() if one["failed"]}
    seconds = {name: one["seconds"] for name, one in finished.items() if not one["failed"]}
    return Results(rows, points, places, left, failed, seconds, trials)


def check_pieces(plan: Plan, folder: Path) -> None:
    """Refuse what was computed with other settings, or with another version of the numerics."""
    for piece in plan.pieces:
        place = folder / RUNS / piece.name
        if not (place / RUN_JSON).exists():
            continue
        content = read_run_json(place)
        there, here = flatten(content["config"]), flatten(json.loads(json.dumps(piece.config(plan))))
        if differing := [name for name in {**there, **here} if there.get(name) != here.get(name)]:
            changes = [
                f"{n} is {there.get(n, 'not set')} there, {here.get(n, 'not set')} here" for n in differing
            ]
            raise ConfigError(
                f"{place} has other settings: {listing(changes)}. Choose another folder (--out)"
            )
        version = content.get("versions", {}).get("numerics")
        if "results" in content and version != NUMERICS:
            raise ConfigError(
                f"{place} was computed with numerics {version}, this version of vitrail has {NUMERICS}, and a table "
                "never mixes them: choose another folder (--out)"
            )


def make_row(plan: Plan, folder: Path, name: str, results: PieceResults) -> Row:
    """Return a row: what it is, its settings, its scores, what it cost, and the code that made it."""
    piece = next(piece for piece in plan.pieces if piece.name == name)
    content = read_run_json(folder / RUNS / name)
    git = content.get("git") or {}
    kind = "trial" if piece.trial else "run" if piece.scores else "start"
    row: Row = {"study": plan.study, "size": plan.size, "point": piece.point, "family": piece.family}
    row |= {
        "kind": kind,
        "seed": piece.seed,
        **piece.settings,
        "lr": results["lr"],
        "failed": results["failed"],
    }
    row |= {f"score {score}": value for score, value in results["scores"].items()}
    row |= {score: results["val"][score] for score in sorted(results["val"])}
    row |= {score: results[score] for score in ("steps", "train_examples", "gflops")}
    row |= {"exaflops": results["flops"] / 1e18, "seconds": round(results["seconds"], 1)}
    row |= {"commit": git.get("commit", ""), "changed": git.get("dirty", ""), "computed": results["computed"]}
    return row | {"numerics": content.get("versions", {}).get("numerics", ""), "folder": f"{RUNS}/{name}"}


def write_csv(rows: list[Row], path: Path) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with atomic_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            cells = {name: " ".join(map(str, v)) if isinstance(v, list) else v for name, v in row.items()}
            writer.writerow({name: escape_csv(value) for name, value in cells.items()})
