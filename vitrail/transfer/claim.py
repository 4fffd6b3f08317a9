"""Pieces of a larger work that several processes share: each takes the pieces that no other is at.

    CUDA_VISIBLE_DEVICES=0 vitrail vtab ... --out DIR &
    CUDA_VISIBLE_DEVICES=1 vitrail vtab ... --out DIR        the same command: a device each, one folder of results

A piece is a run folder (checkpoints/run.py). The lock is the system's: it is gone when its process is.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from vitrail.checkpoints.run import Run
from vitrail.checkpoints.run.folder import lock
from vitrail.checkpoints.run.run_json import RUN_JSON, read_results
from vitrail.errors import ConfigError
from vitrail.runtime.distributed import launched
from vitrail.runtime.files import open_own

LOCK = ".results.lock"  # held while the tables are written; also what shows that they are ours
RESULTS = ("results.md", "results.csv", "results.json")


@contextmanager
def claimed(folder: Path, config: dict[str, Any]) -> Iterator[Run | None]:
    """The run in `folder`, which is this process's now; None: another one is at it.

    A setting that turns out to be wrong leaves no new folder, which would refuse the corrected call.
    """
    if launched():
        raise ConfigError(
            "torchrun makes one run of several devices; here start the command once for each device"
        )
    if folder.is_symlink():
        raise ConfigError(f"{folder} is a link: whatever it leads to is not ours to write; remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = lock(folder.parent / f".{folder.name}.lock")
    except ConfigError:
        handle = None
    if handle is None:
        yield None
        return
    fresh = not folder.exists()
    try:
        with closing(Run.open(folder, config)) as run:
            yield run
    except ConfigError:
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(handle)


def results_in(folder: Path, kind: Any = dict[str, Any]) -> dict[str, Any] | None:
    """Of a finished piece, of the kind that they must be; None: it is not finished, or not begun."""
    return read_results(folder, kind) if os.path.lexists(folder / RUN_JSON) else None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time; the others wait, so that who collects last has seen what all have done."""
    handle = open_own(folder / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def check_own(folder: Path, inside: Iterable[str] = ()) -> None:
    """Results are written over files of the same names: only over those that were written under our lock. And never
    through a link, neither to the lock nor to one of the folders `inside` that are written to."""
    for name in (LOCK, *inside):
        if (folder / name).is_symlink():
            raise ConfigError(
                f"{folder / name} is a link: whatever it leads to is not ours to write; remove it"
            )
    others = [name for name in RESULTS if os.path.lexists(folder / name)]
    if others and not (folder / LOCK).exists():
        raise ConfigError(
            f"{folder} holds {', '.join(others)} of something else: move them, or give another folder for the results"
        )
