"""run.json, what a run is: its resolved config, the versions and the code that began it, at the end its results."""

from __future__ import annotations

import json
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch

import vitrail
from vitrail.checkpoints.checkpoint import listing
from vitrail.checkpoints.json_files import Count, check_kind, parse_object, read_object
from vitrail.checkpoints.run.metrics import finite
from vitrail.errors import ConfigError
from vitrail.runtime.files import atomic_file
from vitrail.runtime.log import note

RUN_JSON = "run.json"
LATER = "later_data"  # in it: digests of the data that an unfinished run went on with, where it had changed
FIRST = "first_checkpoint"  # its step


class Git(TypedDict):
    commit: str
    dirty: bool


class Configured(TypedDict):
    config: dict[str, Any]


class Card(Configured, total=False):
    """run.json."""

    versions: dict[str, str]
    git: Git | None
    created: str
    data: str  # digests
    classes: str
    start: str
    used: dict[str, Any]
    later_data: list[str]
    first_checkpoint: Count
    results: dict[str, Any]


def write_new(folder: Path, config: dict[str, Any], about: dict[str, Any]) -> None:
    """`about`: digests of the data, of its classes, and of the weights that it begins from, and what open settings
    became, where it has them."""
    card = {
        "config": config,
        "versions": versions(),
        "git": git_state(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **about,
    }
    write_run_json(folder, card)


def read_run_json(folder: Path) -> dict[str, Any]:
    return read_object(folder / RUN_JSON, Card)


def read_results(folder: Path, kind: Any = dict[str, Any]) -> dict[str, Any] | None:
    """Of a finished run, of the kind that they must be (run_json.py); None: it is not finished."""
    found = finite(read_run_json(folder).get("results"))
    if found is not None:
        check_kind(found, kind, f"{folder / RUN_JSON}: results")
    return found


def write_run_json(folder: Path, card: dict[str, Any]) -> None:
    content = json.dumps(card, indent=2, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
    parse_object(content, Card, str(folder / RUN_JSON))  # what could not be read again is not written
    with atomic_file(folder / RUN_JSON) as temporary:
        temporary.write_bytes(content)


def check_same(folder: Path, config: dict[str, Any], about: dict[str, Any]) -> None:
    """A run goes on only with the config, the classes and the weights that it began with; with other versions or
    files it goes on, and says so."""
    card = read_run_json(folder)
    there, here = flatten(card["config"]), flatten(json.loads(json.dumps(config)))
    differ = [
        f"{name} is {shown(there, name)} there, {shown(here, name)} here"
        for name in sorted(there.keys() | here.keys())
        if shown(there, name) != shown(here, name)
    ]
    changed = [name for name, now in about.items() if card.get(name, now) != now]
    other = next((name for name in ("classes", "data") if name in changed), "")
    if differ:
        raise ConfigError(
            f"{folder} "
            + (f"began with other {other}, which settings that are left open follow; it " if other else "")
            + "holds a run with another config, which is never overwritten; choose another folder, or the same "
            f"config to go on: {listing(differ)}"
        )
    if other == "classes":
        raise ConfigError(
            f"{folder} began with other classes, or in another order: nothing in it fits the labels of now. Choose "
            "another folder, or give the classes their names again"
        )
    if "start" in changed:
        raise ConfigError(
            f"{folder} began from other weights, though their name is the same: what is in it is not theirs. Choose "
            "another folder, or put those weights back"
        )
    known = about | card
    if other:
        note(f"{folder} began with other data: files were added, removed or changed since")
        if "results" not in card and about["data"] not in (later := card.get(LATER, [])):
            known[LATER] = [*later, about["data"]]
    if known != card:
        write_run_json(folder, known)
    began = card.get("versions", {})
    versions_then = [
        f"{name} {began[name]}, now {now}" for name, now in versions().items() if began.get(name, now) != now
    ]
    if versions_then:
        note(f"{folder} began with {', '.join(versions_then)}: its numbers may differ in the last digits")


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names: {"model": {"width": 192}} -> {"model.width": 192}."""
    made: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, dict) and value
        made |= flatten(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return made


def shown(settings: dict[str, Any], name: str) -> str:
    return json.dumps(settings[name]) if name in settings else "not set"


def versions() -> dict[str, str]:
    return {
        "vitrail": vitrail.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def git_state() -> dict[str, Any] | None:
    """Of the code that runs, where it runs from a repository that holds it."""
    if git("ls-files", "--error-unmatch", str(Path(__file__).with_name("__init__.py"))) is None:
        return None
    said = git("describe", "--always", "--exclude=*", "--abbrev=40", "--dirty")
    return None if said is None else {"commit": said.removesuffix("-dirty"), "dirty": said.endswith("-dirty")}


def git(*words: str) -> str | None:
    """What git says of our repository; None where there is no git, or it fails."""
    command = ["git", "-C", str(Path(__file__).parent), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
