"""Short digests and stamps that tell whether data has changed: shards, caches and runs compare them."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np


def digest(*values: str | bytes | int | np.ndarray) -> str:
    """Return 32 hexadecimal digits that depend on every value and on where one ends and the next begins."""
    state = hashlib.blake2b(digest_size=16)
    for value in values:
        data = value.tobytes() if isinstance(value, np.ndarray) else value
        data = data if isinstance(data, bytes) else str(data).encode("utf-8", "surrogateescape")
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


def digest_files(files: Iterable[tuple[str | bytes, Path | bytes]]) -> str:
    """Digest (name, size, modification time) of every file, and whether it exists."""
    state = hashlib.blake2b(digest_size=16)
    for name, path in files:
        try:
            stat = os.stat(path)  # noqa: PTH116  a Path for each of a million names takes longer than the call
            state.update(b"%d %d " % (stat.st_size, stat.st_mtime_ns))
        except OSError as error:
            state.update(b"error %d " % (error.errno or 0))
        state.update(name if isinstance(name, bytes) else os.fsencode(name))
        state.update(b"\0")
    return state.hexdigest()


def file_stamp(stat: os.stat_result) -> tuple[int, int]:
    """Return size and modification time, which tell one state of a file from another."""
    return stat.st_size, stat.st_mtime_ns


def read_bytes_at(path: Path, start: int, size: int, stamp: tuple[int, int]) -> bytes:
    """Read some bytes of a file; OSError unless it is in the state of `stamp`."""
    with path.open("rb", buffering=0) as file:
        if file_stamp(os.fstat(file.fileno())) != stamp:
            raise OSError(errno.ESTALE, "it was changed since it was opened as a data set")
        data = os.pread(file.fileno(), size, start)
    if len(data) != size:
        raise OSError(errno.EIO, "it ends inside this image")
    return data
