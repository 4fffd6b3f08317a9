"""A list of images with their labels, as a data set: its classes and its splits.

Listing ──► classes that are refused or left out ──► labels as numbers ──► its own splits, or cut class by class
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from vitrail.data.groups import number_groups
from vitrail.data.readers.class_names import check_names, read_class_names, with_titles
from vitrail.data.readers.file_names import Names
from vitrail.data.readers.folder import (
    DEFAULTS,
    FolderSource,
    cut_in_three,
    read_split_options,
    with_groups,
)
from vitrail.data.readers.label_columns import JOINT
from vitrail.data.sources import Reader
from vitrail.data.splits import WORDS, canonical, find_split, in_order
from vitrail.errors import ConfigError, DataError

REASONS = {
    "missing": "images that are named and are not there",
    "unlabelled": "images without a label",
    "duplicates": "images that are named with several labels",
    "unknown": "images of other splits whose class train does not have",
    "rare": "classes that have fewer than two images",
}
NAMED = 4  # examples in a message


@dataclass(frozen=True)
class Listing:
    """Images below `root`, and what is known of each."""

    root: Path
    words: str  # where the labels were found, for people
    files: list[bytes]
    labels: list[str]
    splits: list[str] | None = None
    skipped: Counter[str] = field(default_factory=Counter)
    groups: list[str] | None = None  # "": in none
    several: bool = False  # each label is any number of them, joined by JOINT

    def keep(self, kept: Sequence[int], reason: str) -> Listing:
        """Return the images of these places; the others count as skipped."""
        left_out = Counter({reason: len(self.files) - len(kept)})
        splits = None if self.splits is None else [self.splits[i] for i in kept]
        groups = None if self.groups is None else [self.groups[i] for i in kept]
        files, labels = [self.files[i] for i in kept], [self.labels[i] for i in kept]
        kept_ones = replace(self, files=files, labels=labels, splits=splits, groups=groups)
        return replace(kept_ones, skipped=self.skipped + left_out)


def joined(listings: list[Listing]) -> Listing:
    """Put the listings of several folders of one data set together."""
    first = listings[0]
    if len(listings) == 1:
        return first
    parts = [one.splits for one in listings if one.splits is not None]
    splits = [split for part in parts for split in part] if len(parts) == len(listings) else None
    groups = [group for one in listings for group in one.groups or [""] * len(one.files)]
    return replace(
        first,
        groups=groups if any(groups) else None,
        words=" and ".join(dict.fromkeys(one.words for one in listings)),
        files=[file for one in listings for file in one.files],
        labels=[label for one in listings for label in one.labels],
        splits=splits,
        skipped=sum((one.skipped for one in listings), Counter()),
        several=any(one.several for one in listings),
    )


def refuse(where: Path, reason: str, cases: list[str], skip: set[str], skipped: Counter[str]) -> None:
    """Raise DataError for these cases unless they are to be skipped, and then count them."""
    if cases and reason not in skip:
        more = f" and {len(cases) - NAMED:,} more" if len(cases) > NAMED else ""
        raise DataError(
            f"{where}: {len(cases):,} {REASONS[reason]}: {', '.join(cases[:NAMED])}{more}; ?skip={reason} leaves "
            "them out"
        )
    if cases:
        skipped[f"left out by skip={reason}"] += len(cases)


def reader_of(listing: Listing, options: dict[str, str], skip: set[str], group: str | None = None) -> Reader:
    """Return the reader: of the listing's own splits, else those of its folders, else cut class by class.

    `group`: a pattern for groups, or copies; else those of the listing.
    """
    root = listing.root
    fractions = read_split_options(str(root), options)
    if listing.splits is None:
        listing = replace(listing, splits=splits_by_folders(listing.files))
    listing = leave_out_classes(listing, skip)
    names, known = class_names(listing)
    numbers = None if listing.groups is None else number_groups(listing.groups)
    targets = None
    if listing.several:
        from vitrail.data.several_labels import make_targets

        sets = [[known[label] for label in labels_of(text)] for text in listing.labels]
        targets, labels = make_targets(sets, len(names), str(root))
    else:
        labels = np.array([known[label] for label in listing.labels], np.int64)

    def part(name: str, chosen: np.ndarray) -> FolderSource:
        files = Names([listing.files[i] for i in chosen])
        groups = None if numbers is None else numbers[chosen]
        several = None if targets is None else targets[chosen]
        source = FolderSource(
            name, root, files, labels[chosen], names, listing.skipped, together=groups, targets=several
        )
        return with_groups(source, group)

    layout, title = f"labels from {listing.words}", root.resolve().name
    if listing.splits is None:
        reader = cut_in_three(str(root), lambda: part(title, np.arange(len(labels))), fractions)
        return reader._replace(
            layout=f"{layout}; split into train, validation and test", ignored=lambda: listing.skipped
        )
    if unused := {name: options[name] for name in DEFAULTS if name in options}:
        raise ConfigError(f"{root} has its own splits: options {unused} do not apply")
    own = np.array(listing.splits)
    there = in_order(sorted(set(listing.splits)))

    def open_part(split: str) -> FolderSource:
        split = find_split(split, there, str(root))
        return part(f"{title}:{split}", np.flatnonzero(own == split))

    return Reader(there, open_part, f"{layout}; its own splits", ignored=lambda: listing.skipped)


def splits_by_folders(files: list[bytes]) -> list[str] | None:
    """Return the splits where the first folder of every path is a word for one; else None."""
    tops = [file.partition(b"/")[0].decode("utf-8", "replace") if b"/" in file else "" for file in files]
    return [canonical(top) for top in tops] if all(top.lower() in WORDS for top in set(tops)) else None


def leave_out_classes(listing: Listing, skip: set[str]) -> Listing:
    """Refuse classes that train does not have, or leave them out; leave out rare ones where that is asked for."""
    splits = listing.splits or ["train"] * len(listing.labels)
    sets = [labels_of(text) if listing.several else (text,) for text in listing.labels]
    counts = Counter(
        label for labels, split in zip(sets, splits, strict=True) if split == "train" for label in labels
    )
    if "rare" in skip:
        rare = {label for label, count in counts.items() if count < 2}
        kept = [i for i, labels in enumerate(sets) if not rare.intersection(labels)]
        listing = listing.keep(kept, f"of {len(rare):,} classes, left out by skip=rare") if rare else listing
        sets = [sets[i] for i in kept]
    if "train" in splits and (
        unknown := sorted({label for labels in sets for label in labels} - set(counts))
    ):
        skipped: Counter[str] = Counter()
        refuse(listing.root, "unknown", unknown, skip, skipped)
        kept = [i for i, labels in enumerate(sets) if all(label in counts for label in labels)]
        listing = listing.keep(kept, "left out by skip=unknown")
    if not listing.labels:
        raise DataError(f"{listing.root}: {listing.words}: no image is left")
    return listing


def labels_of(text: str) -> tuple[str, ...]:
    """Return several labels that were joined."""
    return tuple(text.split(JOINT)) if text else ()


def class_names(listing: Listing) -> tuple[list[str], dict[str, int]]:
    """Return the names of the classes in order, and {label as it is stored: its number}."""
    stored = {label for text in listing.labels for label in (labels_of(text) if listing.several else (text,))}
    if not stored:
        raise DataError(f"{listing.root}: {listing.words}: no image has a label")
    if all(re.fullmatch(r"\d{1,9}", label) for label in stored):
        ids = sorted(stored, key=int)
        named = read_class_names(listing.root)  # in the order of the labels
        if named is not None and [*map(str, range(len(named)))] == ids:
            return named, {label: k for k, label in enumerate(ids)}
    else:
        ids = sorted(stored)
    check_names(ids, f"{listing.root}: {listing.words}")
    return with_titles(ids, listing.root), {label: k for k, label in enumerate(ids)}
