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

from vitrail.data.foreign_files import check_replaceable, parse_object, read_text
from vitrail.data.splits import Subset
from vitrail.errors import DataError
from vitrail.runtime.files import atomic_file
from vitrail.runtime.log import note

if TYPE_CHECKING:
    from vitrail.data.sources import Source

FORMAT = "vitrail exclusions 1"
MARK = f'{{"format": "{FORMAT}"'.encode()  # how such a file begins


def write_exclusions(path: Path, head: Mapping[str, object], rows: Iterable[Mapping[str, object]]) -> None:
    """The whole file or none; in the place of an older list, and of nothing else."""
    check_place(path)
    lines = [{"format": FORMAT, **head}, *rows]
    with atomic_file(path) as temporary:
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="ascii")


def check_place(path: Path) -> None:
    """ConfigError where a file lies that is no list of exclusions."""
    check_replaceable(path, MARK, "list of exclusions")


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
    lines = read_text(path, "exclusions").rstrip("\n").split("\n")
    head = parse_object(lines[0], f"{path}, line 1")
    if head.get("format") != FORMAT:
        raise DataError(f'{path}: not a file of exclusions: its first line does not say "format": "{FORMAT}"')
    keys = set()
    for number, line in enumerate(lines[1:], start=2):
        key = parse_object(line, f"{path}, line {number}").get("train")
        if not isinstance(key, str):
            raise DataError(f'{path}, line {number}: "train" is {key!r}; a key of the training set is wanted')
        keys.add(key)
    return head, keys
