"""Pieces of work that several processes share through a folder of results: each takes those that no other is at.

    CUDA_VISIBLE_DEVICES=0 vitrail vtab ... --out DIR &
    CUDA_VISIBLE_DEVICES=1 vitrail vtab ... --out DIR        the same command: a device each, one folder of results

A piece is a run folder (checkpoints/run/). Locks are the operating system's: one is gone when its process is.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from vitrail.checkpoints.formats import load, save
from vitrail.checkpoints.run import Run
from vitrail.checkpoints.run.folder import lock
from vitrail.checkpoints.run.run_json import RUN_JSON, read_results
from vitrail.errors import ConfigError
from vitrail.inference.engine import ModelLike
from vitrail.inference.feature_cache import model_digest
from vitrail.runtime.distributed import launched
from vitrail.runtime.files import open_own

LOCK = ".results.lock"  # held while results are written; its presence shows that they are ours
START = "start"  # bundle of a model object
RESULTS = ("results.md", "results.csv", "results.json")


@contextmanager
def claim(folder: Path, config: dict[str, Any]) -> Iterator[Run | None]:
    """Open the run in `folder` for this process alone; None where another process is at it.

    After a ConfigError a new folder is removed: it would refuse the corrected call.
    """
    if launched():
        raise ConfigError(
            "torchrun makes one run of several devices; start this command once for each device"
        )
    check_no_link(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = lock(folder.parent / f".{folder.name}.lock")
    except ConfigError:
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


def model_path(model: ModelLike, folder: Path) -> str:
    """Return the path or name of a model; a model object is saved into the folder of results first."""
    if isinstance(model, str | Path):
        return str(model)
    path = folder / START
    if not path.exists():
        save(model, path)
    elif model_digest(load(path)) != model_digest(model):
        raise ConfigError(f"{path} holds another model than the one given: choose another folder")
    return str(path)


def read_piece(folder: Path, kind: Any = dict[str, Any]) -> dict[str, Any] | None:
    """Return the results of a finished piece, checked to be of a kind; None where it is not finished or not begun."""
    return read_results(folder, kind) if os.path.lexists(folder / RUN_JSON) else None


@contextmanager
def results_lock(folder: Path) -> Iterator[None]:
    """Let one process at a time collect results; others wait, so that the last one has seen them all."""
    handle = open_own(folder / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def check_results_folder(folder: Path, inside: Iterable[str] = ()) -> None:
    """Refuse results that were not written under our lock, which would be replaced, and links that would be followed:
    to the lock, or to one of the folders `inside` that are written to."""
    for name in (LOCK, *inside):
        check_no_link(folder / name)
    others = [name for name in RESULTS if os.path.lexists(folder / name)]
    if others and not (folder / LOCK).exists():
        raise ConfigError(
            f"{folder} holds {', '.join(others)} of something else: move them, or choose another folder (--out)"
        )


def check_no_link(path: Path) -> None:
    if path.is_symlink():
        raise ConfigError(f"{path} is a link, and nothing is written through links: remove it")
