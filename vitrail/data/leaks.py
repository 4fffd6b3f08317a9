"""Test images that the training set has seen: found, listed, and left out of training.

    train, tests ──► dedup ──► Leaks ──► write_leaks ──► FILE.jsonl (exclusions.py) ──► training

As the paper did before pre-training: "we de-duplicate the pre-training datasets w.r.t. the test sets of the
downstream tasks". It is the training images that go; test sets stay what they are. What counts as a copy is said
in duplicates.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from vitrail.data import exclusions
from vitrail.data.copies.contact_sheet import check_sheet, pair_sheet
from vitrail.data.copies.duplicates import THRESHOLD, find_pairs
from vitrail.data.copies.scan import scan
from vitrail.data.sources import Source, open_source, test_split_of
from vitrail.data.splits import Joined, Subset
from vitrail.errors import ConfigError

DRAWN = 60  # pairs on a sheet


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
class Compared:
    """One test set."""

    name: str
    images: int
    unreadable: int
    leaks: tuple[Leak, ...]


@dataclass(frozen=True)
class Leaks:
    """What `dedup` found."""

    train: str
    split: dict[str, object]  # the whole split that it is, or is a part of: name, images, fingerprint
    images: int
    unreadable: int
    tests: tuple[Compared, ...]

    @property
    def excluded(self) -> set[str]:
        """The keys of the training images to leave out."""
        return {leak.train for test in self.tests for leak in test.leaks}

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "excluded": len(self.excluded)}


def dedup_paths(
    train: str | Path,
    tests: Sequence[str | Path],
    *,
    train_split: str = "train",
    test_split: str | None = None,
    out: str | Path | None = None,
    sheet: str | Path | None = None,
    progress: Progress | None = None,
) -> Leaks:
    """`dedup` for data sets on disk or of the catalog; what `vitrail data dedup TRAIN TEST...` calls.

    Without `test_split` each data set is taken by its test split, else its validation split. `out` is where the
    exclusions are written, `sheet` a PNG with the pairs side by side.
    """
    sources = [open_source(test, test_split or test_split_of(test)) for test in tests]
    return dedup(open_source(train, train_split), sources, out=out, sheet=sheet, progress=progress)


def dedup(
    train: Source,
    tests: Sequence[Source],
    *,
    out: str | Path | None = None,
    sheet: str | Path | None = None,
    progress: Progress | None = None,
) -> Leaks:
    """The training images that are copies of test images."""
    if not tests:
        raise ConfigError(f"no test set was given to compare {train.name} with: give at least one")
    if out is not None:
        exclusions.check_place(Path(out))
    if sheet is not None:
        check_sheet(sheet)
    split, seen = _whole_split(train), scan(train, progress=progress)
    sets, drawn = [], []
    for test in tests:
        scanned = scan(test, progress=progress)
        pairs = find_pairs(seen, scanned, progress=progress)
        rows = zip(pairs.i.tolist(), pairs.j.tolist(), pairs.score.tolist(), pairs.how.tolist(), strict=True)
        leaks = []
        for i, j, score, how in rows:
            leaks.append(_leak(train, i, test, j, score, how))
            drawn.append((f"{score:.3f} {how}", train, i, test, j))
        sets.append(Compared(test.name, len(test), len(scanned.broken), tuple(leaks)))
    found = Leaks(train.name, split, len(train), len(seen.broken), tuple(sets))
    if out is not None:
        write_leaks(found, out)
    if sheet is not None:
        shown = f", {DRAWN} of them shown" if len(drawn) > DRAWN else ""
        pair_sheet(f"{train.name}: {len(drawn):,} pairs{shown}", drawn[:DRAWN], sheet)
    return found


def write_leaks(leaks: Leaks, path: str | Path) -> None:
    """The images to leave out, and why, as a file of exclusions."""
    head = {"train": leaks.train, **leaks.split}
    rows = [{**asdict(leak), "score": round(leak.score, 4)} for test in leaks.tests for leak in test.leaks]
    exclusions.write_exclusions(Path(path), {**head, "threshold": THRESHOLD}, rows)


def leak_table(leaks: Leaks) -> Table:
    """What was found, for the terminal."""
    # Text, not str: in "tiny-imagenet:train[:10%]" rich would see an emoji and a style.
    title = Text(f"{leaks.train}: {len(leaks.excluded):,} of {leaks.images:,} images to leave out")
    table = Table(title=title, title_justify="left")
    table.add_column("test set")
    for column in ("images", "leaked", "same bytes", "near", "mirrored", "training images", "unreadable"):
        table.add_column(column, justify="right")
    for test in leaks.tests:
        how = [leak.how for leak in test.leaks]
        counts = (
            test.images,
            len({leak.test for leak in test.leaks}),
            *(how.count(kind) for kind in ("bytes", "near", "mirrored")),
            len({leak.train for leak in test.leaks}),
            test.unreadable,
        )
        table.add_row(Text(test.name), *(f"{count:,}" for count in counts))
    return table


def _leak(train: Source, i: int, test: Source, j: int, score: float, how: str) -> Leak:
    train_class, test_class = train.class_names[train.labels[i]], test.class_names[test.labels[j]]
    return Leak(train.key(i), test.key(j), test.name, score, how, train_class, test_class)


def _whole_split(source: Source) -> dict[str, object]:
    """What exclusions.py checks before it leaves anything out of a split."""
    whole = source
    while isinstance(whole, Subset):
        whole = whole.base
    if isinstance(whole, Joined):
        raise ConfigError(f"{source.name} are several: exclusions are of one split, so compare one at a time")
    split = whole.name.rpartition(":")[2]
    return {"split": split, "images": len(whole), "fingerprint": whole.fingerprint()}
