"""Folders of images: one sub-folder per class, with or without splits. folder_layout.py has the rules.

    root/train/cat/a.jpg  root/val/cat/b.jpg   splits as they are (their names: splits.py)
    root/cat/a.jpg        root/dog/b.jpg       one set, split by a seed, class by class (splits.py): 80% train,
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
from vitrail.data.sources import Example, Source, read_image_file, take_options
from vitrail.data.splits import find_split, stratified
from vitrail.errors import ConfigError, DataError
from vitrail.runtime.log import note

DEFAULTS = {"seed": "0", "validation": "0.1", "test": "0.1"}  # how one folder is split


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
    seed, validation, test = read_split_options(root, options, "classes")
    layout, skipped = find_layout(root), Counter[str]()
    split = find_split(split, folder_splits(layout, options), str(root))
    if layout.splits:
        classes = {  # split -> {class name: folder}; files are counted of the split that is opened
            name: find_classes(root, folder, skipped if name == split else Counter())
            for name, folder in layout.splits.items()
        }
        class_names = sorted(classes["train"] if "train" in classes else set().union(*classes.values()))
        for name, folder in layout.splits.items():
            if extra := sorted(set(classes[name]) - set(class_names)):
                raise DataError(
                    f"{root / folder}: classes that train does not have: {', '.join(extra[:8])}; images "
                    f"without labels do not belong in {root}"
                )
    else:
        classes = {split: find_classes(root, layout.base, skipped)}
        class_names = list(classes[split])
    number = {name: label for label, name in enumerate(class_names)}
    folders = [(number[name], folder) for name, folder in classes[split].items()]
    files, labels = list_images(root, folders, skipped, outer="classes" in options)
    present = set(labels.tolist())
    empty = tuple(folder for label, folder in folders if label not in present)
    count_beside(layout, skipped)
    if not layout.splits:
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


def folder_splits(layout: Layout, options: dict[str, str]) -> list[str]:
    """List the splits of a folder of images; ConfigError for options that do not apply to it."""
    read_split_options(layout.root, options, "classes")
    if options.get("classes", "outer") != "outer":
        raise ConfigError(
            f"{layout.root}: option classes={options['classes']}; outer is allowed: see docs/data.md"
        )
    splits, cut = list(layout.splits), {name: options[name] for name in DEFAULTS if name in options}
    if splits and cut:
        raise ConfigError(
            f"{layout.root} has its own splits ({', '.join(splits)}): options {cut} do not apply"
        )
    return splits or ["train", "validation", "test"]


_noted: set[Path] = set()  # data sets whose ignored files this process has reported


def check_files(source: Source) -> None:
    """Raise DataError for a class folder without an image, which can neither be learned nor measured.

    Report once per data set that files are ignored, those of the split that is opened first.
    """
    if not isinstance(source, FolderSource):
        return
    if source.empty:
        others = f" (and {len(source.empty) - 1} more)" if len(source.empty) > 1 else ""
        raise DataError(
            f"{source.root / source.empty[0]}: a class without images{others}; fill it or remove it ({ENDINGS})"
        )
    first_process = os.environ.get("RANK", "0") == "0"  # of those of torchrun
    if source.skipped and source.root not in _noted and first_process:
        _noted.add(source.root)
        count = source.skipped.total()
        note(
            f"{source.name}: {count:,} file{' is' if count == 1 else 's are'} ignored: {in_words(source.skipped)}; "
            f"see `vitrail data inspect {source.root}`"
        )


def ignored_files(layout: Layout) -> Counter[str]:
    """Count the files that are not used as images in all splits of a folder: reason -> how many."""
    ignored: Counter[str] = Counter()
    for folder in layout.splits.values() or [layout.base]:
        with suppress(DataError):  # a split without an image: opening it reports that
            classes = find_classes(layout.root, folder, ignored)
            list_images(layout.root, enumerate(classes.values()), ignored, outer=True)
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
