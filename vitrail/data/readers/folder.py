"""Folders of images: one sub-folder per class, with or without splits.

    root/train/cat/a.jpg       root/val/cat/b.jpg               splits by their names (splits.py)
    root/seg_train/seg_train/cat/a.jpg   root/seg_test/..       the word within a name, and doubled folders
    root/dataset/train/cat/a.jpg                                a single folder around all others
    root/cat/a.jpg             root/dog/b.jpg                   no splits: class folders, split by a seed, class by
        class: 80% train, 10% validation, 10% test; `photos?seed=1&validation=0.2&test=0` chooses other parts, and
        `photos?group={group}_{number}` keeps groups of images in one of them (groups.py)

Splits
- A folder is a split if its name is a split word and it contains folders; so a class may be called `train`, and a
  `test` of images without classes is not a split.
- Names that only contain a split word (seg_train, test_set, TrainImages) are splits if they are unambiguous:
  every folder that holds only folders has such a name, each of another split, and there are two of them or no
  folder beside.
- If all folders have names of splits and none holds folders, they are taken for splits, and opening one reports that
  its class folders are missing.
- A folder whose only content is a folder of the same name, as in many unpacked archives, is skipped over; so is a
  folder whose only content is a folder of folders.

Classes and images
- Every sub-folder is a class, named as the folder (in Unicode form NFC); a `classes.txt` with lines
  `folder <TAB> name` renames them. Every split has the classes of train, so that a label means the same in all.
- Images are found at any depth below the class, by extension, in any case. A class whose images all lie in several
  folders of their own may be several classes, or a part of the data: that is an error, and `photos?classes=outer`
  declares it one class.
- Names that begin with a dot, and the __MACOSX of unpacked archives, are skipped; every other file that is not used
  is counted in `skipped` with the reason and its extension.
- A link to a file is followed wherever it points. A link to a folder is never followed: inside the data set it would
  be a loop or a second copy; outside of it, in the place of a split or a class, it is an error.
- A link that points nowhere, or a file without permission, keeps its place, and reading it raises DataError.
  A folder that cannot be listed is an error at once, for its contents are unknown.

layout.py finds the splits and the classes; this file makes a source of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.readers.class_names import with_titles
from vitrail.data.readers.file_names import Names, printable, walk_images
from vitrail.data.readers.fingerprint import digest, digest_files
from vitrail.data.readers.layout import (
    ENDINGS,
    Layout,
    count_beside,
    find_classes,
    find_layout,
    ignored_files,
    list_images,
)
from vitrail.data.sources import Example, Reader, Source, read_image_file, take_options
from vitrail.data.splits import SPLITS, find_split, stratified
from vitrail.errors import ConfigError, DataError
from vitrail.runtime.log import note

DEFAULTS = {"seed": "0", "validation": "0.1", "test": "0.1"}  # how one folder is split
LEFT_OUT = ("empty", "unknown")  # class folders: without images in train; in other splits alone


@dataclass(frozen=True, eq=False)
class FolderSource(Source):
    """Image files below `root`."""

    name: str
    root: Path
    files: Names  # paths below root, bytes as the file system has them
    labels: np.ndarray  # int64 (n,)
    class_names: list[str]
    # Files that are not used as images: reason -> how many.
    skipped: Counter[str] = field(default_factory=Counter)
    empty: tuple[str, ...] = ()  # class folders without an image, below root
    together: np.ndarray | None = (
        None  # groups, int64 (n,), of images that stay on one side of a split (groups.py)
    )
    targets: np.ndarray | None = None  # uint8 (n, K), of several labels for an image: several_labels.py

    def __post_init__(self) -> None:
        assert self.targets is None or self.targets.shape == (len(self.labels), len(self.class_names))

    def key(self, index: int) -> str:
        return printable(self.files[index]).replace(os.sep, "/")

    def read(self, index: int) -> Example:
        key = self.key(index)
        path = f"{self.root}{os.sep}{os.fsdecode(self.files[index])}"
        return Example(read_image_file(path, key), int(self.labels[index]), key)

    def fingerprint(self) -> str:
        root = os.fsencode(self.root) + os.fsencode(os.sep)
        files = digest_files((name, root + name) for name in self.files)
        several = () if self.targets is None else (self.targets,)
        return digest(files, self.labels, *several, *self.class_names)


def find_folder(root: Path, options: dict[str, str]) -> Reader:
    """Return the reader of a folder of images; ConfigError for options that do not apply to it."""
    from vitrail.data.readers.listed import find_listing

    if listing := find_listing(root, options):
        return listing
    options = {name: value for name, value in options.items() if name != "labels"}  # labels=none
    fractions = read_split_options(str(root), options, "classes", "group", "skip")
    layout, outer, group = find_layout(root), "classes" in options, options.get("group")
    skip = read_skipped(str(root), options.get("skip", ""))
    if options.get("classes", "outer") != "outer":
        raise ConfigError(f"{root}: option classes={options['classes']}; outer is allowed: see docs/data.md")
    if not layout.splits:
        reader = cut_in_three(
            str(root), lambda: with_groups(open_folder(layout, "", outer=outer, skip=skip), group), fractions
        )
        return reader._replace(layout=str(layout), ignored=lambda: ignored_files(layout))
    splits = list(layout.splits)
    if unused := {name: options[name] for name in DEFAULTS if name in options}:
        raise ConfigError(f"{root} has its own splits ({', '.join(splits)}): options {unused} do not apply")
    return Reader(
        splits,
        lambda split: with_groups(
            open_folder(layout, find_split(split, splits, str(root)), outer=outer, skip=skip), group
        ),
        layout=str(layout),
        ignored=lambda: ignored_files(layout),
    )


def open_folder(
    layout: Layout, split: str, *, outer: bool, skip: frozenset[str] = frozenset()
) -> FolderSource:
    """List the images of one split, or of the whole folder if it has no splits (""). `skip`: of LEFT_OUT."""
    root, skipped = layout.root, Counter[str]()
    # split -> {class name: folder}; files are counted of the split that is opened
    classes = {
        name: find_classes(root, folder, skipped if name == split else Counter())
        for name, folder in (layout.splits or {split: layout.base}).items()
    }
    class_names = sorted(classes["train"] if "train" in classes else set().union(*classes.values()))
    if "empty" in skip:
        defining = [classes["train"]] if "train" in classes else [*classes.values()]
        filled = {
            name for by in defining for name, place in by.items() if walk_images(root, place, Counter())
        }
        if none := sorted(set(class_names) - filled):
            skipped["a class folder without images, left out by skip=empty"] += len(none)
            classes = {key: {n: f for n, f in by.items() if n not in none} for key, by in classes.items()}
            class_names = sorted(filled)
    if "unknown" in skip:
        extra = {name for by in classes.values() for name in by} - set(class_names)
        if extra:
            skipped["a class folder that train does not have, left out by skip=unknown"] += len(extra)
            classes = {key: {n: f for n, f in by.items() if n not in extra} for key, by in classes.items()}
    for name, folder in layout.splits.items():
        if unknown := sorted(set(classes[name]) - set(class_names)):
            raise DataError(
                f"{root / folder}: classes that train does not have: {', '.join(unknown[:8])}; images "
                f"without labels do not belong in {root}; ?skip=unknown leaves these classes out"
            )
    number = {name: label for label, name in enumerate(class_names)}
    folders = [(number[name], folder) for name, folder in classes[split].items()]
    files, labels = list_images(root, folders, skipped, outer=outer)
    present = set(labels.tolist())
    empty = () if "empty" in skip else tuple(folder for label, folder in folders if label not in present)
    count_beside(layout, skipped)
    name = f"{root.resolve().name}:{split}" if split else root.resolve().name
    titles = with_titles(class_names, root / layout.base)
    return FolderSource(name, root, Names(files), labels, titles, skipped, empty)


def cut_in_three(
    where: str, open_whole: Callable[[], FolderSource], fractions: tuple[int, float, float]
) -> Reader:
    """Return the reader of a data set without splits: it is opened with its first split, and cut class by class."""
    seed, validation, test = fractions

    @cache
    def cut() -> dict[str, FolderSource]:
        whole = open_whole()
        files, splits = list(whole.files), {}
        shares: Any = {"seed": seed, "validation": validation, "test": test}
        if whole.together is None:
            chosen = stratified(files, whole.labels, **shares)
        else:
            from vitrail.data.groups import stratified_groups

            chosen = stratified_groups(files, whole.labels, whole.together, **shares)
        for split, indices in chosen.items():
            names = Names([files[i] for i in indices])
            name = f"{whole.name}:{split}"
            groups = None if whole.together is None else whole.together[indices]
            targets = None if whole.targets is None else whole.targets[indices]
            splits[split] = replace(
                whole, name=name, files=names, labels=whole.labels[indices], together=groups, targets=targets
            )
        return splits

    def open_part(split: str) -> FolderSource:
        split = find_split(split, SPLITS, where)  # before all files are listed
        part = cut()[split]
        if not len(part):
            count = sum(map(len, cut().values()))
            raise DataError(
                f"{where}: no images for {split!r}: {count} images in {len(part.class_names)} classes, of each class "
                f"{validation:g} for validation and {test:g} for test, rounded; options after the path, such as "
                "?validation=0.2&test=0.2, change that"
            )
        return part

    return Reader(list(SPLITS), open_part, cut=True)


def read_skipped(where: str, text: str) -> frozenset[str]:
    """Return what the option `skip` names, of LEFT_OUT."""
    words = frozenset(word.strip() for word in text.split(",") if word.strip())
    if unknown := sorted(words - set(LEFT_OUT)):
        raise ConfigError(
            f"{where}: skip={unknown[0]}: of class folders, {' and '.join(LEFT_OUT)} are allowed"
        )
    return words


def with_groups(source: FolderSource, how: str | None) -> FolderSource:
    """Return a source whose images have groups, by the option `group`; without the option, the same."""
    if how is None:
        return source
    from vitrail.data.groups import COPIES, groups_by_pattern, groups_of_copies, number_groups

    if how == COPIES:
        return replace(source, together=groups_of_copies(source))
    if "{" not in how:
        raise ConfigError(
            f"{source.root}: group={how}: a pattern such as {{group}}_{{number}}, or {COPIES}; a column needs a file "
            "of labels: ?labels=FILE"
        )
    keys = [source.key(i) for i in range(len(source))]
    return replace(source, together=number_groups(groups_by_pattern(str(source.root), how, keys)))


def read_split_options(where: str, options: dict[str, str], *others: str) -> tuple[int, float, float]:
    """Return the seed and the fractions for validation and test; `others` are options that are read elsewhere."""
    take_options(where, options, (*DEFAULTS, *others))
    values = DEFAULTS | options
    try:
        seed, validation, test = int(values["seed"]), float(values["validation"]), float(values["test"])
    except ValueError as error:
        raise ConfigError(f"{where}: options {options}: {error}") from error
    if seed < 0 or validation < 0 or test < 0 or not validation + test < 1:
        raise ConfigError(
            f"{where}: options {options}: seed >= 0, validation and test fractions whose sum is below 1"
        )
    return seed, validation, test


_noted: set[Path] = set()  # data sets whose ignored files this process has reported


def check_files(source: FolderSource) -> None:
    """Raise DataError for a class folder without an image, which can be neither trained on nor evaluated.

    Report once per data set that files are ignored, those of the split that is opened first.
    """
    if source.empty:
        others = f" (and {len(source.empty) - 1} more)" if len(source.empty) > 1 else ""
        raise DataError(
            f"{source.root / source.empty[0]}: a class without images{others}; fill it or remove it ({ENDINGS}), "
            "or leave such classes out: ?skip=empty"
        )
    first_process = os.environ.get("RANK", "0") == "0"  # of those of torchrun
    if source.skipped and source.root not in _noted and first_process:
        _noted.add(source.root)
        count, reasons = source.skipped.total(), describe_ignored(source.skipped)
        note(
            f"{source.name}: {count:,} file{' is' if count == 1 else 's are'} ignored: {reasons}; "
            f"see `vitrail data inspect {source.root}`"
        )


def describe_ignored(ignored: Counter[str], most: int = 5) -> str:
    """Join the most frequent reasons into a phrase."""
    words = [f"{count:,} x {reason}" for reason, count in ignored.most_common(most)]
    return "; ".join(words) + ("; ..." if len(ignored) > most else "")
