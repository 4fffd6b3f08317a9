"""Finding the images of a folder: which sub-folders are classes, which files are images. Which folder holds the
classes is found in folder_layout.py.

- Every sub-folder is a class, named as the folder (in Unicode form NFC).
- Images are found at any depth below the class, by extension, in any case. A class whose images all lie in several
  folders of their own may be several classes, or a part of the data: that is asked, and `photos?classes=outer` is
  the answer that it is one.
- Names that begin with a dot, and the __MACOSX of unpacked archives, are passed over; every other file that is not
  taken is counted in `skipped` with the reason and its extension, and so are images that lie outside of the class
  folders.
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
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from vitrail.data.decode import CONVERT
from vitrail.data.readers.names import printable
from vitrail.errors import DataError

EXTENSIONS = frozenset((
    ".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".j2k", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm",
    ".pgm", ".pbm", ".pnm", ".avif",
))  # fmt: skip
ENDINGS = f"image files end in {', '.join(sorted(EXTENSIONS))}"
HEIC = frozenset((".heic", ".heif", ".hif"))
# Images too, by their extension, of kinds that are not read: drawings, cameras' raw files, high range.
UNREAD = HEIC | frozenset((
    ".tga", ".psd", ".psb", ".xcf", ".svg", ".ico", ".icns", ".jxl", ".jxr", ".jpx", ".dds", ".pcx", ".exr", ".hdr",
    ".raw", ".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".sr2", ".srf", ".orf", ".rw2", ".raf", ".pef",
    ".srw", ".3fr", ".x3f",
))  # fmt: skip


def find_classes(root: Path, folder: str, skipped: Counter[str]) -> dict[str, str]:
    """{class name: its folder below root}, sorted by name, for the classes in root/folder."""
    classes: dict[str, str] = {}
    for name in sub_folders(root, folder, skipped):
        title = unicodedata.normalize("NFC", printable(os.fsencode(name)))
        if title in classes:
            raise DataError(f"{root / folder}: two folders for class {title!r}, written in two Unicode forms")
        classes[title] = below(folder, name)
    if not classes:
        images = sum(is_image_name(entry.name) for entry in scan_folder(root / folder))
        raise DataError(
            f"{root / folder}: no class folders; images are expected in one sub-folder per class"
            + (f" ({images} images lie in the folder itself)" if images else f" ({_found(skipped)})")
        )
    return dict(sorted(classes.items()))


def list_images(
    root: Path, folders: Iterable[tuple[int, str]], skipped: Counter[str], *, outer: bool = False
) -> tuple[list[bytes], np.ndarray]:
    """Paths below root and labels (n,) of every image in the folders [(label, path below root)], sorted in each.

    DataError where a class has all its images in several folders of its own, unless `outer` says that it is one.
    """
    images: list[bytes] = []
    labels: list[int] = []
    unclear: dict[str, list[str]] = {}  # class folder -> the folders in it
    for label, folder in folders:
        found: list[str] = []
        waiting, places = [folder], []
        while waiting:
            place = waiting.pop()
            here = _list_one(root, place, waiting, skipped)
            found += here
            places += [place] if here else []
        if places and not outer and (common := os.path.commonpath(places)) not in places:
            unclear[folder] = sorted({Path(place).relative_to(common).parts[0] for place in places})
        images += sorted(map(os.fsencode, found))
        labels += [label] * len(found)
    if unclear:
        raise _question(root, unclear)
    if not images:
        raise DataError(f"{root}: no class folder has an image; {ENDINGS}")
    return images, np.array(labels, dtype=np.int64)


def _question(root: Path, unclear: dict[str, list[str]]) -> DataError:
    """Ask what folders are that hold only folders, of which `unclear` has the names."""
    folder, inner = next(iter(unclear.items()))
    names = ", ".join(printable(os.fsencode(name)) for name in inner[:4]) + (
        ", ..." if len(inner) > 4 else ""
    )
    others = f"; {len(unclear) - 1} more like it" if len(unclear) > 1 else ""
    return DataError(
        f"{root / folder}: no images but {len(inner)} folders of them ({names}){others}. If it is one class, say so: "
        f"{root}?classes=outer. If the folders in it are the classes, name the folder around them. If it is a part "
        "of the data, call it train, validation or test"
    )


def _list_one(root: Path, folder: str, waiting: list[str], skipped: Counter[str]) -> list[str]:
    """The images of one directory; its sub-folders are added to `waiting`."""
    images = []
    for entry in scan_folder(root / folder):
        name = entry.name
        relative = f"{folder}{os.sep}{name}"
        # Plain files first, in one look each: a data set may have millions of them.
        if entry.is_file(follow_symlinks=False):
            if name[name.rfind(".") :].lower() in EXTENSIONS:
                images.append(relative)
            else:
                skipped[why_not(name)] += 1
            continue
        if entry.is_dir(follow_symlinks=False):
            waiting.append(relative)
            continue
        kind = target_of(entry)
        if kind == "folder":
            skipped[f"a link to a folder is not followed: {printable(os.fsencode(relative))}"] += 1
        elif not is_image_name(name):
            skipped[why_not(name)] += 1
        elif kind == "other":
            skipped[f"neither a file nor a folder: {printable(os.fsencode(relative))}"] += 1
        else:
            images.append(relative)
    return images


def sub_folders(root: Path, folder: str, skipped: Counter[str]) -> list[str]:
    """The sub-folders of root/folder; a link that leads out of root would be missed here: it is refused."""
    names = []
    for entry in scan_folder(root / folder):
        if entry.is_dir(follow_symlinks=False):
            names.append(entry.name)
        elif target_of(entry) == "folder":
            if not Path(entry.path).resolve().is_relative_to(root.resolve()):
                raise DataError(
                    f"{entry.path}: a link to a folder outside of the data set is not followed; move the "
                    "folder here, or link its files"
                )
            skipped[f"a link to a folder is not followed: {printable(os.fsencode(entry.name))}"] += 1
        elif is_image_name(entry.name):
            skipped[f"an image outside of the class folders ({extension_of(entry.name)})"] += 1
        elif extension_of(entry.name) in UNREAD:
            skipped[why_not(entry.name)] += 1
    return names


def below(folder: str, name: str) -> str:
    """The path of `name` in a folder, where "" is the folder that paths begin at."""
    return f"{folder}{os.sep}{name}" if folder else name


def scan_folder(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The entries of a directory that are meant for people."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.name != "__MACOSX":
                    yield entry
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {error.strerror}") from error


def target_of(entry: os.DirEntry[str]) -> str:
    """What an entry is, behind links: file, folder, other (a pipe), or nothing."""
    try:
        mode = entry.stat().st_mode
    except OSError:  # a link to nowhere, or in a circle
        return "nothing"
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"


def is_image_name(name: str) -> bool:
    return name[name.rfind(".") :].lower() in EXTENSIONS


def extension_of(name: str) -> str:
    """In small letters, for people: `.heic`, or `no extension`."""
    return printable(os.fsencode(Path(name).suffix.lower())) or "no extension"


def why_not(name: str) -> str:
    """Why a file of this name is not taken as an image."""
    ending = extension_of(name)
    if ending in HEIC:
        return f"HEIC is not read: {CONVERT} ({ending})"
    if ending in UNREAD:
        return f"{ending[1:].upper()} is not read: convert to JPEG or PNG first ({ending})"
    return f"not an image by its extension ({ending})"


def _found(skipped: Counter[str]) -> str:
    return "; ".join(f"{count} x {reason}" for reason, count in skipped.items()) or "nothing lies there"
