"""The report of `vitrail data inspect`: what a data set contains, and what is wrong with it.

    Source of each split ──► copies.py ──► inspect_data ──► Report

One pass over the files. For each split: images, classes and their balance (largest over smallest), sizes, how pixels
are stored, files that cannot be read. For all splits together: files that are not used as images; copies, inside a
split (they count twice) and across splits (the test set leaks into training); copies with different labels (one of
them is wrong). `Report.problems` lists what is wrong in sentences, `Report.refusals` what fine-tuning would refuse.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np

from vitrail.data.contact_sheet import check_sheet, class_sheet
from vitrail.data.copies import Scan, find_pairs, scan
from vitrail.data.readers.folder import FolderSource, describe_ignored
from vitrail.data.settings import DataSettings
from vitrail.data.several_labels import class_counts
from vitrail.data.sources import DataSet, Source
from vitrail.data.splits import groups_of
from vitrail.errors import ConfigError, DataError

LISTED = 5  # examples of a problem that a sentence names
MAX_BAD = DataSettings.max_bad  # share of broken images that training tolerates
UNEVEN = 10.0  # balance from which it is a problem


@dataclass(frozen=True)
class Range:
    """Smallest, median and largest value of a quantity."""

    least: float
    median: float
    most: float

    def __str__(self) -> str:
        if self.least == self.most:
            return f"{self.least:g}"
        return f"{self.least:g} to {self.most:g}, median {self.median:g}"


@dataclass(frozen=True)
class Unreadable:
    key: str
    reason: str


@dataclass(frozen=True)
class SplitReport:
    """One split. Sizes are those of the images that could be read; None if there are none."""

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
    empty: tuple[str, ...] = ()  # class folders without an image
    groups: int | None = None  # of images that stay on one side of a split; None: they have none


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
    """The result of `inspect_data`."""

    splits: tuple[SplitReport, ...]
    copies: tuple[Copy, ...]
    sheet: str | None  # path of the contact sheet
    ignored: dict[str, int]  # files that are not used as images: reason -> how many
    layout: str | None  # how a folder of images is read
    cut: bool = False  # vitrail splits it
    where: str = ""  # as it was named
    missing: tuple[str, ...] = ()  # why splits that vitrail makes have no images

    @property
    def refusals(self) -> list[str]:
        """Sentences about what `vitrail finetune` refuses in these splits, each with what leaves it out."""
        refusals, first = list(self.missing), self.splits[0]
        for split in self.splits:
            if split.empty:
                refusals.append(
                    f"class folders without images in {split.name}: {_list_some(list(split.empty))}; "
                    f"'{self.option('skip=empty')}' leaves such classes out"
                )
            broken, tolerated = len(split.unreadable), max(1, MAX_BAD * split.images)
            if broken == split.images:
                refusals.append(f"no image of {split.name} can be read")
            elif broken > tolerated:
                share = math.ceil(100 * broken / split.images) / 100
                refusals.append(
                    f"{broken:,} of {split.images:,} images of {split.name} cannot be read, more than the "
                    f"{int(tolerated):,} that are tolerated; --max-bad {share:g} leaves them out"
                )
            if split.class_names != first.class_names:
                flag = {"test": " --test none leaves it out", "validation": " --val none leaves it out"}
                refusals.append(
                    f"{split.name} and {first.name} have different classes;{flag.get(split.name, '')}".rstrip(
                        ";"
                    )
                )
        train = next((split for split in self.splits if split.name == "train"), first)
        if sum(map(bool, train.counts)) < 2:
            refusals.append(f"{train.name} has images of fewer than two classes: there is nothing to learn")
        return refusals

    def option(self, text: str) -> str:
        """Return the data set's name with one more option."""
        return f"{self.where}{'&' if '?' in self.where else '?'}{text}"

    @property
    def conflicts(self) -> tuple[Copy, ...]:
        return tuple(copy for copy in self.copies if copy.conflict)

    @property
    def copies_by_splits(self) -> dict[tuple[str, str], list[Copy]]:
        """Copies by the two splits that they are in, those across splits first."""
        groups: dict[tuple[str, str], list[Copy]] = {}
        for copy in self.copies:
            groups.setdefault((copy.split, copy.other_split), []).append(copy)
        return dict(sorted(groups.items(), key=lambda entry: entry[0][0] == entry[0][1]))

    @property
    def problems(self) -> list[str]:
        """Sentences about what should be checked, most serious first; empty if nothing is wrong."""
        problems = []
        for (name, other), copies in self.copies_by_splits.items():
            pairs = _list_some([str(copy) for copy in copies])
            images = len({copy.other_key for copy in copies})
            total = next(split.images for split in self.splits if split.name == other)
            leaks = f"{images:,} of {total:,} images of {other} are also in {name}; pairs: {pairs}"
            if self.cut and not any(split.groups for split in self.splits):
                leaks += f"; '{self.option('group=copies')}' keeps copies on one side"
            problems.append(f"pairs of copies inside {name}: {pairs}" if name == other else leaks)
        if self.conflicts:
            named = [f"{copy} ({copy.class_name} / {copy.other_class_name})" for copy in self.conflicts]
            problems.append(f"pairs of copies with different labels: {_list_some(named)}")
        if self.ignored:
            reasons = describe_ignored(Counter(self.ignored))
            problems.append(f"ignored files: {sum(self.ignored.values()):,} ({reasons})")
        if all(len(split.class_names) == 1 for split in self.splits):
            problems.append(f"only one class ({self.splits[0].class_names[0]}): there is nothing to classify")
        for split in self.splits:
            # Most reasons begin with the key.
            files = [
                f.reason if f.reason.startswith(f.key) else f"{f.key}: {f.reason}" for f in split.unreadable
            ]
            if files:
                problems.append(f"unreadable files in {split.name}: {_list_some(files)}")
            empty = [name for name, count in zip(split.class_names, split.counts, strict=True) if not count]
            if empty:
                problems.append(f"classes without images in {split.name}: {_list_some(empty)}")
            if split.balance is not None and split.balance >= UNEVEN:
                problems.append(
                    f"the largest class of {split.name} is {split.balance:.1f} times the smallest"
                )
            if split.class_names != self.splits[0].class_names:
                problems.append(f"{split.name} and {self.splits[0].name} have different classes")
        return problems

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "problems": self.problems, "refusals": self.refusals}


