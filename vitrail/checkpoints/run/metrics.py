"""metrics.jsonl of a run: what was measured, one JSON object a line, in the order in which it happened.

JSON has no NaN and no infinity: they are stored as null. A line is one write(), so that a kill can tear only the
last one, which readers drop and `mend` removes before the next is written.
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
MOST_LINE = 1 << 20  # bytes
MOST_ROWS = 10_000_000


class Measured(TypedDict, total=False):
    """A row: numbers by name, and whatever else was noted."""

    step: Count


def append(path: Path, row: Row) -> None:
    line = line_of(row)
    handle = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        size = os.fstat(handle).st_size
        if os.write(handle, line) != len(line):  # the disk had room for a part
            os.ftruncate(handle, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(handle)


def rows(path: Path) -> list[Row]:
    """All of them, less a last line that a kill has torn."""
    return list(each_row(path))


def each_row(path: Path) -> Iterator[Row]:
    if not os.path.lexists(path):
        return
    with os.fdopen(open_own(path), "rb") as file:
        for number in itertools.count(1):
            line = file.readline(MOST_LINE)
            if number > MOST_ROWS or (len(line) == MOST_LINE and not line.endswith(b"\n")):
                raise CheckpointError(
                    f"{path}, line {number}: at most {MOST_ROWS:,} lines of {MOST_LINE:,} bytes are read"
                )
            if not line.endswith(b"\n"):
                return
            yield finite(parse_object(line, Measured, f"{path}, line {number},"))


def rewind(path: Path, step: int, scores: bool = True) -> None:
    """Without the rows after a step, and if wanted without the scores of the step itself: they will be measured
    again."""
    there = rows(path)
    last = step if scores else step - 1
    kept = [row for row in there if row.get("step", last) <= last or (row["step"] <= step and of_update(row))]
    if len(kept) < len(there):
        with atomic_file(path) as temporary:
            temporary.write_bytes(b"".join(map(line_of, kept)))


def of_update(row: Row) -> bool:
    """Whether it says how an update went, and not what its weights are worth."""
    return "rate" in row or "skipped" in row


def mend(path: Path) -> None:
    """Cut off what a kill left of a last line."""
    if not os.path.lexists(path):
        return
    with os.fdopen(open_own(path, os.O_RDWR), "r+b") as file:
        start = max(0, file.seek(0, os.SEEK_END) - MOST_LINE)
        file.seek(start)
        end = file.read()
        whole = end.rfind(b"\n") + 1
        if whole < len(end) and (whole or not start):  # else it is no line of ours
            file.truncate(start + whole)


def line_of(row: Row) -> bytes:
    return (json.dumps(finite(row), allow_nan=False) + "\n").encode()


def finite(value: Any) -> Any:
    """A JSON value, with null for every number that JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
