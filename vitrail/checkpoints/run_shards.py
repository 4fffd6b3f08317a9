"""The tensors of a checkpoint on the disk: whole in one file, or each process's rows in a file of its own.

    state.safetensors                                 every tensor, where none is sharded
    shard-00000.safetensors, shard-00001.safetensors  of every tensor the rows that a process holds; and
    shards.json                                       {name: [[file, first row, row after the last], ...]}

A DTensor (FSDP2) is sharded along its first axis. Copies of a shard (HSDP) are written once, and so is a tensor that
is whole on all processes. Either kind is read into either kind of state on any number of processes: each takes the
rows that it holds. Nothing here is a pickle, and nothing is mapped into memory: a file that is cut meanwhile is an
error, not the end of the process.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

from vitrail.checkpoints.run_json import Count, read_object
from vitrail.checkpoints.torch_files import save_safetensors
from vitrail.errors import CheckpointError
from vitrail.runtime.distributed import gathered, rank
from vitrail.runtime.files import check_own_file

State = dict[str, Tensor]  # flat names -> tensors, plain or DTensor
Rows = list[tuple[str, int, int]]  # in which file, from which row on, to before which
STATE, SHARDS = "state.safetensors", "shards.json"
SHARD = re.compile(r"shard-[0-9]{5,}\.safetensors")
MOST_ROWS = 128 << 10  # bytes that the table has for a tensor: enough for thousands of processes


def is_sharded(state: State) -> bool:
    return any(isinstance(t, DTensor) for t in state.values())


def gather_table(state: State) -> dict[str, Rows]:
    """Which process writes which rows of which tensor. All processes call it."""
    file = f"shard-{rank():05d}.safetensors"
    own = {name: [(file, *rows_of(t))] for name, t in state.items() if is_written_here(t)}
    table: dict[str, Rows] = {name: [] for name in state}
    for part in gathered(own):
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
