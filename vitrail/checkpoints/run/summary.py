"""Runs side by side: what `vitrail runs DIR` shows of each, read from run.json, metrics.jsonl and the checkpoints.

Only reads, so runs that are being trained can be looked at. A config may be any JSON; the settings that a person
looks for first are found in it by name, wherever they are nested.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.checkpoints.json_kinds import is_number
from vitrail.checkpoints.run import metrics
from vitrail.checkpoints.run.folder import METRICS, best_of, scores_in, steps_in
from vitrail.checkpoints.run.run_json import RUN_JSON, flatten, read_run_json
from vitrail.errors import ConfigError

NOT_SCORES = ("seconds", "std", "rate", "dev")  # fractions in the results that are not scores


@dataclass(frozen=True)
class Summary:
    """One run in a few words; None is what it does not say."""

    name: str  # its folder, from the one that was asked for
    state: str  # finished | at step 500 of 1,000 | no checkpoint
    model: str | None
    data: str | None
    steps: int | None  # planned
    rate: float | None  # the one that was chosen, or set, or else the highest that was used
    loss: float | None  # the last
    watch: str | None  # the score that checkpoints are judged by
    best: float | None  # the best of a checkpoint, and its step
    best_step: int | None
    results: dict[str, float]  # the final scores
    seconds: float | None
    config: dict[str, Any]  # by dotted names


def run_folders(folder: Path) -> list[Path]:
    """Every run at or below a folder."""
    if not folder.is_dir():
        raise ConfigError(f"no such folder: {folder}")
    found = sorted(card.parent for card in folder.rglob(RUN_JSON))
    if not found:
        raise ConfigError(f"no run below {folder}: a run is a folder with a {RUN_JSON}")
    return found


def summary(run: Path, name: str) -> Summary:
    card, measured = metrics.finite(read_run_json(run)), last_measured(metrics.each_row(run / METRICS))
    config, results = flatten(card["config"]), card.get("results")
    ended, reached, scores = flatten(results or {}), steps_in(run), scores_in(run)
    steps = number(config, "steps") or number(ended, "steps")  # it may be planned in epochs
    best_step = best_of(scores)
    return Summary(
        name=name,
        state=state_of(results is not None, reached[-1] if reached else None, steps),
        model=text(config, "model"),
        data=text(config, "data"),
        steps=None if steps is None else int(steps),
        rate=number(ended, "rate") or number(config, "rate") or measured.get("rate"),
        loss=measured.get("loss"),
        watch=outermost(config, "watch", lambda value: isinstance(value, str)) or None,
        best=None if best_step is None else abs(scores[best_step]),  # a loss is kept negative
        best_step=best_step,
        results={
            key: v
            for key, v in ended.items()
            if isinstance(v, float) and key.split(".")[-1] not in NOT_SCORES
        },
        seconds=number(ended, "seconds") or measured.get("seconds"),
        config=config,
    )


def state_of(finished: bool, reached: int | None, steps: float | None) -> str:
    if finished:
        return "finished"
    if reached is None:
        return "no checkpoint"
    return f"at step {reached:,}" + ("" if steps is None else f" of {int(steps):,}")


def differences(runs: list[Summary]) -> dict[str, list[Any]]:
    """The settings that are not the same in all runs: name -> its value in each, None where it is not set."""
    names = dict.fromkeys(name for run in runs for name in run.config)
    values = {name: [run.config.get(name) for run in runs] for name in names}
    return {name: v for name, v in values.items() if len(set(map(json.dumps, v))) > 1}


def last_measured(rows: Iterable[metrics.Row]) -> dict[str, float]:
    """The last loss and time, and the highest rate."""
    made: dict[str, float] = {}
    for row in rows:
        made |= {name: row[name] for name in ("loss", "seconds") if is_number(row.get(name))}
        if is_number(row.get("rate")):
            made["rate"] = max(row["rate"], made.get("rate", row["rate"]))
    return made


def number(settings: dict[str, Any], name: str) -> float | None:
    return outermost(settings, name, is_number)


def outermost(settings: dict[str, Any], name: str, kind: Callable[[Any], bool]) -> Any:
    """The first setting of that name and kind, at any depth, the outermost first."""
    found = [k for k, value in settings.items() if k.split(".")[-1] == name and kind(value)]
    return settings[min(found, key=lambda key: key.count("."))] if found else None


def text(settings: dict[str, Any], name: str) -> str | None:
    """The setting of that name, or where that is a group of settings, the first text in it."""
    group = (value for key, value in settings.items() if f"{key}.".startswith(f"{name}."))
    return next((value for value in group if isinstance(value, str)), None)
