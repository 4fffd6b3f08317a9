"""One checkpoint of a run: a folder that is written completely or not at all, and verified before it is read.

    step-00001000/
      state.safetensors    every tensor of the state, by name; or, if the state is sharded (FSDP2),
      shard-00000.safetensors, shard-00001.safetensors, ...   the rows that each process holds, and
      shards.json          {name: [[file, first row, row after the last], ...]}
      facts.json           step, score, the facts given by the loop, dtype and shape of every tensor
      manifest.json        size and sha256 of every other file; written last

A DTensor is sharded along its first axis. Copies of a shard (HSDP), and tensors that are whole on every process, are
written once. Both layouts can be read into plain and into sharded tensors, on any number of processes: each takes the
rows that it holds.

The hashes detect damage, not malice. A checkpoint may be untrusted: nothing in it is a pickle, JSON is
read within bounds (json_files.py), and nothing is mapped into memory, so a file that is truncated meanwhile is an
error and not a crash.
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
from vitrail.checkpoints.json_files import Count, read_object, save_json
from vitrail.checkpoints.torch_files import save_safetensors
from vitrail.errors import CheckpointError, VitrailError
from vitrail.runtime.distributed import gather, rank
from vitrail.runtime.files import (
    check_own_file,
    error_number,
    flush,
    flush_folder,
    is_disk_full,
    open_own,
    put_folder,
)

State = dict[str, Tensor]  # dotted names -> tensors, plain or DTensor
Rows = list[tuple[str, int, int]]  # file, first row, row after the last
STATE, SHARDS, FACTS, MANIFEST = "state.safetensors", "shards.json", "facts.json", "manifest.json"
SHARD = re.compile(r"shard-[0-9]{5,}\.safetensors")
MAX_TABLE_BYTES = 128 << 10  # of shards.json per tensor: enough for thousands of processes
NEARLY_FULL = 1 << 20  # bytes that a full disk may have left
# Ends of the names of folders that are being written or removed; files.remove_unfinished tidies them after a kill.
PARTIAL, REMOVED = "partial_", "removed_"


class Facts(TypedDict):
    """Schema of facts.json."""

    step: Count
    score: float | None
    facts: dict[str, Any]
    tensors: dict[str, tuple[str, list[Count]]]  # dtype and shape


def write_checkpoint(place: Path, state: State, facts: dict[str, Any]) -> None:
    """Write a checkpoint under a temporary name, then move it into place. All processes call it."""
    partial, problem = place.with_name(f".{place.name}.{PARTIAL}"), f"{place} cannot be written"
    sharded = any(isinstance(t, DTensor) for t in state.values())
    file = f"shard-{rank():05d}.safetensors" if sharded else STATE
    own = {name: t for name, t in state.items() if is_written_here(t)}
    table: dict[str, Rows] = {name: [] for name in state}
    for rows in gather({name: (file, *held_rows(t)) for name, t in own.items()}) if sharded else ():
        for name, row in rows.items():
            table[name].append(row)
    try:
        with fail_together(problem):
            if rank() == 0:
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
        with fail_together(problem, place.parent):
            if own:
                save_safetensors({name: local(t.detach()) for name, t in own.items()}, partial / file)
        with fail_together(problem):
            if rank() == 0:
                if sharded:
                    table = {name: sorted(rows, key=lambda row: row[1:]) for name, rows in table.items()}
                    (partial / SHARDS).write_text(json.dumps(table), encoding="utf-8")
                save_json({**facts, "tensors": describe_tensors(state)}, partial / FACTS)
                seal(partial)
                put_folder(partial, place)
    finally:
        if rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)


def read_checkpoint(place: Path, state: State) -> dict[str, Any]:
    """Copy the stored values into the tensors of `state` and return the facts. All processes call it."""
    problem = f"{place} cannot be read"
    with fail_together(problem):
        facts = read_facts(place)
        here, stored, differences = describe_tensors(state), facts["tensors"], []
        for name in sorted(here.keys() | stored.keys()):
            if name not in stored:
                differences.append(f"{name} is not in it")
            elif name not in here:
                differences.append(f"{name} is only there")
            elif here[name] != stored[name]:
                (dtype, shape), (stored_dtype, stored_shape) = here[name], stored[name]
                differences.append(f"{name} is {stored_dtype} {stored_shape} there, {dtype} {shape} here")
        if differences:
            raise CheckpointError(f"{place} is a checkpoint of another architecture: {listing(differences)}")
    with fail_together(problem):  # no process writes into its tensors before all agree
        fill_tensors(state, place)
    return facts


def read_facts(place: Path) -> dict[str, Any]:
    facts = read_object(place / FACTS, Facts)
    if place.name != folder_name(facts["step"]):
        raise CheckpointError(
            f"{place / FACTS} is of step {facts['step']}, but in the folder of another step"
        )
    return facts


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def find_damage(place: Path, most: int) -> str | None:
    """Return why a checkpoint cannot be used, or None if every byte is as it was written.

    No file may have more than `most` bytes.
    """
    try:
        files = read_object(place / MANIFEST, dict[str, dict[str, Any]]).get("files", {})
        if FACTS not in files or not {STATE, SHARDS} & files.keys():
            return f"{MANIFEST} does not list {FACTS} and one of {STATE} and {SHARDS}"
        for name, recorded in files.items():
            if Path(name).name != name:
                return f"{MANIFEST} lists {name!r}, which is not a file beside it"
            if (size := (place / name).lstat().st_size) > most:
                return (
                    f"{name} has {size:,} bytes, more than the {most:,} that the state of this run can have"
                )
            if fingerprint(place / name) != recorded:
                return f"the {size:,} bytes of {name} are not those that were written"
        read_facts(place)
    except (CheckpointError, OSError) as error:
        return str(error)
    return None


def remove_checkpoint(place: Path) -> None:
    """Remove a checkpoint; it is renamed first, so that a kill leaves no incomplete one under its final name."""
    shutil.rmtree(place.rename(place.with_name(f".{place.name}.{REMOVED}")))


@contextmanager
def fail_together(problem: str, folder: Path | None = None) -> Iterator[None]:
    """Raise an error on all processes if the block fails on one, so that none waits for one that is gone.

    `problem` begins the message of an OSError; `folder` is on the disk that is written to.
    """
    failure: VitrailError | None = None
    try:
        yield
    except VitrailError as error:
        failure = error
    except (OSError, SafetensorError) as error:
        reason = str(error) or type(error).__name__
        # safetensors may fail without the system's error number.
        no_room = error_number(error) is None and folder and shutil.disk_usage(folder).free < NEARLY_FULL
        if is_disk_full(error) or no_room:
            reason = f"disk full ({error})"
        failure = CheckpointError(f"{problem}: {reason}")
        failure.__cause__ = error
    for failed in gather(failure):
        if failed is not None:
            raise failed


def seal(folder: Path) -> None:
    """Write the manifest, after everything else is on the disk."""
    files = sorted(folder.iterdir())
    for file in files:
        flush(file)
    save_json({"files": {file.name: fingerprint(file) for file in files}}, folder / MANIFEST)
    flush(folder / MANIFEST)
    flush_folder(folder)


def fingerprint(file: Path) -> dict[str, Any]:
    """Return the size and the SHA-256 of a file."""
    with os.fdopen(open_own(file), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        return {"bytes": size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def describe_tensors(state: State) -> dict[str, list[Any]]:
    """Return name -> [dtype, shape]; the whole tensor's shape, also where this process holds a shard."""
    return {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in state.items()}


