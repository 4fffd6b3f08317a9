"""One checkpoint of a run: a folder that is written whole or not at all, and verified before it is read.

    step-00001000/
      state.safetensors    every tensor of the state, by name; or, of a sharded state, what run_shards.py writes
      facts.json           step, score, the facts that the loop gave, the kind and shape of every tensor
      manifest.json        size and sha256 of every other file; written last

The hashes find damage, not malice: a checkpoint may be somebody else's, and is read within bounds all the same
(run_json.py, run_shards.py).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from safetensors import SafetensorError

from vitrail.checkpoints.checkpoint import listing
from vitrail.checkpoints.run_json import MOST_BYTES, Count, read_object
from vitrail.checkpoints.run_shards import (
    SHARDS,
    STATE,
    State,
    gather_table,
    is_sharded,
    read_tensors,
    write_own,
    write_table,
)
from vitrail.checkpoints.torch_files import save_json, save_safetensors
from vitrail.errors import CheckpointError, VitrailError
from vitrail.runtime.distributed import gathered, rank
from vitrail.runtime.files import code_of, flush, flush_folder, full, open_own, replace_folder

FACTS, MANIFEST = "facts.json", "manifest.json"
LITTLE = 1 << 20  # bytes that a full disk may have left
PARTIAL, REPLACED, REMOVED = ".partial-", ".replaced-", ".removed-"  # a folder on its way in, aside, and out


class Facts(TypedDict):
    """facts.json."""

    step: Count
    score: float | None
    facts: dict[str, Any]
    tensors: dict[str, tuple[str, list[Count]]]  # kind and shape


class File(TypedDict):
    bytes: Count
    sha256: str


class Manifest(TypedDict):
    """manifest.json."""

    files: dict[str, File]


def write(place: Path, state: State, facts: dict[str, Any]) -> None:
    """Write beside the place and move there; all processes call it, and all fail where one does.

    A checkpoint that is there already is left alone where it is equal, and replaced otherwise.
    """
    partial, what = place.with_name(PARTIAL + place.name), f"{place} cannot be written"
    try:
        with agreed(what):
            if rank() == 0:
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
        table = gather_table(state) if is_sharded(state) else {}
        with agreed(what, place.parent):
            if table:
                write_own(state, partial)
            elif rank() == 0:
                save_safetensors(state, partial / STATE)
        with agreed(what):
            if rank() == 0:
                if table:
                    write_table(table, partial)
                save_json({**facts, "tensors": kinds(state)}, partial / FACTS)
                seal(partial)
                move(partial, place)
    finally:
        if rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)


def read(place: Path, state: State) -> dict[str, Any]:
    """Copy the values into the tensors of `state`; returns the facts. All processes call it."""
    what = f"{place} cannot be read"
    with agreed(what):
        facts = read_facts(place)
        check_fits(state, facts["tensors"], place)
    with agreed(what):
        read_tensors(state, place)
    return facts


def read_facts(place: Path) -> dict[str, Any]:
    facts = read_object(place / FACTS, Facts)
    if place.name != folder_name(facts["step"]):
        raise CheckpointError(f"{place / FACTS} is of step {facts['step']}, in the folder of another")
    return facts


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def damage(place: Path, most: int) -> str | None:
    """Why a checkpoint cannot be used; None: every byte of it is as it was written. No file of it may have more than
    `most` bytes."""
    try:
        files = manifest(place)["files"]
        if FACTS not in files or not {STATE, SHARDS} & files.keys():
            return f"{MANIFEST} lists no {FACTS}, or neither {STATE} nor {SHARDS}"
        for name, noted in files.items():
            if Path(name).name != name:
                return f"{MANIFEST} lists {name!r}, which is not a file beside it"
            if (size := (place / name).lstat().st_size) > most:
                return (
                    f"{name} has {size:,} bytes, more than the {most:,} that the state of this run can have"
                )
            if fingerprint(place / name) != noted:
                return f"the {size:,} bytes of {name} are not those that were written"
        read_facts(place)
    except (CheckpointError, OSError) as error:
        return str(error)
    return None


def most_bytes(state: State) -> int:
    """Of a file of its checkpoint."""
    return sum(t.numel() * t.element_size() for t in state.values()) + MOST_BYTES


def tidy(folder: Path) -> None:
    """After a kill: what was on its way in or out goes, what was only moved aside comes back."""
    for aside in folder.glob(f"{REPLACED}step-*"):
        if not (place := folder / aside.name.removeprefix(REPLACED)).exists():
            aside.rename(place)
    for prefix in (PARTIAL, REPLACED, REMOVED):
        for left in folder.glob(f"{prefix}step-*"):
            shutil.rmtree(left)


def remove(place: Path) -> None:
    """Renamed first, so that a kill leaves no half of it under its own name."""
    gone = place.rename(place.with_name(REMOVED + place.name))
    shutil.rmtree(gone)


@contextmanager
def agreed(what: str, folder: Path | None = None) -> Iterator[None]:
    """What fails on one process fails on all, so that none waits for one that is gone; `what` it was, in words.
    `folder`: on whose disk."""
    problem: VitrailError | None = None
    try:
        yield
    except VitrailError as error:
        problem = error
    except (OSError, SafetensorError) as error:
        problem = CheckpointError(f"{what}: {reason(error, folder)}")
        problem.__cause__ = error
    for failed in gathered(problem):
        if failed is not None:
            raise failed


def reason(error: BaseException, folder: Path | None = None) -> str:
    # safetensors may write without the system's number for what went wrong.
    no_room = code_of(error) is None and folder is not None and shutil.disk_usage(folder).free < LITTLE
    return f"disk full ({error})" if full(error) or no_room else str(error) or type(error).__name__


def seal(folder: Path) -> None:
    """The manifest, after all else is on the disk."""
    files = sorted(folder.iterdir())
    for file in files:
        flush(file)
    save_json({"files": {file.name: fingerprint(file) for file in files}}, folder / MANIFEST)
    flush(folder / MANIFEST)
    flush_folder(folder)


def move(partial: Path, place: Path) -> None:
    """Into its place. There is no moment at which a kill would leave neither the old one nor the new one."""
    if not place.exists():
        partial.rename(place)
        flush_folder(place.parent)
        return
    most = max(file.stat().st_size for file in partial.iterdir())
    if damage(place, most) is None and manifest(place) == manifest(partial):
        return
    replace_folder(partial, place, place.with_name(REPLACED + place.name))


def manifest(folder: Path) -> dict[str, Any]:
    return read_object(folder / MANIFEST, Manifest)


def fingerprint(file: Path) -> dict[str, Any]:
    with os.fdopen(open_own(file), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        return {"bytes": size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def kinds(state: State) -> dict[str, list[Any]]:
    """name -> [kind, shape], of whole tensors also where this process holds a shard."""
    return {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in state.items()}


def check_fits(state: State, written: dict[str, list[Any]], place: Path) -> None:
    here = kinds(state)
    problems = [f"{name} is not in it" for name in here.keys() - written.keys()]
    problems += [f"{name} is only there" for name in written.keys() - here.keys()]
    for name in here.keys() & written.keys():
        if here[name] != written[name]:
            (kind, shape), (its_kind, its_shape) = here[name], written[name]
            problems.append(f"{name} is {its_kind} {its_shape} there, {kind} {shape} here")
    if problems:
        raise CheckpointError(f"{place} is a checkpoint of another architecture: {listing(sorted(problems))}")
