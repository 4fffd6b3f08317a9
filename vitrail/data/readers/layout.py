"""The folders of a data set in class folders: which are splits, which are classes, and what lies in them.

folder.py describes the layouts that people use, and makes a source of them. All paths are below `root`; files that
are not used are counted with the reason.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data.readers.file_names import (
    EXTENSIONS,
    UNREAD,
    entry_kind,
    file_extension,
    is_image_name,
    printable,
    scan_folder,
    walk_images,
    why_not,
)
from vitrail.data.splits import WORDS, in_order, split_in_name
from vitrail.errors import DataError

ENDINGS = f"image files end in {', '.join(sorted(EXTENSIONS))}"
MOST_AROUND = 16  # folders around folders that are looked through


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
        names = [entry.name for entry in scan_folder(root / folder)]
        images, nothing = sum(map(is_image_name, names)), "no images" if names else "the folder is empty"
        ignored = "; ".join(f"{count} x {reason}" for reason, count in skipped.items())
        there = f"{images} images lie in the folder itself" if images else ignored or nothing
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


def ignored_files(layout: Layout) -> Counter[str]:
    """Count the files that are not used as images in all splits of a folder: reason -> how many."""
    ignored: Counter[str] = Counter()
    for folder in layout.splits.values() or [layout.base]:
        with suppress(DataError):  # a split without an image: opening it reports that
            classes = find_classes(layout.root, folder, ignored)
            list_images(layout.root, enumerate(classes.values()), ignored, outer=True)
    count_beside(layout, ignored)
    return ignored
