"""How a folder of images is laid out: which of its folders are splits, and which folder holds the classes.

    root/train/cat/a.jpg       root/val/cat/b.jpg               splits by their names (split_names.py)
    root/seg_train/seg_train/cat/a.jpg   root/seg_test/..       the word within a name, and doubled folders
    root/dataset/train/cat/a.jpg                                a single folder around all others
    root/cat/a.jpg             root/dog/b.jpg                   no splits: class folders

- A folder is a split if its name is a split word and folders lie in it; so a class may be called `train`, and a
  `test` of images without classes is no split.
- Names that only contain a split word (seg_train, test_set, TrainImages) are splits when nothing else can be meant:
  every folder that holds only folders has such a name, each of another split, and there are two of them or no
  folder beside.
- If all folders have names of splits and none holds folders, they are taken for splits, and opening one says that
  its class folders are missing.
- Looked through are a folder that holds nothing but one of the same name, as archives are often unpacked, and one
  that holds nothing but one that holds only folders.

Folders beside splits are not read; count_beside says what lies there. The classes are found in class_folders.py.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from vitrail.data.readers.class_folders import below, is_image_name, scan_folder, sub_folders
from vitrail.data.readers.names import printable
from vitrail.data.readers.split_names import WORDS, in_order, split_in_folder
from vitrail.errors import DataError

MOST_AROUND = 16  # folders around folders that are looked through


@dataclass(frozen=True)
class Layout:
    """What the folders below `root` are. All paths are below it; "" is root itself."""

    root: Path
    base: str  # the folder in which the splits lie, or where there are none the classes
    splits: dict[str, str]  # split, in order -> the folder that holds its classes

    @property
    def tops(self) -> list[str]:
        """The names in `base` that the folders of the splits have, or begin with."""
        return [Path(folder).relative_to(self.base).parts[0] for folder in self.splits.values()]

    def __str__(self) -> str:
        """How the folder was understood, for people."""
        if not self.splits:
            place = f" in {_text(self.base)}" if self.base else ""
            return f"{self._classes(self.base)}{place}, without splits: cut into train, validation and test"
        return "; ".join(
            f"{split} is {_text(folder)}, {self._classes(folder)}" for split, folder in self.splits.items()
        )

    def _classes(self, folder: str) -> str:
        count = len(_names(self.root / folder))
        return f"{count:,} class folder{'' if count == 1 else 's'}"


def find_layout(root: Path) -> Layout:
    """Look at the folders of `root`, down to the classes."""
    folder, name = "", root.resolve().name
    for _ in range(MOST_AROUND):
        names = sub_folders(root, folder, Counter())
        splits = _find_splits(root, folder, names)
        inner = below(folder, names[0]) if len(names) == 1 else ""
        around = inner and not _has_image(root / folder) and _holds_only_folders(root / inner)
        doubled = inner and names[0].lower() == name.lower()
        if not around or (
            splits and not doubled and len(_find_splits(root, inner, _names(root / inner))) < 2
        ):
            return Layout(root, folder, {split: splits[split] for split in in_order(list(splits))})
        folder, name = inner, names[0]
    raise DataError(f"{root}: folders in folders, {MOST_AROUND} deep; name the one that holds the classes")


def count_beside(layout: Layout, skipped: Counter[str]) -> None:
    """Count the images beside the splits, which nobody reads: in no folder, and in folders that are no splits."""
    if not layout.splits:
        return
    splits = ", ".join(map(_text, layout.tops))
    for name in sub_folders(layout.root, layout.base, skipped):  # which counts those in no folder
        if name in layout.tops:
            continue
        folder = f"{_text(name)}, a folder beside {splits}"
        try:
            images = _images_below(layout.root / layout.base / name)
        except DataError:
            skipped[f"{folder}, cannot be listed"] += 1
            continue
        if images:
            skipped[f"an image in {folder}"] += images


def _find_splits(root: Path, folder: str, names: list[str]) -> dict[str, str]:
    """{train: seg_train/seg_train, ...} of the folders `names` in root/folder; empty: they are no splits."""
    words = {name: split_in_folder(name) for name in names}
    exact = [name for name in names if name.lower() in WORDS]
    holders = {}  # those that may be splits -> the folder inside that holds the classes
    for name in names:
        path = below(folder, name)
        if _names(root / path) if name in exact else _holds_only_folders(root / path):
            inside = _look_through(root, path)
            if _names(root / inside):  # else images without classes, as of a test set without labels
                holders[name] = inside
    alone = len(holders) == len(names)
    if holders and (alone or len(holders) > 1) and _all_differ([words[name] for name in holders]):
        chosen = list(holders)
    elif holders:
        chosen = [name for name in exact if name in holders]
    else:  # flat folders, of which opening one says what is missing
        named = len(names) > 1 and "train" in words.values() and _all_differ(list(words.values()))
        chosen = names if len(exact) == len(names) or named else []
    splits = {
        str(words[name]): holders.get(name) or _look_through(root, below(folder, name)) for name in chosen
    }
    if len(splits) < len(chosen):
        raise DataError(f"{root / folder}: two folders for one split among {', '.join(chosen)}")
    return splits


def _all_differ(splits: list[str | None]) -> bool:
    return None not in splits and len(set(splits)) == len(splits)


def _look_through(root: Path, folder: str) -> str:
    """The folder that holds the classes: this one, or one around which it lies."""
    for _ in range(MOST_AROUND):
        names = _names(root / folder)
        if len(names) != 1 or _has_image(root / folder):
            break
        inner = below(folder, names[0])
        if names[0].lower() != Path(folder).name.lower() and not _holds_only_folders(root / inner):
            break
        folder = inner
    return folder


def _names(folder: Path) -> list[str]:
    """The folders in a folder; links are not followed."""
    return [entry.name for entry in scan_folder(folder) if entry.is_dir(follow_symlinks=False)]


def _holds_only_folders(folder: Path) -> bool:
    """Whether folders lie in it and no image; of a folder of many images, only the first entries are looked at."""
    found = False
    for entry in scan_folder(folder):
        if entry.is_dir(follow_symlinks=False):
            found = True
        elif is_image_name(entry.name):
            return False
    return found


def _has_image(folder: Path) -> bool:
    entries = scan_folder(folder)
    return any(is_image_name(entry.name) and not entry.is_dir(follow_symlinks=False) for entry in entries)


def _images_below(folder: Path) -> int:
    images, waiting = 0, [folder]
    while waiting:
        for entry in scan_folder(waiting.pop()):
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            else:
                images += is_image_name(entry.name)
    return images


def _text(folder: str) -> str:
    return printable(os.fsencode(folder))
