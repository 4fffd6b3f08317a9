"""Folders of images: one sub-folder per class, with or without splits. The rules are in folder_layout.py and
class_folders.py.

    root/train/cat/a.jpg  root/val/cat/b.jpg   splits as they are (their names: split_names.py)
    root/cat/a.jpg        root/dog/b.jpg       one set, split by a seed, class by class (stratify.py):
                                               80% train, 10% validation, 10% test;
                                               or as `photos?seed=1&validation=0.2&test=0` says

Class names are the names of the class folders, sorted; a `classes.txt` with lines `folder <TAB> name` renames
them. Every split has the classes of train, so that a label means the same in all of them. `photos?classes=outer`
says that class folders are classes, though their images lie in folders of their own.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitrail.data.readers.class_folders import ENDINGS, find_classes, list_images
from vitrail.data.readers.class_names import with_titles
from vitrail.data.readers.fingerprint import digest, digest_files
from vitrail.data.readers.folder_layout import Layout, count_beside, find_layout
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
    # What was not taken as an image: reason -> how many.
    skipped: Counter[str] = field(default_factory=Counter)
    empty: tuple[str, ...] = ()  # class folders without an image, below root

    def __len__(self) -> int:
        return len(self.files)

    def key(self, index: int) -> str:
        return printable(self.files[index]).replace(os.sep, "/")

    def path(self, index: int) -> Path:
        return self.root / os.fsdecode(self.files[index])

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
    fractions = read_split_options(root, cut, "classes")
    layout = find_layout(root)
    split = find_split(split, folder_splits(root, options), str(root))
    return (
        _open_split_folder(layout, split, outer)
        if layout.splits
        else _open_part(layout, split, outer, *fractions)
    )


def folder_splits(root: Path, options: dict[str, str]) -> list[str]:
    """The splits that a folder of images has."""
    _, cut = _take_outer(root, options)
    read_split_options(root, cut, "classes")
    splits = find_layout(root).splits
    if splits and cut:
        raise ConfigError(f"{root} has splits of its own ({', '.join(splits)}): options {cut} do not apply")
    return list(splits) or ["train", "validation", "test"]


def _take_outer(root: Path, options: dict[str, str]) -> tuple[bool, dict[str, str]]:
    """Whether `classes=outer` is among the options, and the others."""
    if options.get("classes", "outer") != "outer":
        raise ConfigError(f"{root}: option classes={options['classes']}; outer is allowed: see docs/data.md")
    return "classes" in options, {name: value for name, value in options.items() if name != "classes"}


def _open_split_folder(layout: Layout, split: str, outer: bool) -> FolderSource:
    root, folders, skipped = layout.root, layout.splits, Counter[str]()
    classes = {
        name: find_classes(root, folder, skipped if name == split else Counter())
        for name, folder in folders.items()
    }
    class_names = sorted(classes["train"] if "train" in classes else set().union(*classes.values()))
    for name, found in classes.items():
        extra = sorted(set(found) - set(class_names))
        if extra:
            raise DataError(
                f"{root / folders[name]}: classes that train does not have: {', '.join(extra[:8])}; images "
                f"without labels do not belong in {root}"
            )
    number = {name: label for label, name in enumerate(class_names)}
    here = [(number[name], folder) for name, folder in classes[split].items()]
    images, labels = list_images(root, here, skipped, outer=outer)
    count_beside(layout, skipped)
    name, titles = f"{root.resolve().name}:{split}", with_titles(class_names, root / layout.base)
    return FolderSource(name, root, Names(images), labels, titles, skipped, _empty(here, labels))


def _open_part(
    layout: Layout, split: str, outer: bool, seed: int, validation: float, test: float
) -> FolderSource:
    root, skipped = layout.root, Counter[str]()
    classes = find_classes(root, layout.base, skipped)
    here = list(enumerate(classes.values()))
    keys, labels = list_images(root, here, skipped, outer=outer)
    chosen = stratified(keys, labels, seed=seed, validation=validation, test=test)[split]
    if not len(chosen):
        raise DataError(
            f"{root}: no images for {split!r}: {len(keys)} images in {len(classes)} classes, of each class "
            f"{validation:g} for validation and {test:g} for test, rounded; options behind the path like "
            "?validation=0.2&test=0.2 change that"
        )
    files = Names([keys[i] for i in chosen])
    name, titles = f"{root.resolve().name}:{split}", with_titles(list(classes), root / layout.base)
    return FolderSource(name, root, files, labels[chosen], titles, skipped, _empty(here, labels))


def _empty(folders: list[tuple[int, str]], labels: np.ndarray) -> tuple[str, ...]:
    """Those of the folders [(label, path)] whose label no image has."""
    present = set(labels.tolist())
    return tuple(folder for label, folder in folders if label not in present)


def refuse_empty_classes(source: Source) -> None:
    """A class folder without an image: DataError, for nobody can learn it or be measured on it."""
    if isinstance(source, FolderSource) and source.empty:
        others = f" (and {len(source.empty) - 1} more)" if len(source.empty) > 1 else ""
        raise DataError(
            f"{source.root / source.empty[0]}: a class without images{others}; fill it or remove it ({ENDINGS})"
        )


_noted: set[Path] = set()  # data sets of which this process has said what is ignored


def note_ignored(source: Source) -> None:
    """Say once that files are ignored; of a data set in several splits, those of the split that is opened first."""
    if not isinstance(source, FolderSource) or not source.skipped or source.root in _noted:
        return
    if os.environ.get("RANK", "0") != "0":  # torchrun has started others: the first one speaks
        return
    _noted.add(source.root)
    note(
        f"{source.name}: {source.skipped.total():,} files are ignored: {in_words(source.skipped)}; "
        f"`vitrail data inspect {source.root}` says more"
    )


def ignored_files(root: Path) -> Counter[str]:
    """What is not taken as an image in all splits of a folder together: reason -> how many."""
    ignored: Counter[str] = Counter()
    layout = find_layout(root)
    for folder in layout.splits.values() or [layout.base]:
        with suppress(DataError):  # a split without an image, of which opening it speaks
            list_images(root, enumerate(find_classes(root, folder, ignored).values()), ignored, outer=True)
    count_beside(layout, ignored)
    return ignored


def in_words(ignored: Counter[str], most: int = 5) -> str:
    """The most frequent reasons, for people."""
    words = [f"{count:,} x {reason}" for reason, count in ignored.most_common(most)]
    return "; ".join(words) + ("; ..." if len(ignored) > most else "")


def read_split_options(root: Path | str, options: dict[str, str], *others: str) -> tuple[int, float, float]:
    """Seed, and the fractions of each class for validation and test; `others` are options that are read elsewhere."""
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
