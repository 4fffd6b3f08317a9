"""Find training images that are also test images, list them in a file, and leave them out of training.

    train, tests ──► dedup ──► Leaks ──write_exclusions──► FILE.jsonl ──► open_source("TRAIN?exclude=FILE")

As the paper did before pre-training: "we de-duplicate the pre-training datasets w.r.t. the test sets of the
downstream tasks". Training images are removed; test sets are not changed. copies.py defines what a copy is.

The file has JSON lines. The first describes the whole split that was compared; each further one is a training image
to leave out, and why. An image that copies several test images has a line for each.
    {"format": "vitrail exclusions 1", "train": NAME, "split": "train", "fingerprint": HEX, "images": 100000,
     "threshold": 0.75}
    {"train": KEY, "test": KEY, "test_set": NAME, "score": 0.981, "how": "bytes" | "near" | "mirrored",
     "train_class": NAME, "test_class": NAME}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from vitrail.data.bounded_files import check_replaceable, parse_object, read_text
from vitrail.data.contact_sheet import check_sheet, pair_sheet
from vitrail.data.copies import THRESHOLD, find_pairs, scan
from vitrail.data.sources import Source, find_test_split, open_source
from vitrail.data.splits import Joined, Subset
from vitrail.errors import ConfigError, DataError
from vitrail.runtime.files import atomic_file
from vitrail.runtime.log import note

DRAWN = 60  # pairs on a sheet
FORMAT = "vitrail exclusions 1"
MARK = f'{{"format": "{FORMAT}"'.encode()  # how such a file begins


@dataclass(frozen=True)
class Leak:
    """A training image and the test image that it is a copy of."""

    train: str  # key
    test: str  # key
    test_set: str  # name
    score: float
    how: str  # "bytes", "near" or "mirrored"
    train_class: str
    test_class: str


@dataclass(frozen=True)
class ComparedSet:
    """One test set, and the training images that are copies of its images."""

    name: str
    images: int
    unreadable: int
    leaks: tuple[Leak, ...]


@dataclass(frozen=True)
class Leaks:
    """The result of `dedup`."""

    train: str
    split: dict[str, object]  # the whole split of which `train` is all or a part: name, images, fingerprint
    images: int
    unreadable: int
    tests: tuple[ComparedSet, ...]

    @property
    def excluded(self) -> set[str]:
        """Keys of the training images to leave out."""
        return {leak.train for test in self.tests for leak in test.leaks}

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "excluded": len(self.excluded)}


def dedup(
    where: str | Path,
    tests: Sequence[str | Path],
    *,
    train_split: str = "train",
    test_split: str | None = None,
    out: str | Path | None = None,
    sheet: str | Path | None = None,
) -> Leaks:
    """Find the training images that are copies of test images; the data sets are on disk or of the catalog.

    Without `test_split`, the test split of each data set is compared, else its validation split. `out` is where the
    exclusions are written, `sheet` a PNG with the pairs side by side.
    """
    sources = [open_source(test, test_split or find_test_split(test)) for test in tests]
    train = open_source(where, train_split)
    if not sources:
        raise ConfigError(f"no test set to compare {train.name} with: name at least one")
    if out is not None:
        check_replaceable(Path(out), MARK, "list of exclusions")
    if sheet is not None:
        check_sheet(sheet)
    whole = train
    while isinstance(whole, Subset):
        whole = whole.base
    if isinstance(whole, Joined):
        raise ConfigError(
            f"{train.name} has several splits, and exclusions are for one split: compare one at a time"
        )
    split = {"split": whole.name.rpartition(":")[2], "images": len(whole), "fingerprint": whole.fingerprint()}

    scanned, sets, pairs = scan(train), [], []
    for test in sources:
        test_scan = scan(test)
        leaks = []
        for i, j, score, how in find_pairs(scanned, test_scan):
            classes = train.class_names[train.labels[i]], test.class_names[test.labels[j]]
            leaks.append(Leak(train.key(i), test.key(j), test.name, score, how, *classes))
            pairs.append((f"{score:.3f} {how}", train, i, test, j))
        sets.append(ComparedSet(test.name, len(test), len(test_scan.broken), tuple(leaks)))
    result = Leaks(train.name, split, len(train), len(scanned.broken), tuple(sets))
    if out is not None:
        rows = [{**asdict(leak), "score": round(leak.score, 4)} for test in sets for leak in test.leaks]
        write_exclusions(Path(out), {"train": train.name, **split, "threshold": THRESHOLD}, rows)
    if sheet is not None:
        left_out = f", {DRAWN} of them shown" if len(pairs) > DRAWN else ""
        pair_sheet(f"{train.name}: {len(pairs):,} pairs{left_out}", pairs[:DRAWN], sheet)
    return result


def write_exclusions(path: Path, head: Mapping[str, object], rows: Iterable[Mapping[str, object]]) -> None:
    """Write the whole file or nothing; replace an older list, and nothing else."""
    check_replaceable(path, MARK, "list of exclusions")
    lines = [{"format": FORMAT, **head}, *rows]
    with atomic_file(path) as temporary:
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="ascii")


def read_exclusions(path: str | Path) -> tuple[dict[str, object], set[str]]:
    """Return the first line of a file of exclusions, and the keys of the training images that it lists."""
    lines = read_text(path, "exclusions").rstrip("\n").split("\n")
    head = parse_object(lines[0], f"{path}, line 1")
    if head.get("format") != FORMAT:
        raise DataError(
            f'{path}: not a file of exclusions: its first line does not have "format": "{FORMAT}"'
        )
    keys = set()
    for number, line in enumerate(lines[1:], start=2):
        key = parse_object(line, f"{path}, line {number}").get("train")
        if not isinstance(key, str):
            raise DataError(
                f'{path}, line {number}: "train" is {key!r}; it must be the key of a training image'
            )
        keys.add(key)
    return head, keys


def exclude(source: Source, split: str, path: str | Path) -> Source:
    """Leave the images that the file lists out of a whole split; splits that it was not made for are not changed.

    A split with another number of images is not the one that was compared: an error. If only the fingerprint differs,
    it may be a copy with other dates: a note.
    """
    head, keys = read_exclusions(path)
    if head.get("split", split) != split:
        return source
    if head.get("images", len(source)) != len(source):
        raise DataError(
            f"{path} was made for {head['images']} images of {head.get('train')}, but {source.name} has "
            f"{len(source)}: run `vitrail data dedup` again"
        )
    if head.get("fingerprint", source.fingerprint()) != source.fingerprint():
        note(
            f"{path} was made when {source.name} had other files or dates; check that it is still the same data"
        )
    kept = [i for i in range(len(source)) if source.key(i) not in keys]
    if len(source) - len(kept) != len(keys):
        raise DataError(f"{path} names images that {source.name} does not have: it was made for other data")
    return Subset(source, np.array(kept, np.int64))
