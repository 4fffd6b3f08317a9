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
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.readers.class_names import with_titles
from vitrail.data.readers.file_names import (
    EXTENSIONS,
    UNREAD,
    Names,
    entry_kind,
    file_extension,
    is_image_name,
    printable,
    scan_folder,
    walk_images,
    why_not,
)
from vitrail.data.readers.fingerprint import digest, digest_files
from vitrail.data.sources import Example, Reader, Source, read_image_file, take_options
from vitrail.data.splits import SPLITS, WORDS, find_split, in_order, split_in_name, stratified
from vitrail.errors import ConfigError, DataError
from vitrail.runtime.log import note

DEFAULTS = {"seed": "0", "validation": "0.1", "test": "0.1"}  # how one folder is split
ENDINGS = f"image files end in {', '.join(sorted(EXTENSIONS))}"
LEFT_OUT = ("empty", "unknown")  # class folders: without images in train; in other splits alone
MOST_AROUND = 16  # folders around folders that are looked through


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


def ignored_files(layout: Layout) -> Counter[str]:
    """Count the files that are not used as images in all splits of a folder: reason -> how many."""
    ignored: Counter[str] = Counter()
    for folder in layout.splits.values() or [layout.base]:
        with suppress(DataError):  # a split without an image: opening it reports that
            classes = find_classes(layout.root, folder, ignored)
            list_images(layout.root, enumerate(classes.values()), ignored, outer=True)
    count_beside(layout, ignored)
    return ignored


def describe_ignored(ignored: Counter[str], most: int = 5) -> str:
    """Join the most frequent reasons into a phrase."""
    words = [f"{count:,} x {reason}" for reason, count in ignored.most_common(most)]
    return "; ".join(words) + ("; ..." if len(ignored) > most else "")


@dataclass(frozen=True)
class Layout:
    """The folders below `root`. All paths are relative to it; "" is root itself."""

    root: Path
    base: str  # the folder in which the splits lie, or where there are none the classes
    splits: dict[str, str]  # split, in order -> the folder that holds its classes

    def __str__(self) -> str:
        """Describe how the folder is read."""
        counts = {}
        for folder in self.splits.values() or [self.base]:
            count = len(_folders_in(self.root / folder))
            counts[folder] = f"{count:,} class folder{'' if count == 1 else 's'}"
        if not self.splits:
            place = f" in {printable(self.base)}" if self.base else ""
            return f"{counts[self.base]}{place}, without splits: split into train, validation and test"
        return "; ".join(
            f"{split} is {printable(folder)}, {counts[folder]}" for split, folder in self.splits.items()
        )


def find_layout(root: Path) -> Layout:
    """Look at the folders of `root`, down to the classes."""
    folder, name = "", root.resolve().name
    for _ in range(MOST_AROUND):
        names = sub_folders(root, folder, Counter())
        splits = _find_splits(root, folder, names)
        around = len(names) == 1 and _folders_in(root / folder, alone=True) == names
        inner = str(Path(folder, names[0])) if around else ""
        within = _folders_in(root / inner, alone=True) if around else []
        doubled = around and names[0].lower() == name.lower()
        if not within or (splits and not doubled and len(_find_splits(root, inner, within)) < 2):
            return Layout(root, folder, {split: splits[split] for split in in_order(list(splits))})
        folder, name = inner, names[0]
    raise DataError(f"{root}: folders in folders, {MOST_AROUND} deep; name the one that holds the classes")


def _find_splits(root: Path, folder: str, names: list[str]) -> dict[str, str]:
    """Return {train: seg_train/seg_train, ...} of the folders `names` in root/folder; empty: they are no splits."""
    words = {name: split_in_name(name) for name in names}
    exact = [name for name in names if name.lower() in WORDS]
    holders = {}  # those that may be splits -> the folder inside that holds the classes
    for name in names:
        if _folders_in(root / folder / name, alone=name not in exact):
            inside = _look_through(root, str(Path(folder, name)))
            if _folders_in(root / inside):  # else images without classes, as of a test set without labels
                holders[name] = inside
    candidates = list(holders) or names
    distinct = {words[name] for name in candidates}
    all_differ = None not in distinct and len(distinct) == len(candidates)
    if holders:
        plain = all_differ and (len(holders) == len(names) or len(holders) > 1)
        chosen = list(holders) if plain else [name for name in exact if name in holders]
    else:  # flat folders; opening one reports what is missing
        plain = all_differ and len(names) > 1 and "train" in distinct
        chosen = names if plain or len(exact) == len(names) else []
    splits = {
        str(words[name]): holders.get(name) or _look_through(root, str(Path(folder, name))) for name in chosen
    }
    if len(splits) < len(chosen):
        raise DataError(f"{root / folder}: two folders for one split among {', '.join(chosen)}")
    return splits


