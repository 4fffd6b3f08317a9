"""The folder of a run: that it is the run's own, that one process at a time writes to it, and what stands where.

Reading needs no lock, so `vitrail runs` can look at runs that are being trained.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import re
import stat
from pathlib import Path
from typing import Any

from vitrail.checkpoints.run_card import CARD, flat
from vitrail.checkpoints.run_state import folder_name, read_facts
from vitrail.errors import CheckpointError, ConfigError
from vitrail.runtime.files import open_own

LOCK, METRICS, CHECKPOINTS, FIGURES = ".lock", "metrics.jsonl", "checkpoints", "figures"
# Names of what is written to a run's folder beside its place, and moved there.
WRITTEN = r"run\.json|metrics\.jsonl|mistakes\.jsonl|results\.md|model|figures"


def check_own(path: Path) -> None:
    """A run has a folder to itself: a new one, an empty one, or the one that it began in."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; a run is written to a folder of its own")
    if path.is_dir() and not os.path.lexists(path / CARD):
        # A run that was killed in its first moments leaves hidden files only.
        others = sorted(p.name for p in path.iterdir() if not p.name.startswith((LOCK, f".{CARD}.")))
        if others:
            more = f" and {len(others) - 5} more" if len(others) > 5 else ""
            raise ConfigError(
                f"{path} is not a run (it has no {CARD}) and holds {', '.join(others[:5])}{more}; "
                "a run is written to a folder of its own"
            )
    check_no_links(path)


def check_utf8(path: Path, config: dict[str, Any]) -> None:
    """A run and what it is made of have names that are text: JSON has no others, and safetensors opens no others."""
    for text in (str(path), *(json.dumps(value, ensure_ascii=False) for value in flat(config).values())):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"{text[:200]}: bytes of this name are not UTF-8, and {CARD} has no place for them: rename it, or "
                "give a link to it that has another name"
            ) from error


def check_no_links(path: Path) -> None:
    """Files and folders only, at any depth: what a link leads to is not ours to write, to remove or to read."""
    for folder, folders, files in os.walk(path):
        for place in (Path(folder, name) for name in (*folders, *files)):
            try:
                mode = place.lstat().st_mode
            except FileNotFoundError:
                continue  # another process is at it
            if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
                what = "a link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
                raise ConfigError(
                    f"{place} is {what}: the folder of a run holds files and folders of its own only. Put there what "
                    "it stands for, or remove it"
                )


def locked(path: Path) -> int:
    """An open file that no other can lock while it is open; it says whose it is."""
    handle = open_own(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(handle, 1000).decode("utf-8", "replace").strip()
        os.close(handle)
        if not isinstance(error, BlockingIOError):
            raise
        raise ConfigError(
            f"{path.parent} is in use: {holder or 'another process'} is writing this run. It is to end first; where "
            "torchrun was killed, its processes may live on"
        ) from error
    os.ftruncate(handle, 0)
    os.write(handle, f"process {os.getpid()} on {platform.node()}\n".encode())
    return handle


def place_of(path: Path, step: int) -> Path:
    return path / CHECKPOINTS / folder_name(step)


def steps_in(path: Path) -> list[int]:
    """The steps of a run's checkpoints, in order."""
    if (path / CHECKPOINTS).is_symlink():
        raise CheckpointError(f"{path / CHECKPOINTS} is a link, which is not followed")
    there = [p for p in (path / CHECKPOINTS).glob("step-*") if p.is_dir() and not p.is_symlink()]
    steps = [int(p.name[5:]) for p in there if re.fullmatch(r"step-[0-9]{8,18}", p.name)]
    return sorted(step for step in steps if place_of(path, step) in there)


def scores_in(path: Path) -> dict[int, float]:
    """step -> score, of the checkpoints that have one that can be read."""
    scores = {}
    for step in steps_in(path):
        try:
            score = read_facts(place_of(path, step))["score"]
        except CheckpointError:
            continue  # damaged, which matters to who restores it
        if score is not None and math.isfinite(score):
            scores[step] = float(score)
    return scores


def best_of(scores: dict[int, float]) -> int | None:
    """The step with the highest score; of equal ones the first."""
    return max(scores, key=lambda step: (scores[step], -step), default=None)
