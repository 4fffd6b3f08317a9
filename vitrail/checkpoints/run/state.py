"""One checkpoint of a run: a folder that is written whole or not at all, and verified before it is read.

    step-00001000/
      state.safetensors    every tensor of the state, by name; or, of a sharded state, one file per process (below)
      facts.json           step, score, the facts that the loop gave, the kind and shape of every tensor
      manifest.json        size and sha256 of every other file; written last

The hashes find damage, not malice: a checkpoint may be somebody else's, and is read within bounds all the same
(json_files.py).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypedDict

from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

from vitrail.checkpoints.checkpoint import listing
from vitrail.checkpoints.json_files import MOST_BYTES, Count, read_object
from vitrail.checkpoints.torch_files import save_json, save_safetensors
from vitrail.errors import CheckpointError, VitrailError
from vitrail.runtime.distributed import gather, rank
from vitrail.runtime.files import (
    check_own_file,
    error_number,
    flush,
    flush_folder,
    is_disk_full,
    open_own,
    replace_folder,
)

State = dict[str, Tensor]  # flat names -> tensors, plain or DTensor
Rows = list[tuple[str, int, int]]  # in which file, from which row on, to before which
STATE, SHARDS = "state.safetensors", "shards.json"
SHARD = re.compile(r"shard-[0-9]{5,}\.safetensors")
MOST_ROWS = 128 << 10  # bytes that the table has for a tensor: enough for thousands of processes
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
        with fail_together(what):
            if rank() == 0:
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
        table = gather_table(state) if is_sharded(state) else {}
        with fail_together(what, place.parent):
            if table:
                write_own(state, partial)
            elif rank() == 0:
                save_safetensors(state, partial / STATE)
        with fail_together(what):
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
    with fail_together(what):
        facts = read_facts(place)
        check_fits(state, facts["tensors"], place)
    with fail_together(what):
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
def fail_together(what: str, folder: Path | None = None) -> Iterator[None]:
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
    for failed in gather(problem):
        if failed is not None:
            raise failed


def reason(error: BaseException, folder: Path | None = None) -> str:
    # safetensors may write without the system's number for what went wrong.
    no_room = error_number(error) is None and folder is not None and shutil.disk_usage(folder).free < LITTLE
    return f"disk full ({error})" if is_disk_full(error) or no_room else str(error) or type(error).__name__


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


def is_sharded(state: State) -> bool:
    return any(isinstance(t, DTensor) for t in state.values())


def gather_table(state: State) -> dict[str, Rows]:
    """Which process writes which rows of which tensor. All processes call it."""
    file = f"shard-{rank():05d}.safetensors"
    own = {name: [(file, *rows_of(t))] for name, t in state.items() if is_written_here(t)}
    table: dict[str, Rows] = {name: [] for name in state}
    for part in gather(own):
        for name, rows in part.items():
            table[name] += rows
    return {name: sorted(rows, key=lambda row: row[1:]) for name, rows in table.items()}


def write_table(table: dict[str, Rows], folder: Path) -> None:
    (folder / SHARDS).write_text(json.dumps(table), encoding="utf-8")


def write_own(state: State, folder: Path) -> None:
    """This process's rows."""
    own = {name: local(t.detach()) for name, t in state.items() if is_written_here(t)}
    save_safetensors(own, folder / f"shard-{rank():05d}.safetensors")


def read_tensors(state: State, place: Path) -> None:
    """Fill the tensors of a state with the rows that each of them holds."""
    if (place / SHARDS).exists():
        table = read_table(place, state)
    else:
        table = {name: [(STATE, 0, length(t))] for name, t in state.items()}
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for file in sorted({file for rows in table.values() for file, _, _ in rows}):
            check_own_file(place / file)
            files[file] = stack.enter_context(safe_open(place / file, framework="pt", backend="pread"))
        for name, t in state.items():
            for file, first, last in table[name]:
                fill(t.detach(), files[file].get_slice(name), first, last, f"{place / file}: {name}")


def read_table(place: Path, state: State) -> dict[str, Rows]:
    """An error unless each row of each tensor is in one file beside it."""
    table = read_object(
        place / SHARDS, dict[str, list[tuple[str, Count, Count]]], MOST_ROWS * (len(state) + 1)
    )
    for name, t in state.items():
        after = 0
        for file, first, last in table.get(name, []):
            if not SHARD.fullmatch(file):
                raise CheckpointError(f"{place / SHARDS}: {file[:60]!r} is not the name of a shard beside it")
            if first != after or last < first:
                raise CheckpointError(f"{place / SHARDS}: the rows of {name} from {after} on are missing")
            after = last
        if after != length(t):
            raise CheckpointError(f"{place / SHARDS}: {after} rows of {name}, which has {length(t)}")
    return table


def fill(t: Tensor, stored: Any, first: int, last: int, where: str) -> None:
    """Copy those of the rows [first, last) of a tensor that this process holds."""
    shape = [last - first, *t.shape[1:]] if t.dim() else []
    if stored.get_shape() != shape:
        raise CheckpointError(f"{where} is {stored.get_shape()} there, not {shape}")
    start, stop = rows_of(t)
    begin, end = max(start, first), min(stop, last)
    if begin >= end or not t.numel():
        return
    whole = (begin, end) == (first, last)
    value = stored[()] if whole else stored[begin - first : end - first]
    if value.dtype != t.dtype:
        raise CheckpointError(f"{where} is {value.dtype} there, not {t.dtype}")
    (local(t)[begin - start : end - start] if t.dim() else local(t)).copy_(value)


def rows_of(t: Tensor) -> tuple[int, int]:
    """The rows that this process holds: the first, and the one after the last."""
    start, stop = 0, length(t)
    if isinstance(t, DTensor):
        places = t.device_mesh.get_coordinate()
        assert places is not None
        for axis, placement in enumerate(t.placements):
            assert placement.is_replicate() or placement.is_shard(0), placement
            if placement.is_shard():
                each = math.ceil((stop - start) / t.device_mesh.size(axis))  # the last ones get less, or none
                start = min(start + places[axis] * each, stop)
                stop = min(start + each, stop)
        assert stop - start == length(t.to_local()), (t.shape, t.placements)
    return start, stop


def is_written_here(t: Tensor) -> bool:
    """Of the processes that hold the same rows the first writes them."""
    if not isinstance(t, DTensor):
        return rank() == 0
    places = t.device_mesh.get_coordinate()
    assert places is not None
    start, stop = rows_of(t)
    copies = [i for i, placement in zip(places, t.placements, strict=True) if placement.is_replicate()]
    return stop > start and not any(copies)


def length(t: Tensor) -> int:
    return len(t) if t.dim() else 1


def local(t: Tensor) -> Tensor:
    return t.to_local() if isinstance(t, DTensor) else t