def _look_through(root: Path, folder: str) -> str:
    """Return the folder that holds the classes: this one, or one inside that it only surrounds."""
    for _ in range(MOST_AROUND):
        names = _folders_in(root / folder, alone=True)
        if len(names) != 1:
            break
        inner = str(Path(folder, names[0]))
        if names[0].lower() != Path(folder).name.lower() and not _folders_in(root / inner, alone=True):
            break
        folder = inner
    return folder


def _folders_in(folder: Path, *, alone: bool = False) -> list[str]:
    """List the folders in a folder; links are not followed. With `alone`, none if an image lies beside them."""
    names = []
    for entry in scan_folder(folder):
        if entry.is_dir(follow_symlinks=False):
            names.append(entry.name)
        elif alone and is_image_name(entry.name):  # of many images, few are looked at
            return []
    return names


def sub_folders(root: Path, folder: str, skipped: Counter[str]) -> list[str]:
    """List the sub-folders of root/folder; a link that leads out of root would be missed here: it is an error."""
    names = []
    for entry in scan_folder(root / folder):
        if entry.is_dir(follow_symlinks=False):
            names.append(entry.name)
        elif entry_kind(entry) == "folder":
            if not Path(entry.path).resolve().is_relative_to(root.resolve()):
                raise DataError(
                    f"{entry.path}: a link to a folder outside of the data set is not followed; move the "
                    "folder here, or link its files"
                )
            skipped[f"a link to a folder is not followed: {printable(entry.name)}"] += 1
        elif is_image_name(entry.name):
            skipped[f"an image outside of the class folders ({file_extension(entry.name)})"] += 1
        elif file_extension(entry.name) in UNREAD:
            skipped[why_not(entry.name)] += 1
    return names


def find_classes(root: Path, folder: str, skipped: Counter[str]) -> dict[str, str]:
    """Return {class name: its folder below root}, sorted by name, for the classes in root/folder."""
    classes: dict[str, str] = {}
    for name in sub_folders(root, folder, skipped):
        title = unicodedata.normalize("NFC", printable(name))
        if title in classes:
            raise DataError(f"{root / folder}: two folders for class {title!r}, written in two Unicode forms")
        classes[title] = str(Path(folder, name))
    if not classes:
        images = sum(is_image_name(entry.name) for entry in scan_folder(root / folder))
        ignored = "; ".join(f"{count} x {reason}" for reason, count in skipped.items())
        there = f"{images} images lie in the folder itself" if images else ignored or "the folder is empty"
        raise DataError(
            f"{root / folder}: no class folders; images are expected in one sub-folder per class ({there})"
        )
    return dict(sorted(classes.items()))


def list_images(
    root: Path, folders: Iterable[tuple[int, str]], skipped: Counter[str], *, outer: bool = False
) -> tuple[list[bytes], np.ndarray]:
    """List every image in the folders [(label, path below root)]: paths below root, sorted in each, and labels (n,).

    DataError where a class has all its images in several folders of its own, unless `outer` declares it one.
    """
    images: list[bytes] = []
    labels: list[int] = []
    unclear: dict[str, list[str]] = {}  # class folder -> the folders in it
    for label, folder in folders:
        by_folder = walk_images(root, folder, skipped)
        if by_folder and not outer and (common := os.path.commonpath(by_folder)) not in by_folder:
            unclear[folder] = sorted({Path(place).relative_to(common).parts[0] for place in by_folder})
        paths = sorted(os.fsencode(path) for here in by_folder.values() for path in here)
        images += paths
        labels += [label] * len(paths)
    if unclear:
        folder, inner = next(iter(unclear.items()))
        names = ", ".join(map(printable, inner[:4])) + (", ..." if len(inner) > 4 else "")
        others = f"; {len(unclear) - 1} more like it" if len(unclear) > 1 else ""
        raise DataError(
            f"{root / folder}: no images but {len(inner)} folders of them ({names}){others}. If it is one class, "
            f"write {root}?classes=outer. If the folders in it are the classes, name the folder around them. If it "
            "is a part of the data, rename it to train, validation or test"
        )
    if not images:
        raise DataError(f"{root}: no class folder has an image; {ENDINGS}")
    return images, np.array(labels, dtype=np.int64)


def count_beside(layout: Layout, skipped: Counter[str]) -> None:
    """Count the images beside the splits, which are not used: in no folder, and in folders that are not splits."""
    if not layout.splits:
        return
    tops = [Path(folder).relative_to(layout.base).parts[0] for folder in layout.splits.values()]
    for name in sub_folders(layout.root, layout.base, skipped):  # which counts those in no folder
        if name in tops:
            continue
        reason = f"{printable(name)}, a folder beside {', '.join(map(printable, tops))}"
        try:
            by_folder = walk_images(layout.root, str(Path(layout.base, name)), Counter())
        except DataError:
            skipped[f"{reason}, cannot be listed"] += 1
            continue
        if images := sum(map(len, by_folder.values())):
            skipped[f"an image in {reason}"] += images
