"""The layout of a folder of images: which of its folders are splits, which are classes, which files are images.

    root/train/cat/a.jpg       root/val/cat/b.jpg               splits by their names (split_names.py)
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
from vitrail.data.readers.split_names import WORDS, in_order, split_in_folder
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
        if not self.splits:
            place = f" in {_text(self.base)}" if self.base else ""
            return f"{self._count_classes(self.base)}{place}, without splits: split into train, validation and test"
        return "; ".join(
            f"{split} is {_text(folder)}, {self._count_classes(folder)}"
            for split, folder in self.splits.items()
        )

    def _count_classes(self, folder: str) -> str:
        count = len(_folders_in(self.root / folder))
        return f"{count:,} class folder{'' if count == 1 else 's'}"


def find_layout(root: Path) -> Layout:
    """Look at the folders of `root`, down to the classes."""
    folder, name = "", root.resolve().name
    for _ in range(MOST_AROUND):
        names = sub_folders(root, folder, Counter())
        splits = _find_splits(root, folder, names)
        inner = _join(folder, names[0]) if len(names) == 1 else ""
        around = inner and not _has_image(root / folder) and _holds_only_folders(root / inner)
        doubled = inner and names[0].lower() == name.lower()
        if not around or (
            splits and not doubled and len(_find_splits(root, inner, _folders_in(root / inner))) < 2
        ):
            return Layout(root, folder, {split: splits[split] for split in in_order(list(splits))})
        folder, name = inner, names[0]
    raise DataError(f"{root}: folders in folders, {MOST_AROUND} deep; name the one that holds the classes")


def _find_splits(root: Path, folder: str, names: list[str]) -> dict[str, str]:
    """Return {train: seg_train/seg_train, ...} of the folders `names` in root/folder; empty: they are no splits."""
    words = {name: split_in_folder(name) for name in names}
    exact = [name for name in names if name.lower() in WORDS]
    holders = {}  # those that may be splits -> the folder inside that holds the classes
    for name in names:
        path = _join(folder, name)
        if _folders_in(root / path) if name in exact else _holds_only_folders(root / path):
            inside = _look_through(root, path)
            if _folders_in(root / inside):  # else images without classes, as of a test set without labels
                holders[name] = inside
    alone = len(holders) == len(names)
    if holders and (alone or len(holders) > 1) and _all_differ([words[name] for name in holders]):
        chosen = list(holders)
    elif holders:
        chosen = [name for name in exact if name in holders]
    else:  # flat folders; opening one reports what is missing
        named = len(names) > 1 and "train" in words.values() and _all_differ(list(words.values()))
        chosen = names if len(exact) == len(names) or named else []
    splits = {
        str(words[name]): holders.get(name) or _look_through(root, _join(folder, name)) for name in chosen
    }
    if len(splits) < len(chosen):
        raise DataError(f"{root / folder}: two folders for one split among {', '.join(chosen)}")
    return splits


def _all_differ(splits: list[str | None]) -> bool:
    return None not in splits and len(set(splits)) == len(splits)


def _look_through(root: Path, folder: str) -> str:
    """Return the folder that holds the classes: this one, or one inside that it only surrounds."""
    for _ in range(MOST_AROUND):
        names = _folders_in(root / folder)
        if len(names) != 1 or _has_image(root / folder):
            break
        inner = _join(folder, names[0])
        if names[0].lower() != Path(folder).name.lower() and not _holds_only_folders(root / inner):
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
        ignored = (
            "; ".join(f"{count} x {reason}" for reason, count in skipped.items()) or "the folder is empty"
        )
        raise DataError(
            f"{root / folder}: no class folders; images are expected in one sub-folder per class"
            + (f" ({images} images lie in the folder itself)" if images else f" ({ignored})")
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
        paths: list[str] = []
        waiting, places = [folder], []
        while waiting:
            place = waiting.pop()
            here = _list_one(root, place, waiting, skipped)
            paths += here
            places += [place] if here else []
        if places and not outer and (common := os.path.commonpath(places)) not in places:
            unclear[folder] = sorted({Path(place).relative_to(common).parts[0] for place in places})
        images += sorted(map(os.fsencode, paths))
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


def _list_one(root: Path, folder: str, waiting: list[str], skipped: Counter[str]) -> list[str]:
    """List the images of one directory; its sub-folders are added to `waiting`."""
    images = []
    for entry in scan_folder(root / folder):
        name = entry.name
        path = f"{folder}{os.sep}{name}"
        # Plain files first, in one look each: a data set may have millions of them.
        if entry.is_file(follow_symlinks=False):
            if is_image_name(name):
                images.append(path)
            else:
                skipped[why_not(name)] += 1
            continue
        if entry.is_dir(follow_symlinks=False):
            waiting.append(path)
            continue
        kind = entry_kind(entry)
        if kind == "folder":
            skipped[f"a link to a folder is not followed: {_text(path)}"] += 1
        elif not is_image_name(name):
            skipped[why_not(name)] += 1
        elif kind == "other":
            skipped[f"neither a file nor a folder: {_text(path)}"] += 1
        else:
            images.append(path)
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
            images, waiting = 0, [layout.root / layout.base / name]
            while waiting:
                for entry in scan_folder(waiting.pop()):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    else:
                        images += is_image_name(entry.name)
        except DataError:
            skipped[f"{reason}, cannot be listed"] += 1
            continue
        if images:
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


def _folders_in(folder: Path) -> list[str]:
    """List the folders in a folder; links are not followed."""
    return [entry.name for entry in scan_folder(folder) if entry.is_dir(follow_symlinks=False)]


def _holds_only_folders(folder: Path) -> bool:
    """Tell whether folders lie in it and no image; in a folder of many images, few entries are looked at."""
    any_folder = False
    for entry in scan_folder(folder):
        if entry.is_dir(follow_symlinks=False):
            any_folder = True
        elif is_image_name(entry.name):
            return False
    return any_folder


def _has_image(folder: Path) -> bool:
    entries = scan_folder(folder)
    return any(is_image_name(entry.name) and not entry.is_dir(follow_symlinks=False) for entry in entries)


def _text(name: str) -> str:
    return printable(os.fsencode(name))