# --- tensors, whole or sharded ---


def fill_tensors(state: State, place: Path) -> None:
    """Fill each tensor of a state with the rows that this process holds."""
    if (place / SHARDS).exists():
        table = read_table(place, state)
    else:
        table = {name: [(STATE, 0, num_rows(t))] for name, t in state.items()}
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for file in sorted({file for rows in table.values() for file, _, _ in rows}):
            check_own_file(place / file)
            files[file] = stack.enter_context(safe_open(place / file, framework="pt", backend="pread"))
        for name, t in state.items():
            for file, first, last in table[name]:
                fill_rows(t.detach(), files[file].get_slice(name), first, last, f"{place / file}: {name}")


def read_table(place: Path, state: State) -> dict[str, Rows]:
    """Read shards.json; raise an error unless it has each row of each tensor once, in a file beside it."""
    where, most = place / SHARDS, MAX_TABLE_BYTES * (len(state) + 1)
    table = read_object(where, dict[str, list[tuple[str, Count, Count]]], most)
    for name, t in state.items():
        after = 0
        for file, first, last in table.get(name, []):
            if not SHARD.fullmatch(file):
                raise CheckpointError(f"{where}: {file[:60]!r} is not the name of a shard beside it")
            if first != after or last < first:
                raise CheckpointError(f"{where}: the rows of {name} from {after} on are missing")
            after = last
        if after != num_rows(t):
            raise CheckpointError(f"{where}: {name} has {num_rows(t)} rows, not {after}")
    return table


def fill_rows(t: Tensor, stored: Any, first: int, last: int, where: str) -> None:
    """Copy those of the stored rows [first, last) that this process holds."""
    shape = [last - first, *t.shape[1:]] if t.dim() else []
    if stored.get_shape() != shape:
        raise CheckpointError(f"{where} is {stored.get_shape()} there, not {shape}")
    start, stop = held_rows(t)
    begin, end = max(start, first), min(stop, last)
    if begin >= end or not t.numel():
        return
    whole = (begin, end) == (first, last)
    value = stored[()] if whole else stored[begin - first : end - first]
    if value.dtype != t.dtype:
        raise CheckpointError(f"{where} is {value.dtype} there, not {t.dtype}")
    (local(t)[begin - start : end - start] if t.dim() else local(t)).copy_(value)


def held_rows(t: Tensor) -> tuple[int, int]:
    """Return the first row that this process holds, and the one after the last."""
    start, stop = 0, num_rows(t)
    if isinstance(t, DTensor):
        coordinate = t.device_mesh.get_coordinate()
        assert coordinate is not None
        for axis, placement in enumerate(t.placements):
            assert placement.is_replicate() or placement.is_shard(0), placement
            if placement.is_shard():
                # The last processes get fewer rows, or none.
                each = math.ceil((stop - start) / t.device_mesh.size(axis))
                start = min(start + coordinate[axis] * each, stop)
                stop = min(start + each, stop)
        assert stop - start == num_rows(t.to_local()), (t.shape, t.placements)
    return start, stop


def is_written_here(t: Tensor) -> bool:
    """Return whether this process is the first of those that hold the same rows: it writes them."""
    if not isinstance(t, DTensor):
        return rank() == 0
    coordinate = t.device_mesh.get_coordinate()
    assert coordinate is not None
    start, stop = held_rows(t)
    copies = [i for i, placement in zip(coordinate, t.placements, strict=True) if placement.is_replicate()]
    return stop > start and not any(copies)


def num_rows(t: Tensor) -> int:
    return len(t) if t.dim() else 1


def local(t: Tensor) -> Tensor:
    return t.to_local() if isinstance(t, DTensor) else t
