"""Recognise errors that mean out of memory, from torch, CUDA and its libraries, numpy or the system.

Python callers get these errors unchanged (torch.OutOfMemoryError, MemoryError, RuntimeError); the command line prints
one line, with the flags that reduce memory.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

MEMORY, SHARED, GPU = "memory", "shared memory", "GPU memory"
# Patterns of messages, tried in this order; torch has no type of its own for some of these errors.
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
        r"Unable to allocate [\d.]+ [KMGTP]iB|DataLoader worker \(pid"  # the last: killed, usually for lack of memory
    ),
}
REQUESTED = re.compile(r"allocate (?:(\d+) bytes|([\d.]+ [KMGTP]iB))")


def exhausted_memory(error: BaseException) -> str:
    """Return which memory has run out: MEMORY, SHARED or GPU; "" for any other error."""
    return next((kind for one in chain(error) if (kind := classify_error(one))), "")


def requested_size(error: BaseException) -> str:
    """Return how much memory was requested, such as "1.21 GB"; "" if the error does not say."""
    for one in chain(error):
        if match := REQUESTED.search(str(one)):
            return match[2] or f"{int(match[1]) / 1e9:.2f} GB"
    return ""


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes and contexts."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def classify_error(error: BaseException) -> str:
    if not isinstance(error, RuntimeError | MemoryError | OSError):
        return ""
    if kind := next((kind for kind, sign in SIGNS.items() if sign.search(str(error))), ""):
        return kind
    if type(error).__name__ == "OutOfMemoryError":  # torch's, without importing it
        return GPU
    return MEMORY if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM else ""
