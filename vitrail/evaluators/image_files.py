"""Files, folders and patterns, as people name images -> the files: in Python and on the command line alike."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from vitrail.data.readers.class_folders import (
    EXTENSIONS,
    UNREAD,
    extension_of,
    is_image_name,
    scan_folder,
    target_of,
    why_not,
)
from vitrail.errors import DataError
from vitrail.runtime.log import note


def find_images(given: Sequence[str]) -> list[Path]:
    """Files as they are; the images in folders and below, hidden ones apart, and what glob patterns match; sorted.

    In a folder everything with the extension of an image is taken, links that lead nowhere included: whoever reads it
    says what is wrong. Other kinds of images, and links to folders, are passed over, which is noted.
    """
    found: list[Path] = []
    for text in given:
        path = Path(text)
        if re.match(r"https?:/", text):
            raise DataError(f"{text} is a web address: download it first, and give the file")
        if path.is_dir():
            matches = _images_below(path)
        elif any(c in text for c in "*?[") and not path.exists():
            matches = sorted(Path(match) for match in glob.glob(text, recursive=True))  # noqa: PTH207 - absolute too
        else:
            matches = [path]
        if not matches:
            raise DataError(f"{text}: no images there (looked for {', '.join(sorted(EXTENSIONS))})")
        found += matches
    if not found:
        raise DataError("no image was given: name files, folders or patterns")
    return found


def _images_below(folder: Path) -> list[Path]:
    images: list[Path] = []
    passed: dict[str, list[Path]] = {}  # why it is no image that can be read -> which
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        try:
            entries = list(scan_folder(place))
        except DataError:
            if place == folder:
                raise
            passed.setdefault("a folder that cannot be listed", []).append(place)
            continue
        for entry in entries:
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            elif target_of(entry) == "folder":
                passed.setdefault("a link to a folder, which is not followed", []).append(path)
            elif is_image_name(entry.name):
                images.append(path)
            elif extension_of(entry.name) in UNREAD:
                passed.setdefault(why_not(entry.name), []).append(path)
    if passed:
        reasons = [f"{len(paths):,} x {why}, first {min(paths)}" for why, paths in sorted(passed.items())]
        note(f"{folder}: passed over {'; '.join(reasons)}")
    return sorted(images)
