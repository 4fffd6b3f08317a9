"""Folders of images: one sub-folder per class, with or without splits. folder_layout.py has the rules.

    root/train/cat/a.jpg  root/val/cat/b.jpg   splits as they are (their names: split_names.py)
    root/cat/a.jpg        root/dog/b.jpg       one set, split by a seed, class by class (stratify.py): 80% train,
                                               10% validation, 10% test; `photos?seed=1&validation=0.2&test=0`
                                               chooses other parts

Class names are the names of the class folders, sorted; a `classes.txt` with lines `folder <TAB> name` renames them.
Every split has the classes of train, so that a label means the same in all of them. With `photos?classes=outer`,
class folders are classes even if all their images lie in folders of their own.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitrail.data.readers.class_names import with_titles
from vitrail.data.readers.fingerprint import digest, digest_files
from vitrail.data.readers.folder_layout import (
    ENDINGS,
    Layout,
    count_beside,
    find_classes,
    find_layout,
    list_images,
)
from vitrail.data.readers.names import Names, printable
from vitrail.data.readers.split_names import find_split
from vitrail.data.readers.stratify import stratified
from vitrail.data.sources import Example, Source, read_image_file, take_options
from vitrail.errors import ConfigError, DataError
from vitrail.runtime.log import note

DEFAULTS = {"seed": "0", "validation": "0.1", "test": "0.1"}  # how one folder is split


@dataclass(frozen=True, eq=False)
class FolderSource:
    """Image files below `root`."""

    name: str
    root: Path
    files: Names  # paths below root, bytes as the file system has them
    labels: np.ndarray  # int64 (n,)
    class_names: list[str]
    # Files that are not used as images: reason -> how many.
    skipped: Counter[str] = field(default_factory=Counter)
    empty: tuple[str, ...] = ()  # class folders without an image, below root

    def __len__(self) -> int:
        return len(self.files)

    def key(self, index: int) -> str:
        return printable(self.files[index]).replace(os.sep, "/")

    def read(self, index: int) -> Example:
        key = self.key(index)
        path = f"{self.root}{os.sep}{os.fsdecode(self.files[index])}"
        return Example(read_image_file(path, key), int(self.labels[index]), key)

    def fingerprint(self) -> str:
        root = os.fsencode(self.root) + os.fsencode(os.sep)
        files = digest_files((name, root + name) for name in self.files)
        return digest(files, self.labels, *self.class_names)


def open_folder(root: Path, split: str, options: dict[str, str]) -> FolderSource:
    """Open one split of a folder of images."""
    outer, cut = _take_outer(root, options)
    seed, validation, test = read_split_options(root, cut, "classes")
    layout, skipped = find_layout(root), Counter[str]()
    split = find_split(split, _list_splits(layout, cut), str(root))
    if layout.splits:
        classes = _classes_by_split(root, layout.splits, split, skipped)
        class_names = sorted(classes["train"] if "train" in classes else set().union(*classes.values()))
        number = {name: label for label, name in enumerate(class_names)}
        folders = [(number[name], folder) for name, folder in classes[split].items()]
    else:
        whole = find_classes(root, layout.base, skipped)
        class_names, folders = list(whole), list(enumerate(whole.values()))
    files, labels = list_images(root, folders, skipped, outer=outer)
    present = set(labels.tolist())
    empty = tuple(folder for label, folder in folders if label not in present)
    if layout.splits:
        count_beside(layout, skipped)
    else:
        chosen = stratified(files, labels, seed=seed, validation=validation, test=test)[split]
        if not len(chosen):
            raise DataError(
                f"{root}: no images for {split!r}: {len(files)} images in {len(class_names)} classes, of each class "
                f"{validation:g} for validation and {test:g} for test, rounded; options after the path, such as "
                "?validation=0.2&test=0.2, change that"
            )
        files, labels = [files[i] for i in chosen], labels[chosen]
    name, titles = f"{root.resolve().name}:{split}", with_titles(class_names, root / layout.base)
    return FolderSource(name, root, Names(files), labels, titles, skipped, empty)


def folder_splits(root: Path, options: dict[str, str]) -> list[str]:
    """List the splits that a folder of images has."""
    _, cut = _take_outer(root, options)
    read_split_options(root, cut, "classes")
    return _list_splits(find_layout(root), cut)


def _list_splits(layout: Layout, cut: dict[str, str]) -> list[str]:
    splits = list(layout.splits)
    if splits and cut:
        raise ConfigError(
            f"{layout.root} has its own splits ({', '.join(splits)}): options {cut} do not apply"
        )
    return splits or ["train", "validation", "test"]


def _take_outer(root: Path, options: dict[str, str]) -> tuple[bool, dict[str, str]]:
    """Tell whether `classes=outer` is among the options, and return the others."""
    if options.get("classes", "outer") != "outer":
        raise ConfigError(f"{root}: option classes={options['classes']}; outer is allowed: see docs/data.md")
    return "classes" in options, {name: value for name, value in options.items() if name != "classes"}


def _classes_by_split(
    root: Path, folders: dict[str, str], split: str, skipped: Counter[str]
) -> dict[str, dict[str, str]]:
    """Return {split: {class name: folder}}; `skipped` counts the files of the one that is opened."""
    classes = {
        name: find_classes(root, folder, skipped if name == split else Counter())
        for name, folder in folders.items()
    }
    for name in classes:
        extra = sorted(set(classes[name]) - set(classes.get("train", classes[name])))
        if extra:
            raise DataError(
                f"{root / folders[name]}: classes that train does not have: {', '.join(extra[:8])}; images "
                f"without labels do not belong in {root}"
            )
    return classes


def refuse_empty_classes(source: Source) -> None:
    """Raise DataError for a class folder without an image: it can neither be learned nor measured."""
    if isinstance(source, FolderSource) and source.empty:
        others = f" (and {len(source.empty) - 1} more)" if len(source.empty) > 1 else ""
        raise DataError(
            f"{source.root / source.empty[0]}: a class without images{others}; fill it or remove it ({ENDINGS})"
        )


_noted: set[Path] = set()  # data sets whose ignored files this process has reported


def note_ignored(source: Source) -> None:
    """Report once per data set that files are ignored, those of the split that is opened first."""
    if not isinstance(source, FolderSource) or not source.skipped or source.root in _noted:
        return
    if os.environ.get("RANK", "0") != "0":  # of the processes of torchrun, the first one reports
        return
    _noted.add(source.root)
    count = source.skipped.total()
    note(
        f"{source.name}: {count:,} file{' is' if count == 1 else 's are'} ignored: {in_words(source.skipped)}; see "
        f"`vitrail data inspect {source.root}`"
    )


def ignored_files(root: Path) -> Counter[str]:
    """Count the files that are not used as images in all splits of a folder: reason -> how many."""
    ignored: Counter[str] = Counter()
    layout = find_layout(root)
    for folder in layout.splits.values() or [layout.base]:
        with suppress(DataError):  # a split without an image: opening it reports that
            list_images(root, enumerate(find_classes(root, folder, ignored).values()), ignored, outer=True)
    count_beside(layout, ignored)
    return ignored


def in_words(ignored: Counter[str], most: int = 5) -> str:
    """Join the most frequent reasons into a phrase."""
    words = [f"{count:,} x {reason}" for reason, count in ignored.most_common(most)]
    return "; ".join(words) + ("; ..." if len(ignored) > most else "")


def read_split_options(root: Path | str, options: dict[str, str], *others: str) -> tuple[int, float, float]:
    """Return the seed and the fractions for validation and test; `others` are options that are read elsewhere."""
    take_options(str(root), options, (*DEFAULTS, *others))
    values = DEFAULTS | options
    try:
        seed, validation, test = int(values["seed"]), float(values["validation"]), float(values["test"])
    except ValueError as error:
        raise ConfigError(f"{root}: options {options}: {error}") from error
    if seed < 0 or validation < 0 or test < 0 or not validation + test < 1:
        raise ConfigError(
            f"{root}: options {options}: seed >= 0, validation and test fractions whose sum is below 1"
        )
    return seed, validation, test
