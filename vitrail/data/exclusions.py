"""A list of training images to leave out, as a file.

JSON lines. The first says what was compared; each further one is a training image to leave out, and why:
    {"format": "vitrail exclusions 1", "train": NAME, "fingerprint": HEX, "images": 100000, "threshold": 0.75}
    {"train": KEY, "test": KEY, "test_set": NAME, "score": 0.981, "how": "bytes" | "near" | "mirrored",
     "train_class": NAME, "test_class": NAME}
An image that copies several test images has a line for each. leaks.py writes such files;
`open_source("TRAIN?exclude=FILE")` leaves the images out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitrail.data.splits import Subset
from vitrail.errors import DataError
from vitrail.runtime.files import atomic_file

if TYPE_CHECKING:
    from vitrail.data.sources import Source

FORMAT = "vitrail exclusions 1"


def write_exclusions(path: Path, head: Mapping[str, object], rows: Iterable[Mapping[str, object]]) -> None:
    """The whole file or none."""
    lines = [{"format": FORMAT, **head}, *rows]
    with atomic_file(path) as temporary:
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="ascii")


def read_exclusions(path: str | Path) -> set[str]:
    """The keys of the training images that a file of exclusions names."""
    try:
        lines = Path(path).read_text(encoding="utf-8").rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: exclusions cannot be read: {error}") from error
    if _object(path, 1, lines[0]).get("format") != FORMAT:
        raise DataError(f'{path}: not a file of exclusions: its first line does not say "format": "{FORMAT}"')
    keys = set()
    for number, line in enumerate(lines[1:], start=2):
        key = _object(path, number, line).get("train")
        if not isinstance(key, str):
            raise DataError(f'{path}, line {number}: "train" is {key!r}; a key of the training set is wanted')
        keys.add(key)
    return keys


def excluding(source: Source, path: str | Path) -> Source:
    """The source without what the file names. A file that names nothing of it was made for another one."""
    keys = read_exclusions(path)
    kept = np.array([i for i in range(len(source)) if source.key(i) not in keys], np.int64)
    if keys and len(kept) == len(source):
        some = ", ".join(sorted(keys)[:2])
        raise DataError(f"{path} names no example of {source.name}; it names {some}: made for other data?")
    return Subset(source, kept)


def _object(path: str | Path, number: int, line: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{path}, line {number}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"{path}, line {number}: {line[:60]!r} is not a JSON object")
    return row
