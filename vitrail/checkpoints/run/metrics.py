"""metrics.jsonl of a run: one JSON object per line for everything that was measured, in order.

JSON has no NaN and no infinity: they are stored as null. Each line is one write(), so a kill can tear only the last
one, which readers drop and `rewind` removes before the next is written.
"""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

from vitrail.checkpoints.json_files import Count, parse_object
from vitrail.errors import CheckpointError
from vitrail.runtime.files import atomic_file, open_own

Row = dict[str, Any]
MAX_LINE = 1 << 20  # bytes
MAX_ROWS = 10_000_000
UPDATE = ("lr", "skipped")  # names that only rows about an update have, not those of an evaluation


class Measured(TypedDict, total=False):
    """Schema of a row: numbers by name, and whatever else was noted."""

    step: Count


def append(path: Path, row: Row) -> None:
    line = to_line(row)
    handle = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        size = os.fstat(handle).st_size
        if os.write(handle, line) != len(line):  # the disk had room for part of it
            os.ftruncate(handle, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(handle)


def read_rows(path: Path) -> Iterator[Row]:
    """Yield all rows, except for a last line that a kill has torn."""
    if not os.path.lexists(path):
        return
    with os.fdopen(open_own(path), "rb") as file:
        for number in itertools.count(1):
            line = file.readline(MAX_LINE)
            if number > MAX_ROWS or (len(line) == MAX_LINE and not line.endswith(b"\n")):
                raise CheckpointError(
                    f"{path}, line {number}: at most {MAX_ROWS:,} lines of {MAX_LINE:,} bytes are read"
                )
            if not line.endswith(b"\n"):
                return
            yield replace_nonfinite(parse_object(line, Measured, f"{path}, line {number},"))


def rewind(path: Path, step: int, scores: bool = True) -> None:
    """Drop the rows after a step and what a kill left of a last line; without `scores` also those of its own
    evaluation, which will be repeated."""
    last = step if scores else step - 1
    rows = [
        row
        for row in read_rows(path)
        if (at := row.get("step", last)) <= last or (at <= step and any(name in row for name in UPDATE))
    ]
    text = b"".join(map(to_line, rows))
    if os.path.lexists(path) and path.lstat().st_size != len(text):
        with atomic_file(path) as temporary:
            temporary.write_bytes(text)


def to_line(row: Row) -> bytes:
    return (json.dumps(replace_nonfinite(row), allow_nan=False) + "\n").encode()


def replace_nonfinite(value: Any) -> Any:
    """Return a JSON value with None in place of NaN and infinity."""
    if isinstance(value, dict):
        return {key: replace_nonfinite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
