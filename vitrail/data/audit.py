"""What is in a data set, and what is wrong with it: the report of `vitrail data inspect`.

    Source of each split ──► scan.py ──► duplicates.py ──► inspect ──► Report ──► report_tables, as_json

One pass over the files. Of each split: images, classes and their balance (largest over smallest), sizes, how
pixels are stored, files that cannot be read. Of all splits together: files that are not taken as images; copies,
inside a split (they count twice) and across splits (the test set leaks into training); copies that carry different
labels (one of them is wrong).
`Report.problems` says it in sentences.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from vitrail.data.copies.contact_sheet import check_sheet, class_sheet
from vitrail.data.copies.duplicates import find_pairs
from vitrail.data.copies.scan import Scan, scan
from vitrail.data.readers.folder import in_words
from vitrail.data.sources import Source, ignored_in, layout_in_words, open_source, splits_of
from vitrail.errors import ConfigError

LISTED = 5  # examples of a problem that a sentence names
UNEVEN = 10.0  # balance from which it is a problem


@dataclass(frozen=True)
class Range:
    """Least, middle and most of a quantity."""

    least: float
    median: float
    most: float


@dataclass(frozen=True)
class Unreadable:
    key: str
    reason: str


@dataclass(frozen=True)
class SplitReport:
    """One split. Sizes are of the images that could be read; None when there is none."""

    name: str
    images: int
    class_names: tuple[str, ...]
    counts: tuple[int, ...]  # images of each class
    balance: float | None  # largest class over smallest, of those that have images
    height: Range | None
    width: Range | None
    aspect: Range | None  # width over height
    modes: dict[str, int]  # how pixels are stored -> images
    unreadable: tuple[Unreadable, ...]


@dataclass(frozen=True)
class Copy:
    """Two images that are the same picture."""

    split: str
    key: str
    class_name: str
    other_split: str
    other_key: str
    other_class_name: str
    score: float
    how: str  # "bytes", "near" or "mirrored"

    @property
    def conflict(self) -> bool:
        return self.class_name != self.other_class_name

    def __str__(self) -> str:
        return f"{self.split} {self.key} = {self.other_split} {self.other_key}"


@dataclass(frozen=True)
class Report:
    """What `inspect` found."""

    splits: tuple[SplitReport, ...]
    copies: tuple[Copy, ...]
    sheet: str | None  # path of the contact sheet
    ignored: dict[str, int]  # files that are not taken as images: reason -> how many
    layout: str | None  # how the folders of a folder of images were understood

    @property
    def conflicts(self) -> tuple[Copy, ...]:
        return tuple(copy for copy in self.copies if copy.conflict)

    @property
    def problems(self) -> list[str]:
        """What a person should look at, most serious first; empty when nothing is wrong."""
        return _problems(self)

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "problems": self.problems}


def inspect_path(
    where: str | Path,
    *,
    splits: list[str] | None = None,
    sheet: str | Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """`inspect` for a data set on disk or of the catalog; what `vitrail data inspect PATH` calls."""
    names = splits_of(where) if splits is None else splits
    sources = {name: open_source(where, name, empty_classes=True) for name in names}
    ignored, layout = ignored_in(where), layout_in_words(where)
    return inspect(sources, sheet=sheet, progress=progress, ignored=ignored, layout=layout)


def inspect(
    source_by_split: dict[str, Source],
    *,
    sheet: str | Path | None = None,
    progress: Progress | None = None,
    ignored: dict[str, int] | None = None,
    layout: str | None = None,
) -> Report:
    """Read every image once and report. `sheet` is where the contact sheet of the first split is drawn (PNG);
    `ignored`: what was found beside the images (sources.ignored_in); `layout`: how they lie (layout_in_words)."""
    if not source_by_split:
        raise ConfigError("no split was given to inspect: give at least one")
    if sheet is not None:
        check_sheet(sheet)
    scans = {name: scan(source, progress=progress) for name, source in source_by_split.items()}
    reports = tuple(_split_report(name, source, scans[name]) for name, source in source_by_split.items())
    copies = []
    for name, other in combinations_with_replacement(source_by_split, 2):
        pairs = find_pairs(scans[name], None if other == name else scans[other], progress=progress)
        first, second = source_by_split[name], source_by_split[other]
        columns = (pairs.i.tolist(), pairs.j.tolist(), pairs.score.tolist(), pairs.how.tolist())
        for i, j, score, how in zip(*columns, strict=True):
            copies.append(Copy(*_named(name, first, i), *_named(other, second, j), score, how))
    drawn = None if sheet is None else str(class_sheet(next(iter(source_by_split.values())), sheet))
    return Report(reports, tuple(copies), drawn, ignored or {}, layout)


def report_tables(report: Report) -> Group:
    """The report for the terminal: a table of splits, a table of copies, and what is wrong."""
    copies = [_copy_table(report.copies)] if report.copies else []
    sentences = [Text(f"- {problem}") for problem in report.problems] or [Text("nothing wrong was found")]
    sheet = [Text(f"contact sheet: {report.sheet}")] if report.sheet else []
    layout = [Text(f"read as: {report.layout}")] if report.layout else []
    return Group(*layout, _split_table(report.splits), *copies, *sentences, *sheet)


def _split_table(splits: tuple[SplitReport, ...]) -> Table:
    """A column for each split, so that it fits a narrow terminal."""
    table = Table("splits", box=SIMPLE_HEAD, pad_edge=False)
    for split in splits:
        # Text, not str: in "train[:10%]" rich would see a style.
        table.add_column(Text(split.name), justify="right")
    table.add_row("images", *(f"{split.images:,}" for split in splits))
    table.add_row("classes", *(f"{len(split.class_names):,}" for split in splits))
    table.add_row("images per class", *(f"{min(s.counts):,} to {max(s.counts):,}" for s in splits))
    table.add_row("largest / smallest", *("" if s.balance is None else f"{s.balance:.1f}" for s in splits))
    table.add_row("height", *(_range(split.height) for split in splits))
    table.add_row("width", *(_range(split.width) for split in splits))
    table.add_row("unreadable", *(f"{len(split.unreadable):,}" for split in splits))
    modes = (", ".join(f"{mode} {count:,}" for mode, count in split.modes.items()) for split in splits)
    table.add_row("stored as", *modes)
    return table


def _copy_table(copies: tuple[Copy, ...]) -> Table:
    table = Table(
        "split", "and", title="pairs of copies", title_justify="left", box=SIMPLE_HEAD, pad_edge=False
    )
    for column in ("same bytes", "near", "mirrored", "other label"):
        table.add_column(column, justify="right")
    for two, found in _by_splits(copies).items():
        how = Counter(copy.how for copy in found)
        counts = (how["bytes"], how["near"], how["mirrored"], sum(copy.conflict for copy in found))
        table.add_row(*map(Text, two), *(f"{count:,}" for count in counts))
    return table


def _split_report(name: str, source: Source, seen: Scan) -> SplitReport:
    counts = np.bincount(source.labels, minlength=len(source.class_names))
    present = counts[counts > 0]
    sizes = seen.sizes[seen.sizes[:, 0] > 0]
    return SplitReport(
        name=name,
        images=len(source),
        class_names=tuple(source.class_names),
        counts=tuple(counts.tolist()),
        balance=float(present.max() / present.min()) if len(present) else None,
        height=_of(sizes[:, 0]),
        width=_of(sizes[:, 1]),
        aspect=_of(sizes[:, 1] / sizes[:, 0]),
        modes=dict(Counter(mode for mode in seen.modes.tolist() if mode).most_common()),
        unreadable=tuple(Unreadable(source.key(index), reason) for index, reason in seen.broken.items()),
    )


def _problems(report: Report) -> list[str]:
    problems = []
    for (name, other), found in _by_splits(report.copies).items():
        pairs = _some([str(copy) for copy in found])
        images = len({copy.other_key for copy in found})
        of = next(split.images for split in report.splits if split.name == other)
        leaks = f"{images:,} of {of:,} images of {other} are also in {name}; pairs: {pairs}"
        problems.append(f"pairs of copies inside {name}: {pairs}" if name == other else leaks)
    if report.conflicts:
        named = [f"{copy} ({copy.class_name} / {copy.other_class_name})" for copy in report.conflicts]
        problems.append(f"pairs of copies with different labels: {_some(named)}")
    if report.ignored:
        problems.append(
            f"ignored files: {sum(report.ignored.values()):,} ({in_words(Counter(report.ignored))})"
        )
    if all(len(split.class_names) == 1 for split in report.splits):
        problems.append(f"one class only ({report.splits[0].class_names[0]}): there is nothing to tell apart")
    for split in report.splits:
        if split.unreadable:
            named = [f"{file.key} ({file.reason})" for file in split.unreadable]
            problems.append(f"unreadable files in {split.name}: {_some(named)}")
        empty = [name for name, count in zip(split.class_names, split.counts, strict=True) if not count]
        if empty:
            problems.append(f"classes without images in {split.name}: {_some(empty)}")
        if split.balance is not None and split.balance >= UNEVEN:
            problems.append(f"the largest class of {split.name} has {split.balance:.1f} times the smallest")
        if split.class_names != report.splits[0].class_names:
            problems.append(f"{split.name} does not have the classes of {report.splits[0].name}")
    return problems


def _by_splits(copies: tuple[Copy, ...]) -> dict[tuple[str, str], list[Copy]]:
    """Copies by the two splits that they are in, across splits first."""
    found: dict[tuple[str, str], list[Copy]] = {}
    for copy in copies:
        found.setdefault((copy.split, copy.other_split), []).append(copy)
    return dict(sorted(found.items(), key=lambda entry: entry[0][0] == entry[0][1]))


def _named(split: str, source: Source, index: int) -> tuple[str, str, str]:
    return split, source.key(index), source.class_names[source.labels[index]]


def _of(values: np.ndarray) -> Range | None:
    if not len(values):
        return None
    return Range(float(values.min()), float(np.median(values)), float(values.max()))


def _range(range_: Range | None) -> str:
    if range_ is None:
        return ""
    if range_.least == range_.most:
        return f"{range_.least:g}"
    return f"{range_.least:g} to {range_.most:g}, median {range_.median:g}"


def _some(names: list[str]) -> str:
    more = ", ..." if len(names) > LISTED else ""
    return f"{len(names):,} ({', '.join(names[:LISTED])}{more})"
