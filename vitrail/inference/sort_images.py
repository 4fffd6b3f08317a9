"""Images sorted into folders by their predicted class: a link to each, or a copy.

    DIR/tabby/photo.jpg   DIR/unsure/...   DIR/unreadable/...

Class names are strangers' text and may look like `../../etc`; file names may repeat. So each class has a folder name
made of harmless characters, unlike all others, directly in DIR; nothing is written through a link that is found
there, and nothing is overwritten. The names depend on the rows alone: after a kill, the same call completes them.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from vitrail.errors import ConfigError, DataError
from vitrail.inference.prediction_files import as_utf8
from vitrail.models.calibration import UNSURE
from vitrail.runtime.files import atomic_file
from vitrail.runtime.progress import progress

UNREADABLE = "unreadable"
MAX_NAME = 120  # bytes of a folder's name; file systems allow 255
MARK = ".vitrail-sorted"  # of a folder that this module fills
# Names that Windows reserves.
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def folder_names(class_names: Iterable[str]) -> dict[str, str]:
    """Return class name -> folder name: one path component, and no two alike on any file system."""
    taken = {UNSURE, UNREADABLE}
    folders = {UNSURE: UNSURE}
    for number, name in enumerate(class_names):
        plain = harmless(name)
        folder = plain
        while folder.casefold() in taken:
            folder = f"{plain} ({number})"
            plain = f"{plain}_"
        taken.add(folder.casefold())
        folders[as_utf8(name)] = folder
    return folders


def harmless(name: str) -> str:
    """Return a name as one component of a path: letters, digits and a few other characters; never empty or hidden."""
    text = unicodedata.normalize("NFC", as_utf8(name))
    text = "".join(c if c.isalnum() or c in " -_.,()+'&" else "_" for c in text)
    text = text.encode()[:MAX_NAME].decode("utf-8", "ignore").strip(" .")
    return f"class {text}".strip() if not text or RESERVED.fullmatch(text) else text


def check_folder(folder: Path, mark: str) -> None:
    """Raise an error unless a folder is new, empty, or was begun by a call with the same `mark`."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ConfigError(f"--sort-into {folder} is not a folder")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    file = folder / MARK
    if not file.is_file() or file.is_symlink() or file.read_bytes()[:MAX_NAME] != mark.encode():
        raise ConfigError(f"--sort-into {folder} has other files: choose a new folder")


def sort_images(
    paths: Sequence[str],
    classes: Iterable[str | None],
    folder: Path,
    class_names: Sequence[str],
    *,
    by: Literal["link", "copy"] = "link",
    mark: str = "",
) -> None:
    """Put each image into the folder of its class; None is the class of images that could not be read."""
    check_folder(folder, mark)
    with atomic_file(folder / MARK) as temporary:
        temporary.write_text(mark)
    folders = folder_names(class_names)
    taken: dict[str, set[str]] = {}  # folder -> names in it
    rows = progress(zip(paths, classes, strict=True), len(paths), f"sort into {folder}")
    for row, (path, name) in enumerate(rows):
        place = folder / (UNREADABLE if name is None else folders[name])
        if place.name not in taken:
            make_folder(place)
            taken[place.name] = set()
        source = Path(path).absolute()
        target, stem = source.name, os.fsdecode(os.fsencode(source.stem)[:MAX_NAME])
        while target.casefold() in taken[place.name]:
            target, stem = f"{stem} ({row}){source.suffix}", f"{stem}_"
        taken[place.name].add(target.casefold())
        put(source, place / target, by)


def make_folder(place: Path) -> None:
    try:
        place.mkdir(exist_ok=True)
    except FileExistsError as error:
        raise DataError(f"{place} is no folder") from error
    if place.is_symlink():
        raise DataError(f"{place} is a link, which is not followed: remove it")


def put(source: Path, target: Path, by: Literal["link", "copy"]) -> None:
    """Link to a file, or copy it with its times, unless that was done before."""
    if (
        by == "link" or not source.is_file()
    ):  # what cannot be copied is linked to, so that it can be looked for
        try:
            target.symlink_to(source)
        except FileExistsError:
            if not target.is_symlink() or os.readlink(target) != str(source):  # noqa: PTH115 - the text itself
                raise
        return
    there, stat = target.exists(), source.stat()
    if target.is_symlink() or (there and target.stat().st_size != stat.st_size):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    if not there:
        with atomic_file(target) as temporary:
            shutil.copy2(source, temporary)
