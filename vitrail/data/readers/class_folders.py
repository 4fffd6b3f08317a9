"""Finding the images of a folder: which sub-folders are splits, which are classes, which files are images.

- A sub-folder is a split if its name is a split word (split_names.py) and folders lie in it; so a class may
  be called `train`, and a `test` of images without classes is no split. If all sub-folders have such names
  and none holds folders, they are taken for splits, and opening one says that its class folders are missing.
- Every other sub-folder is a class, named as the folder (in Unicode form NFC).
- Images are found at any depth below the class, by extension, in any case. Names that begin with a dot are
  passed over; every other file that is not taken is counted in `skipped` with the reason and its extension, and
  so are images that lie outside of the class folders.
- A link to a file is followed wherever it points. A link to a folder is never followed: inside the data set
  it would be a loop or a second copy; outside of it, in the place of a split or a class, it is an error.
- A link that points nowhere, or a file without permission, keeps its place, and reading it raises DataError.
  A folder that cannot be listed is an error at once, for nobody knows what it holds.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from vitrail.data.decode import CONVERT
from vitrail.data.readers.names import printable
from vitrail.data.readers.split_names import WORDS, in_order
from vitrail.errors import DataError

EXTENSIONS = frozenset((
    ".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".j2k", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm",
    ".pgm", ".pbm", ".pnm", ".avif",
))  # fmt: skip
ENDINGS = f"image files end in {', '.join(sorted(EXTENSIONS))}"
HEIC = frozenset((".heic", ".heif", ".hif"))


def find_splits(root: Path) -> dict[str, str]:
    """{train: train, validation: val, ...}: the folders that are splits; empty: they are classes."""
    folders = _folders(root, "", Counter())
    words = [name for name in folders if name.lower() in WORDS]
    filled = [name for name in words if _folders(root, name, Counter())]
    if filled or len(words) < len(folders):
        words = filled
    splits = {WORDS[name.lower()]: name for name in words}
    if len(splits) < len(words):
        raise DataError(f"{root}: two folders for one split among {', '.join(words)}")
    return splits


def find_classes(root: Path, folder: str, skipped: Counter[str]) -> dict[str, str]:
    """{class name: its folder below root}, sorted by name, for the classes in root/folder."""
    classes: dict[str, str] = {}
    for name in _folders(root, folder, skipped):
        title = unicodedata.normalize("NFC", printable(os.fsencode(name)))
        if title in classes:
            raise DataError(f"{root / folder}: two folders for class {title!r}, written in two Unicode forms")
        classes[title] = f"{folder}{os.sep}{name}" if folder else name
    if not classes:
        images = sum(_is_image_name(entry.name) for entry in _scan(root / folder))
        raise DataError(
            f"{root / folder}: no class folders; images are expected in one sub-folder per class"
            + (f" ({images} images lie in the folder itself)" if images else f" ({_found(skipped)})")
        )
    return dict(sorted(classes.items()))


def count_beside(root: Path, splits: dict[str, str], skipped: Counter[str]) -> None:
    """Count the images beside the splits, which nobody reads: in root itself, and in folders that are no splits."""
    beside = ", ".join(splits[name] for name in in_order(list(splits)))
    for name in _folders(root, "", skipped):
        if name in splits.values():
            continue
        folder = f"{printable(os.fsencode(name))}, a folder beside {beside}"
        try:
            images = sum(_is_image_name(entry.name) for entry in _scan(root / name))
        except DataError:
            skipped[f"{folder}, cannot be listed"] += 1
            continue
        if images:
            skipped[f"an image in {folder}"] += images


def list_images(
    root: Path, folders: Iterable[tuple[int, str]], skipped: Counter[str]
) -> tuple[list[bytes], np.ndarray]:
    """Paths below root and labels (n,) of every image in the folders [(label, path below root)], sorted in each."""
    images: list[bytes] = []
    labels: list[int] = []
    for label, folder in folders:
        found: list[str] = []
        below = [folder]
        while below:
            found += _list_one(root, below.pop(), below, skipped)
        images += sorted(map(os.fsencode, found))
        labels += [label] * len(found)
    if not images:
        raise DataError(f"{root}: no class folder has an image; {ENDINGS}")
    return images, np.array(labels, dtype=np.int64)


def _list_one(root: Path, folder: str, below: list[str], skipped: Counter[str]) -> list[str]:
    """The images of one directory; its sub-folders are added to `below`."""
    images = []
    for entry in _scan(root / folder):
        name = entry.name
        relative = f"{folder}{os.sep}{name}"
        # Plain files first, in one look each: a data set may have millions of them.
        if entry.is_file(follow_symlinks=False):
            if name[name.rfind(".") :].lower() in EXTENSIONS:
                images.append(relative)
            else:
                skipped[_why_not(name)] += 1
            continue
        if entry.is_dir(follow_symlinks=False):
            below.append(relative)
            continue
        kind = _target(entry)
        if kind == "folder":
            skipped[f"a link to a folder is not followed: {printable(os.fsencode(relative))}"] += 1
        elif not _is_image_name(name):
            skipped[_why_not(name)] += 1
        elif kind == "other":
            skipped[f"neither a file nor a folder: {printable(os.fsencode(relative))}"] += 1
        else:
            images.append(relative)
    return images


def _folders(root: Path, folder: str, skipped: Counter[str]) -> list[str]:
    """The sub-folders of root/folder; a link that leads out of root would be missed here: it is refused."""
    names = []
    for entry in _scan(root / folder):
        if entry.is_dir(follow_symlinks=False):
            names.append(entry.name)
        elif _target(entry) == "folder":
            if not Path(entry.path).resolve().is_relative_to(root.resolve()):
                raise DataError(
                    f"{entry.path}: a link to a folder outside of the data set is not followed; move the "
                    "folder here, or link its files"
                )
            skipped[f"a link to a folder is not followed: {printable(os.fsencode(entry.name))}"] += 1
        elif _is_image_name(entry.name):
            skipped[f"an image outside of the class folders ({_extension(entry.name)})"] += 1
        elif _extension(entry.name) in HEIC:
            skipped[_why_not(entry.name)] += 1
    return names


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a directory that are not hidden."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {error.strerror}") from error


def _target(entry: os.DirEntry[str]) -> str:
    """What an entry is, behind links: file, folder, other (a pipe), or nothing."""
    try:
        mode = entry.stat().st_mode
    except OSError:  # a link to nowhere, or in a circle
        return "nothing"
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"


def _is_image_name(name: str) -> bool:
    return name[name.rfind(".") :].lower() in EXTENSIONS


def _extension(name: str) -> str:
    return printable(os.fsencode(Path(name).suffix.lower())) or "no extension"


def _why_not(name: str) -> str:
    ending = _extension(name)
    if ending in HEIC:
        return f"HEIC is not read: {CONVERT} ({ending})"
    return f"not an image by its extension ({ending})"


def _found(skipped: Counter[str]) -> str:
    return "; ".join(f"{count} x {reason}" for reason, count in skipped.items()) or "nothing lies there"
