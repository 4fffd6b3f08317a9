"""The layout of a folder of images: which of its folders are splits, which are classes, which files are images.

    root/train/cat/a.jpg       root/val/cat/b.jpg               splits by their names (splits.py)
    root/seg_train/seg_train/cat/a.jpg   root/seg_test/..       the word within a name, and doubled folders
    root/dataset/train/cat/a.jpg                                a single folder around all others
    root/cat/a.jpg             root/dog/b.jpg                   no splits: class folders

Splits
- A folder is a split if its name is a split word and folders lie in it; so a class may be called `train`, and a
  `test` of images without classes is no split.
- Names that only contain a split word (seg_train, test_set, TrainImages) are splits when nothing else can be meant:
  every folder that holds only folders has such a name, each of another split, and there are two of them or no
  folder beside.
- If all folders have names of splits and none holds folders, they are taken for splits, and opening one reports that
  its class folders are missing.
- A folder that holds nothing but one of the same name, as archives are often unpacked, is looked through, and so is
  one that holds nothing but one that holds only folders.

Classes and images
- Every sub-folder is a class, named as the folder (in Unicode form NFC).
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
import stat
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data.decode import CONVERT
from vitrail.data.readers.names import printable
from vitrail.data.splits import WORDS, in_order, split_in_name
from vitrail.errors import DataError

EXTENSIONS = frozenset((
    ".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".j2k", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm",
    ".pgm", ".pbm", ".pnm", ".avif",
))  # fmt: skip
ENDINGS = f"image files end in {', '.join(sorted(EXTENSIONS))}"
HEIC = frozenset((".heic", ".heif", ".hif"))
# Images too, by their extension, of kinds that are not supported: drawings, cameras' raw files, high range.
UNREAD = HEIC | frozenset((
    ".tga", ".psd", ".psb", ".xcf", ".svg", ".ico", ".icns", ".jxl", ".jxr", ".jpx", ".dds", ".pcx", ".exr", ".hdr",
    ".raw", ".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".sr2", ".srf", ".orf", ".rw2", ".raf", ".pef",
    ".srw", ".3fr", ".x3f",
))  # fmt: skip
MOST_AROUND = 16  # folders around folders that are looked through


@dataclass(frozen=True)
class Layout:
    """The folders below `root`. All paths are relative to it; "" is root itself."""

    root: Path
    base: str  # the folder in which the splits lie, or where there are none the classes
    splits: dict[str, str]  # split, in order -> the folder that holds its classes

    def __str__(self) -> str:
        """Say how the folder is read."""
        counts = {}
        for folder in self.splits.values() or [self.base]:
            count = len(_folders_in(self.root / folder))
            counts[folder] = f"{count:,} class folder{'' if count == 1 else 's'}"
        if not self.splits:
            place = f" in {_text(self.base)}" if self.base else ""
            return f"{counts[self.base]}{place}, without splits: split into train, validation and test"
        return "; ".join(
            f"{split} is {_text(folder)}, {counts[folder]}" for split, folder in self.splits.items()
        )


def find_layout(root: Path) -> Layout:
    """Look at the folders of `root`, down to the classes."""
    folder, name = "", root.resolve().name
    for _ in range(MOST_AROUND):
        names = sub_folders(root, folder, Counter())
        splits = _find_splits(root, folder, names)
        around = len(names) == 1 and _folders_in(root / folder, alone=True) == names
        inner = _join(folder, names[0]) if around else ""
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
            inside = _look_through(root, _join(folder, name))
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
        str(words[name]): holders.get(name) or _look_through(root, _join(folder, name)) for name in chosen
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
        inner = _join(folder, names[0])
        if names[0].lower() != Path(folder).name.lower() and not _folders_in(root / inner, alone=True):
            break
        folder = inner
    return folder


def find_classes(root: Path, folder: str, skipped: Counter[str]) -> dict[str, str]:
    """Return {class name: its folder below root}, sorted by name, for the classes in root/folder."""
    classes: dict[str, str] = {}
    for name in sub_folders(root, folder, skipped):
        title = unicodedata.normalize("NFC", _text(name))
        if title in classes:
            raise DataError(f"{root / folder}: two folders for class {title!r}, written in two Unicode forms")
        classes[title] = _join(folder, name)
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
        found = _walk(root, folder, skipped)
        if found and not outer and (common := os.path.commonpath(found)) not in found:
            unclear[folder] = sorted({Path(place).relative_to(common).parts[0] for place in found})
        paths = sorted(os.fsencode(path) for here in found.values() for path in here)
        images += paths
        labels += [label] * len(paths)
    if unclear:
        folder, inner = next(iter(unclear.items()))
        names = ", ".join(map(_text, inner[:4])) + (", ..." if len(inner) > 4 else "")
        others = f"; {len(unclear) - 1} more like it" if len(unclear) > 1 else ""
        raise DataError(
            f"{root / folder}: no images but {len(inner)} folders of them ({names}){others}. If it is one class, "
            f"write {root}?classes=outer. If the folders in it are the classes, name the folder around them. If it "
            "is a part of the data, rename it to train, validation or test"
        )
    if not images:
        raise DataError(f"{root}: no class folder has an image; {ENDINGS}")
    return images, np.array(labels, dtype=np.int64)


def _walk(root: Path, folder: str, skipped: Counter[str]) -> dict[str, list[str]]:
    """Return {folder that has images: their paths} for all folders from root/folder down."""
    images: dict[str, list[str]] = {}
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        here = []
        for entry in scan_folder(root / place):
            path = f"{place}{os.sep}{entry.name}"
            # Plain files first, in one look each: a data set may have millions of them.
            if entry.is_file(follow_symlinks=False):
                kind = "file"
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(path)
                continue
            else:
                kind = entry_kind(entry)
            if kind == "folder":
                skipped[f"a link to a folder is not followed: {_text(path)}"] += 1
            elif not is_image_name(entry.name):
                skipped[why_not(entry.name)] += 1
            elif kind == "other":
                skipped[f"neither a file nor a folder: {_text(path)}"] += 1
            else:
                here.append(path)
        if here:
            images[place] = here
    return images


def count_beside(layout: Layout, skipped: Counter[str]) -> None:
    """Count the images beside the splits, which are not used: in no folder, and in folders that are no splits."""
    if not layout.splits:
        return
    tops = [Path(folder).relative_to(layout.base).parts[0] for folder in layout.splits.values()]
    for name in sub_folders(layout.root, layout.base, skipped):  # which counts those in no folder
        if name in tops:
            continue
        reason = f"{_text(name)}, a folder beside {', '.join(map(_text, tops))}"
        try:
            found = _walk(layout.root, _join(layout.base, name), Counter())
        except DataError:
            skipped[f"{reason}, cannot be listed"] += 1
            continue
        if images := sum(map(len, found.values())):
            skipped[f"an image in {reason}"] += images


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
            skipped[f"a link to a folder is not followed: {_text(entry.name)}"] += 1
        elif is_image_name(entry.name):
            skipped[f"an image outside of the class folders ({file_extension(entry.name)})"] += 1
        elif file_extension(entry.name) in UNREAD:
            skipped[why_not(entry.name)] += 1
    return names


def scan_folder(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a directory that are not hidden."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.name != "__MACOSX":
                    yield entry
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {error.strerror}") from error


def entry_kind(entry: os.DirEntry[str]) -> str:
    """Return the kind of an entry, behind links: file, folder, other (a pipe), or nothing."""
    try:
        mode = entry.stat().st_mode
    except OSError:  # a link to nowhere, or in a circle
        return "nothing"
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"


def is_image_name(name: str) -> bool:
    return name[name.rfind(".") :].lower() in EXTENSIONS


def file_extension(name: str) -> str:
    """Return the extension in lower case: `.heic`, or `no extension`."""
    return _text(Path(name).suffix.lower()) or "no extension"


def why_not(name: str) -> str:
    """Say why a file of this name is not used as an image."""
    ending = file_extension(name)
    if ending in HEIC:
        return f"HEIC is not supported: {CONVERT} ({ending})"
    if ending in UNREAD:
        return f"{ending[1:].upper()} is not supported: convert to JPEG or PNG first ({ending})"
    return f"not an image by its extension ({ending})"


def _join(folder: str, name: str) -> str:
    """Return the path of `name` in a folder, where "" is the folder that paths begin at."""
    return f"{folder}{os.sep}{name}" if folder else name


def _folders_in(folder: Path, *, alone: bool = False) -> list[str]:
    """List the folders in a folder; links are not followed. With `alone`, none if an image lies beside them."""
    names = []
    for entry in scan_folder(folder):
        if entry.is_dir(follow_symlinks=False):
            names.append(entry.name)
        elif alone and is_image_name(entry.name):  # of many images, few are looked at
            return []
    return names


def _text(name: str) -> str:
    return printable(os.fsencode(name))
