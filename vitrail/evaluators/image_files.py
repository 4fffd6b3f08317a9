"""Files, folders and patterns, as people name images -> the files: in Python and on the command line alike."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from vitrail.data.readers.class_folders import EXTENSIONS
from vitrail.errors import DataError


def find_images(given: Sequence[str]) -> list[Path]:
    """Files as they are; the images in folders and below, hidden ones apart, and what glob patterns match; sorted."""
    found: list[Path] = []
    for text in given:
        path = Path(text)
        if re.match(r"https?:/", text):
            raise DataError(f"{text} is a web address: download it first, and give the file")
        if path.is_dir():
            matches = sorted(p for p in path.rglob("*") if is_image(p.relative_to(path)) and p.is_file())
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


def is_image(path: Path) -> bool:
    """By its name; hidden files and folders are not for people (._photo.jpg, .thumbnails)."""
    return path.suffix.lower() in EXTENSIONS and not any(part.startswith(".") for part in path.parts)
