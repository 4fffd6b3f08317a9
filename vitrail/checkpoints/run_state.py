"""One checkpoint of a run: a folder that is written whole or not at all, and verified before it is read.

    step-00001000/
      state.safetensors    every tensor of the state, by name
      facts.json           step, score, the facts that the loop gave, the kind and shape of every tensor
      manifest.json        size and sha256 of every other file; written last

A state with a DTensor in it (FSDP2) is written by torch.distributed.checkpoint (DCP) instead of safetensors: each
process its shards (`__RANK_0.distcp`), and `.metadata`, which says what is where. Either kind is read into either
kind of state, on any number of processes. Plain tensors beside a DTensor are taken to be equal on all processes.

The hashes find damage, not malice: what is read here is read as data all the same (run_shards.py).
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor, distribute_tensor

from vitrail.checkpoints.checkpoint import listing
from vitrail.checkpoints.run_shards import SHARDS, State, read_shards, write_shards
from vitrail.checkpoints.torch_files import read_json, save_json, save_safetensors
from vitrail.errors import CheckpointError, VitrailError
from vitrail.runtime.distributed import gathered, rank
from vitrail.runtime.files import code_of, flush, flush_folder, full, replace_folder

STATE, FACTS, MANIFEST = "state.safetensors", "facts.json", "manifest.json"
LITTLE = 1 << 20  # bytes that a full disk may have left
PARTIAL, REPLACED, REMOVED = ".partial-", ".replaced-", ".removed-"  # a folder on its way in, aside, and out


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
        with agreed(what, place.parent):
            if any(isinstance(t, DTensor) for t in state.values()):
                write_shards(state, partial)
            elif rank() == 0:
                save_safetensors(state, partial / STATE)
        with agreed(what):
            if rank() == 0:
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
        facts = read_json(place / FACTS)
        written = facts.pop("tensors", None)
        if not isinstance(written, dict) or not isinstance(facts.get("facts"), dict):
            raise CheckpointError(f"{place / FACTS} does not say what a checkpoint says")
        check_fits(state, written, place)
    with agreed(what):
        tensors = {name: t.detach() for name, t in state.items()}
        if (place / STATE).is_file():
            with safe_open(place / STATE, framework="pt") as file:
                for name, t in tensors.items():
                    fill(t, file.get_tensor(name))
        else:
            read_shards(tensors, place)
    return facts


def damage(place: Path) -> str | None:
    """Why a checkpoint cannot be used; None: every byte of it is as it was written."""
    try:
        files = read_json(place / MANIFEST).get("files")
        if not isinstance(files, dict) or FACTS not in files or not {STATE, SHARDS} & files.keys():
            return f"{MANIFEST} does not list a checkpoint's files"
        for name, noted in files.items():
            if Path(name).name != name:
                return f"{MANIFEST} lists {name!r}, which is not a file beside it"
            if (found := fingerprint(place / name)) != noted:
                return f"the {found['bytes']:,} bytes of {name} are not those that were written"
    except (CheckpointError, OSError) as error:
        return str(error)
    return None


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
    except (OSError, SafetensorError, CheckpointException) as error:
        problem = CheckpointError(f"{what}: {reason(error, folder)}")
        problem.__cause__ = error
    for failed in gathered(problem):
        if failed is not None:
            raise failed


def reason(error: BaseException, folder: Path | None = None) -> str:
    if isinstance(error, CheckpointException):  # DCP's: what went wrong, by rank
        return "; ".join(f"process {r}: {reason(cause, folder)}" for r, (cause, _) in error.failures.items())
    # Torch writes without the system's number for what went wrong.
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
    elif damage(place) is not None or read_json(place / MANIFEST) != read_json(partial / MANIFEST):
        replace_folder(partial, place, place.with_name(REPLACED + place.name))


def fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


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


def fill(t: Tensor, value: Tensor) -> None:
    """In place; a shard takes its part of the value, which every process has read."""
    if isinstance(t, DTensor):
        value = distribute_tensor(value, t.device_mesh, t.placements, src_data_rank=None).to_local()
        t = t.to_local()
    t.copy_(value)
