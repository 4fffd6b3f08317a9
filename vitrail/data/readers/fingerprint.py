"""Short digests that tell whether data is what was seen before: shards, caches and runs compare them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np


def digest(*parts: str | bytes | int | np.ndarray) -> str:
    """32 hexadecimal digits that depend on every part and on where one part ends and the next begins."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.tobytes() if isinstance(part, np.ndarray) else part
        data = data if isinstance(data, bytes) else str(data).encode("utf-8", "surrogateescape")
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


def digest_files(files: Iterable[tuple[str | bytes, Path | bytes]]) -> str:
    """A digest of (name, size, modification time) of every file; one that is gone counts as gone."""
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


def stamp_of(stat: os.stat_result) -> tuple[int, int]:
    """Size and modification time: what tells one state of a file from another."""
    return stat.st_size, stat.st_mtime_ns
