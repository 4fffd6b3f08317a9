"""Files that may be untrusted, such as images, lists and class names: read within limits, and never replaced."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from vitrail.errors import ConfigError, DataError
from vitrail.runtime.files import check_writable

MAX_TEXT_BYTES, MAX_JSON_BYTES = 512 << 20, 64 << 20
CHUNK = 64 << 10  # read where a file has more than its size, as when it grows
MARKED = 512  # bytes of a file in which its mark has to stand


class TooLargeError(OSError):
    """A file with more bytes than are read."""

    def __init__(self, size: int, most: int) -> None:
        super().__init__(errno.EOVERFLOW, f"{size:,} bytes; at most {most:,} are read")


def read_file(path: str | Path, most: int) -> bytes:
    """Read all bytes of a regular file; OSError for anything else (devices and pipes have no end), or more bytes."""
    # Without waiting for somebody to write into a pipe.
    with FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_size > most:
            raise TooLargeError(status.st_size, most)
        chunks, size, ask = [], 0, status.st_size + 1
        while data := file.read(ask):
            chunks.append(data)
            size, ask = size + len(data), CHUNK
            if size > most:
                raise TooLargeError(size, most)
    return b"".join(chunks)


def read_text(path: str | Path, what: str, most: int = MAX_TEXT_BYTES) -> str:
    """Read a file of UTF-8 text; `what` it should be, for messages."""
    try:
        return read_file(path, most).decode()
    except OSError as error:
        raise DataError(f"{path}: {what} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: {what} cannot be read: not UTF-8: {error}") from error


def read_json(path: str | Path, what: str, most: int | None = None) -> Any:
    """Read JSON that a user names beside a model and its data: class names, mappings, labels."""
    text = read_text(path, what, most or MAX_JSON_BYTES)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {what} must be JSON: {error}") from error


def parse_object(text: str, where: str, fields: Mapping[str, type] | None = None) -> dict[str, Any]:
    """Parse one JSON object; with `fields`, it has exactly these, of these types."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: {text[:60]!r} is not a JSON object")
    if fields is not None and (wrong := wrong_fields(row, fields)):
        raise DataError(f"{where}: wrong, missing or unknown fields: {', '.join(map(repr, wrong[:8]))}")
    return row


def wrong_fields(row: dict[str, Any], fields: Mapping[str, type]) -> list[str]:
    """List the fields of a JSON object that are not of these types, are missing or are not expected."""
    return [name for name in {**fields, **row} if type(row.get(name)) is not fields.get(name)]


def check_replaceable(path: Path, mark: bytes, what: str) -> None:
    """Raise if nothing can be written, or if a file must not be replaced: it is not empty and lacks our mark.

    Call it before the work whose result will be written there.
    """
    check_writable(path.parent)
    if not path.exists() and not path.is_symlink():
        return
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(MARKED)
        if not start or mark in start:
            return
    raise ConfigError(f"{path} exists and is not a {what}: choose another name, or move it away")
