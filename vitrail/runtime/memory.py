"""Errors that mean that memory has run out, whoever raised them: torch, CUDA and its libraries, numpy, the system.

In Python they come through as they are (torch.OutOfMemoryError, MemoryError, RuntimeError); the command line makes
one line of them, with the flags that need less.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

MEMORY, SHARED, GPU = "memory", "shared memory", "GPU memory"
# What is looked for in texts, in this order; for some of these errors torch has no type of its own.
SIGNS: dict[str, re.Pattern[str]] = {
    SHARED: re.compile(
        r"shared memory ?\(shm\)|out of shared memory|unable to (write|mmap|resize|open)[^\n]*</torch_|"
        r"/dev/shm[^\n]*No space left|No space left[^\n]*/dev/shm"
    ),
    GPU: re.compile(
        r"(CUDA|HIP|XPU|MPS)\b[^\n]*out of memory|CU[A-Z]+_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|"
        r"Cuda failure( 2\b|[^\n]*out of memory)"
    ),
    MEMORY: re.compile(
        r"DefaultCPUAllocator: (can't allocate|not enough) memory|Cannot allocate memory|std::bad_alloc|"
        r"Unable to allocate [\d.]+ [KMGTP]iB|DataLoader worker \(pid"  # the last: killed, most often for this
    ),
}
ASKED_FOR = re.compile(r"allocate (?:(\d+) bytes|([\d.]+ [KMGTP]iB))")


def exhausted_memory(error: BaseException) -> str:
    """Which memory has run out: MEMORY, SHARED or GPU; empty: it is an error of another kind."""
    return next((kind for one in chain(error) if (kind := kind_of(one))), "")


def requested_size(error: BaseException) -> str:
    """How much was wanted, where an error says so: "1.21 GB"."""
    for one in chain(error):
        if found := ASKED_FOR.search(str(one)):
            return found[2] or f"{int(found[1]) / 1e9:.2f} GB"
    return ""


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those that it was raised from, or while handling which it was raised."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def kind_of(error: BaseException) -> str:
    if not isinstance(error, RuntimeError | MemoryError | OSError):
        return ""
    if kind := next((kind for kind, sign in SIGNS.items() if sign.search(str(error))), ""):
        return kind
    if type(error).__name__ == "OutOfMemoryError":  # torch's, without importing it
        return GPU
    return MEMORY if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM else ""
