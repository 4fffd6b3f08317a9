"""The folder of a run: that it is the run's own, that one process at a time writes to it, and what stands where.

Reading needs no lock, so `vitrail runs` can look at runs that are being trained.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
from pathlib import Path

from vitrail.checkpoints.json_kinds import is_number
from vitrail.checkpoints.run_card import CARD
from vitrail.checkpoints.run_state import FACTS
from vitrail.checkpoints.torch_files import read_json
from vitrail.errors import CheckpointError, ConfigError

LOCK, METRICS, CHECKPOINTS, FIGURES = ".lock", "metrics.jsonl", "checkpoints", "figures"
# Names of what is written to a run's folder beside its place, and moved there.
WRITTEN = r"run\.json|metrics\.jsonl|mistakes\.jsonl|results\.md|model|figures"


def check_own(path: Path) -> None:
    """A run has a folder to itself: a new one, an empty one, or the one that it began in."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; a run is written to a folder of its own")
    for name in (CARD, METRICS, LOCK):
        if (path / name).is_symlink():
            raise ConfigError(f"{path / name} is a link: whatever it leads to is not the run's to write")
    if path.is_dir() and not (path / CARD).exists():
        # A run that was killed in its first moments leaves hidden files only.
        others = sorted(p.name for p in path.iterdir() if not p.name.startswith((LOCK, f".{CARD}.")))
        if others:
            more = f" and {len(others) - 5} more" if len(others) > 5 else ""
            raise ConfigError(
                f"{path} is not a run (it has no {CARD}) and holds {', '.join(others[:5])}{more}; "
                "a run is written to a folder of its own"
            )


def locked(path: Path) -> int:
    """An open file that no other can lock while it is open; it says whose it is."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
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
    return path / CHECKPOINTS / f"step-{step:08d}"


def steps_in(path: Path) -> list[int]:
    """The steps of a run's checkpoints, in order."""
    there = (path / CHECKPOINTS).glob("step-*")
    return sorted(int(p.name.removeprefix("step-")) for p in there if re.fullmatch(r"step-\d{8,}", p.name))


def scores_in(path: Path) -> dict[int, float]:
    """step -> score, of the checkpoints that have one that can be read."""
    scores = {}
    for step in steps_in(path):
        try:
            score = read_json(place_of(path, step) / FACTS).get("score")
        except CheckpointError:
            continue  # damaged, which matters to who restores it
        if score is not None and is_number(score):
            scores[step] = float(score)
    return scores


def best_of(scores: dict[int, float]) -> int | None:
    """The step with the highest score; of equal ones the first."""
    return max(scores, key=lambda step: (scores[step], -step), default=None)
