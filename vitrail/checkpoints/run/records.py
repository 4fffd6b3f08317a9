"""Records of a run.

    run.json         the config, the versions and the code that started it, and at the end the results
    metrics.jsonl    one JSON object per line for everything that was measured, in order

JSON has no NaN and no infinity: they are stored as null. Each line is one write(), so a kill can tear only the last
one, which readers drop and `Run.rewind` removes before the next is written.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch

import vitrail
from vitrail.checkpoints.checkpoint import listing
from vitrail.checkpoints.json_files import Count, check_kind, parse_object, read_object
from vitrail.errors import CheckpointError, ConfigError
from vitrail.runtime.files import atomic_file, open_own
from vitrail.runtime.log import note

RUN_JSON, METRICS = "run.json", "metrics.jsonl"
MAX_LINE, MAX_ROWS = 1 << 20, 10_000_000  # of metrics.jsonl: bytes, and lines
FORMAT = 2  # its version; the first one was not numbered
# Raised when the same settings, data and machine would give other bits: the golden traces (tests/golden) hold it.
NUMERICS = "2"
# Entries that must be those that a run started with; the data, of a finished run.
REFUSED = {
    "classes": "was started with other classes, or in another order, so its labels mean something else. This is "
    "another run: choose another folder, or restore the class names",
    "start": "was started from other weights under the same name. Choose another folder, or restore those weights",
    "data": "is a finished run on other data: files were added, removed or changed since. With the present data "
    "this is another run: choose another folder",
}


class Git(TypedDict):
    commit: str
    dirty: bool


class Required(TypedDict):
    config: dict[str, Any]


class RunJson(Required, total=False):
    format: Count
    versions: dict[str, str]
    git: Git | None
    created: str
    data: str  # digest of the data that it started with
    later_data: list[str]  # digests of changed data that it was resumed with
    classes: str  # digest of the class names
    start: str  # digest of the weights that it started from
    used: dict[str, Any]  # values of settings that the config leaves open
    first_checkpoint: Count  # its step
    results: dict[str, Any]


class Measured(TypedDict, total=False):
    """Schema of a row: numbers by name, and anything else that was recorded."""

    step: Count


def read_run_json(folder: Path) -> dict[str, Any]:
    """Read run.json; raise an error if another version of vitrail wrote it."""
    content = read_object(folder / RUN_JSON, RunJson)
    version = content.get("format", 1)
    if version != FORMAT:
        raise CheckpointError(
            f"{folder} was written by {'an earlier' if version < FORMAT else 'a later'} version of vitrail "
            f"(format {version}, this one has {FORMAT}): choose another folder; its model/ still loads"
        )
    return content


def read_results(folder: Path, kind: Any = dict[str, Any]) -> dict[str, Any] | None:
    """Return the results of a finished run, checked against the type `kind`; None if it is not finished."""
    results = replace_nonfinite(read_run_json(folder).get("results"))
    if results is not None:
        check_kind(results, kind, f"{folder / RUN_JSON}: results")
    return results


def write_run_json(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Write the content, and return it as it will be read; refuse content that could not be read again."""
    text = json.dumps(content, indent=2, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
    content = parse_object(text, RunJson, str(folder / RUN_JSON))
    with atomic_file(folder / RUN_JSON) as temporary:
        temporary.write_bytes(text)
    return content


def open_run_json(folder: Path, config: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """Return the content for a run that starts, or resumes; `about` holds the optional entries that are known.

    Raise an error unless config, class names and starting weights are those that the run started with. An unfinished
    run may be resumed with changed data files, and any run with other versions; a note says so.
    """
    if not (folder / RUN_JSON).exists():
        created = datetime.now(UTC).isoformat(timespec="seconds")
        started = {"format": FORMAT, "config": config, "versions": versions(), "git": git_state()}
        return write_run_json(folder, {**started, "created": created, **about})
    content = read_run_json(folder)
    changed = [name for name, now in about.items() if content.get(name, now) != now]
    before, now = (
        {name: json.dumps(value) for name, value in flatten(settings).items()}
        for settings in (content["config"], config)
    )
    differences = [
        f"{name} is {before.get(name, 'not set')} there, {now.get(name, 'not set')} here"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if differences:
        other = "classes" if "classes" in changed else "data (files or splits)" if "data" in changed else None
        also = f" It also has other {other}, and settings left open follow the data." if other else ""
        raise ConfigError(
            f"{folder} is another run, which is never overwritten: {listing(differences)}.{also} Choose another "
            "folder, or use the same settings to resume"
        )
    for name, reason in REFUSED.items():
        if name in changed and (name != "data" or "results" in content):
            raise ConfigError(f"{folder} {reason}")
    updated = about | content
    if "data" in changed:
        note(f"{folder} was started with other data: files were added, removed or changed since")
        if about["data"] not in (later := content.get("later_data", [])):
            updated["later_data"] = [*later, about["data"]]
    if updated != content:
        write_run_json(folder, updated)
    started = content.get("versions", {})
    others = [
        f"{name} {started[name]:.40}, now {v}" for name, v in versions().items() if started.get(name, v) != v
    ]
    if others:
        note(f"{folder} was started with {', '.join(others)}: numbers may differ in the last digits")
    return updated


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Name nested settings by dotted names: {"model": {"width": 192}} -> {"model.width": 192}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, dict) and value
        flat |= flatten(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flat


def versions() -> dict[str, str]:
    return {
        "vitrail": vitrail.__version__,
        "numerics": NUMERICS,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def git_state() -> dict[str, Any] | None:
    """Return the commit of the running code; None without git, or unless it runs from a repository that tracks it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        commit = git("describe", "--always", "--exclude=*", "--abbrev=40", "--dirty")
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit.removesuffix("-dirty"), "dirty": commit.endswith("-dirty")}


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all rows, except for a last line that a kill has torn."""
    if not os.path.lexists(path):
        return
    with os.fdopen(open_own(path), "rb") as file:
        for number in itertools.count(1):
            line = file.readline(MAX_LINE)
            if number > MAX_ROWS or (len(line) == MAX_LINE and not line.endswith(b"\n")):
                raise CheckpointError(
                    f"{path}, line {number}: at most {MAX_ROWS:,} lines of {MAX_LINE:,} bytes are read"
                )
            if not line.endswith(b"\n"):
                return
            yield replace_nonfinite(parse_object(line, Measured, f"{path}, line {number},"))


def to_line(row: dict[str, Any]) -> bytes:
    return (json.dumps(replace_nonfinite(row), allow_nan=False) + "\n").encode()


def replace_nonfinite(value: Any) -> Any:
    """Return a JSON value with None in place of NaN and infinity."""
    if isinstance(value, dict):
        return {key: replace_nonfinite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