def inspect_data(
    where: str | Path, *, splits: list[str] | None = None, sheet: str | Path | None = None
) -> Report:
    """Read every image of a data set, on disk or of the catalog, once and report.

    `sheet` is where the contact sheet of the first split is drawn (PNG).
    """
    data = DataSet(where, empty_classes=True)
    names = data.splits if splits is None else splits
    if not names:
        raise ConfigError("no split to inspect: name at least one")
    source_by_split: dict[str, Source] = {}
    missing = []
    for name in names:
        try:
            source_by_split[name] = data.part(name)
        except DataError as error:
            if splits is not None or not data.reader.cut or not source_by_split:
                raise
            missing.append(str(error))  # a folder too small to be split
    ignored = dict(data.reader.ignored().most_common())
    if sheet is not None:
        check_sheet(sheet)
    scans = {name: scan(source) for name, source in source_by_split.items()}
    reports = tuple(_report_split(name, source, scans[name]) for name, source in source_by_split.items())
    copies = []
    for name, other in combinations_with_replacement(source_by_split, 2):
        first, second = source_by_split[name], source_by_split[other]
        for i, j, score, how in find_pairs(scans[name], None if other == name else scans[other]):
            one = (name, first.key(i), first.class_names[first.labels[i]])
            two = (other, second.key(j), second.class_names[second.labels[j]])
            copies.append(Copy(*one, *two, score, how))
    drawn = None if sheet is None else str(class_sheet(next(iter(source_by_split.values())), sheet))
    layout, cut = data.reader.layout or None, data.reader.cut
    return Report(reports, tuple(copies), drawn, ignored, layout, cut, str(where), tuple(missing))


def _report_split(name: str, source: Source, scanned: Scan) -> SplitReport:
    counts = class_counts(source)
    present, groups = counts[counts > 0], groups_of(source)
    sizes = scanned.sizes[scanned.sizes[:, 0] > 0]

    def summarize(values: np.ndarray) -> Range | None:
        if not len(values):
            return None
        return Range(float(values.min()), float(np.median(values)), float(values.max()))

    return SplitReport(
        name=name,
        images=len(source),
        class_names=tuple(source.class_names),
        counts=tuple(counts.tolist()),
        balance=float(present.max() / present.min()) if len(present) else None,
        height=summarize(sizes[:, 0]),
        width=summarize(sizes[:, 1]),
        aspect=summarize(sizes[:, 1] / sizes[:, 0]),
        modes=dict(Counter(mode for mode in scanned.modes.tolist() if mode).most_common()),
        unreadable=tuple(Unreadable(source.key(index), reason) for index, reason in scanned.broken.items()),
        empty=source.empty if isinstance(source, FolderSource) else (),
        groups=None if groups is None else len(np.unique(groups)),
    )


def _list_some(names: list[str]) -> str:
    more = ", ..." if len(names) > LISTED else ""
    return f"{len(names):,} ({', '.join(names[:LISTED])}{more})"
