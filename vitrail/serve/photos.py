"""A collection of photographs in named classes, as a folder that `vitrail finetune --data` reads.

    DIR/cups/collection.json         {"model": "ti8-64"}: its base
    DIR/cups/photos/classes.txt      c001 <TAB> mug
    DIR/cups/photos/c001/3f0c....jpg   named by the digest of its bytes, so that each is there once
    DIR/cups/data/1, DIR/cups/runs/1   the photographs of a fine-tuning, and its run (finetuning.py)

Names of classes come from strangers and are only ever text in a file; folders have numbers.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.data.bounded_files import parse_object, read_file, read_text
from vitrail.data.decode import FORMATS, decode
from vitrail.data.readers.file_names import is_image_name
from vitrail.errors import ConfigError, DataError
from vitrail.inspection.pictures import shrink
from vitrail.runtime.files import atomic_file
from vitrail.runtime.log import visible

MOST_PHOTOS, MOST_CLASSES, MOST_BYTES = 2000, 100, 2 << 30
MOST_NAME = 80  # characters of a class
THUMBNAIL = 256  # pixels of a side
ID = re.compile(r"[0-9a-f]{24}")
FOLDER = re.compile(r"c[0-9]{3}")
SUFFIXES = {"JPEG": "jpg", "JPEG2000": "jp2", "TIFF": "tif"}
CARD, TITLES = "collection.json", "classes.txt"


@dataclass(frozen=True)
class Photo:
    """A photograph of a collection."""

    id: str
    path: Path
    class_name: str


class Collection:
    """A folder of photographs. One thread at a time may change it."""

    def __init__(self, folder: Path) -> None:
        """Read a collection."""
        self.folder, self.name, self.root = folder, folder.name, folder / "photos"
        text = read_text(folder / CARD, "a collection", 1 << 16)
        self.model = str(parse_object(text, str(folder / CARD), {"model": str})["model"])
        self.titles: dict[str, str] = {}  # folder: class
        titles = self.root / TITLES
        if titles.is_file():
            lines = [line.split("\t", 1) for line in read_text(titles, "class names", 1 << 16).splitlines()]
            self.titles = {line[0]: line[1] for line in lines if len(line) == 2 and FOLDER.fullmatch(line[0])}
        self.photos: dict[str, Photo] = {}
        for place, title in self.titles.items():
            for path in sorted((self.root / place).iterdir() if (self.root / place).is_dir() else ()):
                if ID.fullmatch(path.stem) and is_image_name(path.name) and path.is_file():
                    self.photos[path.stem] = Photo(path.stem, path, title)
        self.bytes = sum(photo.path.stat().st_size for photo in self.photos.values())

    @classmethod
    def create(cls, folder: Path, model: str) -> Collection:
        (folder / "photos").mkdir(parents=True)
        with atomic_file(folder / CARD) as path:
            path.write_text(json.dumps({"model": model}), encoding="utf-8")
        return cls(folder)

    @property
    def class_names(self) -> list[str]:
        """Return the classes that have photographs, in the order in which they came."""
        used = {photo.class_name for photo in list(self.photos.values())}  # a copy: others may add meanwhile
        return [title for title in list(self.titles.values()) if title in used]

    def add(self, data: bytes, class_name: str) -> tuple[Photo, bool]:
        """Store a photograph that can be decoded; return it, and whether it is new. One that is there stays."""
        name = hashlib.sha256(data).hexdigest()[:24]
        if name in self.photos:
            return self.photos[name], False
        if len(self.photos) >= MOST_PHOTOS or self.bytes + len(data) > MOST_BYTES:
            raise ConfigError(
                f"{self.name} is full: at most {MOST_PHOTOS:,} photographs of together {MOST_BYTES >> 30} GiB"
            )
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:  # decoded before, within the bounds
            kind = str(image.format)
        path = self.place_of(class_name) / f"{name}.{SUFFIXES.get(kind, kind.lower())}"
        with atomic_file(path) as temporary:
            temporary.write_bytes(data)
        self.photos[name] = Photo(name, path, class_name)
        self.bytes += len(data)
        return self.photos[name], True

    def place_of(self, class_name: str) -> Path:
        """Return the folder of a class, a new one for a new class."""
        for place, title in self.titles.items():
            if title == class_name:
                return self.root / place
        if len(self.class_names) >= MOST_CLASSES:
            raise ConfigError(f"{self.name} has {MOST_CLASSES} classes, the most that it may have")
        used = self.class_names
        self.titles = {place: title for place, title in self.titles.items() if title in used}
        place = next(f"c{i:03}" for i in range(1, 1000) if f"c{i:03}" not in self.titles)
        self.titles[place] = class_name
        self.write_titles(self.root)
        return self.root / place

    def write_titles(self, root: Path) -> None:
        with atomic_file(root / TITLES) as path:
            lines = (f"{place}\t{title}\n" for place, title in self.titles.items())
            path.write_text("".join(lines), encoding="utf-8")

    def remove(self, photo: Photo) -> None:
        self.bytes -= photo.path.stat().st_size
        photo.path.unlink()
        del self.photos[photo.id]

    def labels(self) -> np.ndarray:
        """Return the classes of all photographs, int64 (n,)."""
        number = {name: i for i, name in enumerate(self.class_names)}
        return np.array([number[photo.class_name] for photo in self.photos.values()], np.int64)

    def copy_to(self, folder: Path) -> None:
        """Write the photographs as they are now, where later changes do not reach them."""
        for photo in self.photos.values():
            place = folder / photo.path.parent.name
            place.mkdir(parents=True, exist_ok=True)
            try:
                os.link(photo.path, place / photo.path.name)
            except OSError:  # a file system without links
                shutil.copyfile(photo.path, place / photo.path.name)
        self.write_titles(folder)


def check_class_name(text: str) -> str:
    """Return the name of a class; ConfigError for one that cannot be shown or stored."""
    name = text.strip()
    if not 0 < len(name) <= MOST_NAME or visible(name) != name:
        raise ConfigError(f"a class has a name of 1 to {MOST_NAME} characters that can be seen")
    return name


def thumbnail(photo: Photo) -> bytes:
    """Return a small JPEG of a photograph."""
    try:
        data = read_file(photo.path, MOST_BYTES)
    except OSError as error:
        raise DataError(f"photograph {photo.id} cannot be read: {error.strerror or error}") from error
    file = io.BytesIO()
    Image.fromarray(shrink(decode(data, name=photo.id), THUMBNAIL)).save(file, "JPEG", quality=85)
    return file.getvalue()
