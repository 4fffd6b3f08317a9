"""Processes that train together, started by torchrun. Without torchrun there is one process.

Nothing here launches or restarts processes: torchrun does. When one dies, torchrun ends the others,
and all start again from the last checkpoint.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

TIMEOUT = timedelta(minutes=10)  # of a collective: longer means that a process is gone
RELEASE_SECONDS = 0.1  # microseconds would do
GROUPS = itertools.count()  # numbers the groups that this process joins


def launched() -> bool:
    """Return whether torchrun started this process."""
    return {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= os.environ.keys()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", 0))


def local_world() -> int:
    """Return the number of processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


@contextmanager
def group(device: torch.device) -> Iterator[torch.device]:
    """Join the other processes and leave them at the end; yield the device of this process. May be nested."""
    if launched() and device.type == "cuda":
        device = torch.device("cuda", local_rank())
        torch.cuda.set_device(device)
    if dist.is_initialized() or not launched():
        yield device
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store, own, size = next(iter(rendezvous("env://", timeout=TIMEOUT)))
    named = dist.PrefixStore(f"attempt {attempt()}, group {next(GROUPS)}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=named, rank=own, world_size=size, timeout=TIMEOUT)
    try:
        yield device
    finally:
        # A thread of gloo may still be releasing the tensors of the last collective, for which it needs the
        # interpreter. The destructor of the group holds the interpreter and waits for that thread: a deadlock. So we
        # let the thread finish first.
        time.sleep(RELEASE_SECONDS)
        dist.destroy_process_group()


def attempt() -> str:
    """Return the number of the restart if torchrun keeps its store over restarts, else "0".

    In a kept store, processes would find the addresses of others that are gone, unless each attempt, and each group
    that is joined, has a name of its own. With a new store they must share one name: nodes count their restarts
    separately, so a node that came back would not find the others.
    """
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if kept else "0"


def all_sum(t: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes, on every process."""
    if world() == 1:
        return t
    t = t.clone()
    dist.all_reduce(t)
    return t


def gather(item: Any) -> list[Any]:
    """Return the items of all processes, in the order of ranks, on every process."""
    if world() == 1:
        return [item]
    items: list[Any] = [None] * world()
    dist.all_gather_object(items, item)
    return items


def barrier() -> None:
    if world() > 1:
        dist.barrier()
