"""metrics.jsonl of a run: what was measured, one JSON object a line, in the order in which it happened.

JSON has no NaN and no infinity: they are stored as null. A line is one write(), so that a kill can tear only the
last one, which readers drop and `mend` removes before the next is written.
"""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path
from typing import Any

from vitrail.checkpoints.json_kinds import is_number
from vitrail.errors import CheckpointError
from vitrail.runtime.files import atomic_file

Row = dict[str, Any]


def append(path: Path, row: Row) -> None:
    line = line_of(row)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = os.fstat(handle).st_size
        if os.write(handle, line) != len(line):  # the disk had room for a part
            os.ftruncate(handle, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(handle)


def rows(path: Path) -> list[Row]:
    """All of them, less a last line that a kill has torn."""
    made: list[Row] = []
    for number, line in enumerate(whole_lines(path), 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}, line {number}, is not JSON: {error}") from error
        if not isinstance(row, dict) or not is_number(row.get("step", 0)):
            raise CheckpointError(f"{path}, line {number}, is not an object whose step is a number")
        made.append(finite(row))
    return made


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
    if path.exists():
        whole = sum(len(line) + 1 for line in whole_lines(path))
        if whole < path.stat().st_size:
            os.truncate(path, whole)


def whole_lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def line_of(row: Row) -> bytes:
    return (json.dumps(finite(row), allow_nan=False) + "\n").encode()


def finite(value: Any) -> Any:
    """A JSON value, with null for every number that JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
