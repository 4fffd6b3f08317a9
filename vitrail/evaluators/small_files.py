"""Files that people name beside a model and its data: lists of names, class mappings, labels, manifests.

Anyone may have written them: no more than a bound is ever read, and what is wrong is one DataError that says `what`
the file should have been.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vitrail.data.foreign_files import read_file
from vitrail.errors import DataError

MAX_BYTES = 64 << 20


def read_text(path: Path, what: str, most: int = MAX_BYTES) -> str:
    """What a file of at most so many bytes holds."""
    try:
        return read_file(path, most).decode()
    except OSError as error:
        raise DataError(f"{what} {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: {what} is text in UTF-8, and this is not: {error}") from error


def read_json(path: Path, what: str) -> Any:
    text = read_text(path, what)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {what} is JSON, and this is not: {error}") from error
