"""Summaries of runs for `vitrail runs DIR`, read from run.json, metrics.jsonl and the checkpoints.

It only reads, so runs that are being trained can be listed. A config may be any JSON: the most important settings
are found in it by name, at any depth.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.checkpoints.json_files import Number, is_a
from vitrail.checkpoints.run.folder import is_running, list_steps, read_scores
from vitrail.checkpoints.run.records import (
    METRICS,
    RUN_JSON,
    flatten,
    read_rows,
    read_run_json,
    replace_nonfinite,
)
from vitrail.errors import ConfigError

NOT_SCORES = ("seconds", "std", "lr", "dev")  # fractions in the results that are not scores
MOST_EXAMPLES = 1 << 50  # of a test split; a run.json that claims more is not believed
NOT_MEASURED = ("step", "epoch", "seconds", "lr", "loss")  # numbers in a row that are not scores


@dataclass(frozen=True)
class Summary:
    """One run in short; None for values that are not known."""

    name: str  # its folder, relative to the one that was asked for
    parent: str | None  # the run that it is a part of, as one of a sweep is
    state: str  # running | finished | interrupted
    step: int | None  # the last: of a running one in its metrics, else of a checkpoint
    steps: int | None  # planned
    model: str | None
    data: str | None
    lr: float | None  # chosen by a sweep, or set, or else the highest that was used
    loss: float | None  # the last
    scores: dict[str, float]  # of the last evaluation
    monitor: str | None  # the score that checkpoints are compared by
    best: float | None  # of a checkpoint, and its step
    best_step: int | None
    results: dict[str, float]  # the final scores
    examples: int | None  # that the final scores are measured on; None for a mean over several seeds
    seconds: float | None
    config: dict[str, Any]  # by dotted names


def find_runs(folder: Path) -> list[tuple[Path, Path | None]]:
    """Return every run at or below a folder, each with the run that contains it."""
    if not folder.is_dir():
        raise ConfigError(f"no such folder: {folder}")
    runs = sorted(path.parent for path in folder.rglob(RUN_JSON))
    if not runs:
        raise ConfigError(f"no runs in {folder}: a run is a folder with a {RUN_JSON}")
    known = set(runs)
    return [(run, next((above for above in run.parents if above in known), None)) for run in runs]


def summarize(run: Path, name: str, parent: str | None = None) -> Summary:
    content = replace_nonfinite(read_run_json(run))
    config, results = flatten(content["config"]), content.get("results")
    final, scores, written = flatten(results or {}), read_scores(run), list_steps(run)
    measured: dict[str, float] = {}  # the last of each, and the highest learning rate
    evaluated: dict[str, float] = {}
    for row in read_rows(run / METRICS):
        numbers = {key: value for key, value in row.items() if is_a(value, Number)}
        if "lr" in numbers:
            numbers["lr"] = max(numbers["lr"], measured.get("lr", numbers["lr"]))
        measured |= numbers
        if "lr" not in numbers:
            evaluated |= {key: value for key, value in numbers.items() if key not in NOT_MEASURED}
    running = results is None and is_running(run)
    reached = measured.get("step") if running else None
    best, examples = next(iter(scores), None), outermost(final, "test_examples")
    one_seed = (outermost(final, "seeds") or 1) == 1
    steps = outermost(config, "steps") or outermost(final, "steps")  # a run may be planned in epochs
    return Summary(
        name=name,
        parent=parent,
        state="finished" if results is not None else "running" if running else "interrupted",
        step=int(reached) if reached is not None else written[-1] if written else None,
        steps=None if steps is None else int(steps),
        model=text_setting(config, "model"),
        data=text_setting(config, "data"),
        lr=outermost(final, "lr") or outermost(config, "lr") or measured.get("lr"),
        loss=measured.get("loss"),
        scores=evaluated,
        monitor=outermost(config, "monitor", str) or None,
        best=None if best is None else abs(scores[best]),  # a loss is stored negative
        best_step=best,
        results={
            key: value
            for key, value in final.items()
            if isinstance(value, float) and key.split(".")[-1] not in NOT_SCORES
        },
        examples=int(examples) if examples and examples <= MOST_EXAMPLES and one_seed else None,
        seconds=outermost(final, "seconds") or measured.get("seconds"),
        config=config,
    )


def differences(runs: list[Summary]) -> dict[str, list[Any]]:
    """Return the settings that are not equal in all runs: name -> its value in each, None where it is not set."""
    names = dict.fromkeys(name for run in runs for name in run.config)
    values = {name: [run.config.get(name) for run in runs] for name in names}
    return {name: v for name, v in values.items() if len(set(map(json.dumps, v))) > 1}


def outermost(settings: dict[str, Any], name: str, kind: Any = Number) -> Any:
    """Return the least nested setting of that name and kind; None without any."""
    keys = [key for key, value in settings.items() if key.split(".")[-1] == name and is_a(value, kind)]
    return settings[min(keys, key=lambda key: key.count("."))] if keys else None


def text_setting(settings: dict[str, Any], name: str) -> str | None:
    """Return the setting of that name, or the first text in the group of that name."""
    group = (value for key, value in settings.items() if f"{key}.".startswith(f"{name}."))
    return next((value for value in group if isinstance(value, str)), None)
