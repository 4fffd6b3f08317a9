"""Processes that train together, started by torchrun; where it did not start us, there is one of them.

Nothing here launches or restarts anything: torchrun does. A process that dies takes the others with it (torchrun
ends them), and all begin again from the last checkpoint.
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
LETTING_GO = 0.1  # seconds; microseconds would do
GROUPS = itertools.count()  # that this process has joined


def launched() -> bool:
    """By torchrun, which tells each process who it is."""
    return {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= os.environ.keys()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", 0))


def local_world() -> int:
    """Processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


@contextmanager
def group(device: torch.device) -> Iterator[torch.device]:
    """Join the other processes, and leave them at the end; yields this process's own device. May be nested."""
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
        # A thread of gloo's may still be letting go of the last collective's tensors, and needs the interpreter for
        # it. The group's destructor waits for that thread and keeps the interpreter: a deadlock. So it goes first.
        time.sleep(LETTING_GO)
        dist.destroy_process_group()


def attempt() -> str:
    """torchrun may keep its store when it restarts us: without a name for each attempt, and for each group that is
    joined in turn, processes would find the addresses of others that are gone. A store that is new each time needs
    none; and the nodes count their restarts each for itself, so that one which came back would not find the others.
    """
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if kept else "0"


def all_sum(t: Tensor) -> Tensor:
    """The sum over all processes; each gets it."""
    if world() == 1:
        return t
    t = t.clone()
    dist.all_reduce(t)
    return t


def gather(item: Any) -> list[Any]:
    """What each process holds, in the order of ranks; each gets all."""
    if world() == 1:
        return [item]
    items: list[Any] = [None] * world()
    dist.all_gather_object(items, item)
    return items


def barrier() -> None:
    if world() > 1:
        dist.barrier()
