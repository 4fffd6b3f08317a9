"""A list of training images to leave out, as a file.

JSON lines. The first says what was compared; each further one is a training image to leave out, and why:
    {"format": "vitrail exclusions 1", "train": NAME, "split": "train", "fingerprint": HEX, "images": 100000,
     "threshold": 0.75}
    {"train": KEY, "test": KEY, "test_set": NAME, "score": 0.981, "how": "bytes" | "near" | "mirrored",
     "train_class": NAME, "test_class": NAME}
An image that copies several test images has a line for each. leaks.py writes such files;
`open_source("TRAIN?exclude=FILE")` leaves the images out. Split, fingerprint and images are of the whole split.
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
from vitrail.runtime.log import note

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
    return _read(path)[1]


def excluding(source: Source, split: str, path: str | Path) -> Source:
    """A whole split without what the file names; other splits than the file was made for stay as they are.

    A split of another number of images is not the one that was compared. One whose fingerprint differs may be a
    copy of it with other dates, so that is only said.
    """
    head, keys = _read(path)
    if head.get("split", split) != split:
        return source
    if head.get("images", len(source)) != len(source):
        raise DataError(
            f"{path} was made for {head['images']} images of {head.get('train')}, not for {source.name} with "
            f"{len(source)}: run `vitrail data dedup` again"
        )
    if head.get("fingerprint", source.fingerprint()) != source.fingerprint():
        note(f"{path} was made when {source.name} had other files or dates; is it still the same data?")
    kept = [i for i in range(len(source)) if source.key(i) not in keys]
    if len(source) - len(kept) != len(keys):
        raise DataError(f"{path} names images that {source.name} does not have: made for other data")
    return Subset(source, np.array(kept, np.int64))


def _read(path: str | Path) -> tuple[dict[str, object], set[str]]:
    """The first line, and the keys that the others name."""
    try:
        lines = Path(path).read_text(encoding="utf-8").rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: exclusions cannot be read: {error}") from error
    head = _object(path, 1, lines[0])
    if head.get("format") != FORMAT:
        raise DataError(f'{path}: not a file of exclusions: its first line does not say "format": "{FORMAT}"')
    keys = set()
    for number, line in enumerate(lines[1:], start=2):
        key = _object(path, number, line).get("train")
        if not isinstance(key, str):
            raise DataError(f'{path}, line {number}: "train" is {key!r}; a key of the training set is wanted')
        keys.add(key)
    return head, keys


def _object(path: str | Path, number: int, line: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{path}, line {number}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"{path}, line {number}: {line[:60]!r} is not a JSON object")
    return row
