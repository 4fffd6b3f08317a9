"""Write a data set as decisions have it: a list of its images with their labels, or a copy of them as class folders.

    DATA, decisions.json ──► LIST.csv or LIST.jsonl    for `DATA?labels=LIST`; images are not copied
                         └─► OUT/train/cat/1.jpg       a copy, in folders of splits where the data has its own

The data is never changed, and nothing is overwritten: a list is a new file, a copy is a new folder, or one that the
same call began and did not complete. Neither may lie inside the data. What was written is opened and compared.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from PIL import Image

from vitrail.curate.build_index import files_folder
from vitrail.data.decisions import Action, read_decisions
from vitrail.data.readers.fingerprint import digest
from vitrail.data.sources import DataSet, Source
from vitrail.errors import ConfigError, DataError, ImageError
from vitrail.inference.sort_images import MAX_NAME, folder_names, harmless, make_folder
from vitrail.runtime.files import atomic_file, check_writable
from vitrail.runtime.progress import progress

LISTS = (".csv", ".jsonl")
MARK = ".vitrail-copy"  # of a folder in which a copy was begun: a digest of what is copied
CLASSES = "classes.json"  # the names of classes whose folders are called otherwise
# How files begin, which have no names where they are stored.
BEGINNINGS = {
    b"\xff\xd8": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"RIFF": ".webp", b"BM": ".bmp", b"II*\0": ".tif",
    b"MM\0*": ".tif", b"\0\0\0\x0cjP": ".jp2", b"P": ".ppm",
}  # fmt: skip


@dataclass
class Applied:
    """The result of `apply_decisions`."""

    out: Path
    counts: dict[Action, int]  # images that were kept, relabelled and dropped
    images: dict[str, int]  # that were written, by split
    emptied: list[str]  # classes that lost all their images
    use: str  # the new data set, as it is named
    unreadable: list[str] = field(default_factory=list)  # messages about images that were not copied

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "out": str(self.out)}


def apply_decisions(path: str | Path, data: str, out: str | Path, *, copy: bool = False) -> Applied:
    """Write the corrected list or, with `copy`, the corrected copy of a data set."""
    out, counts, data_set = Path(out), read_decisions(path).counts, DataSet(data)
    before = open_splits(data_set)
    root = check_place(out, before, data_set, copy=copy)
    decided = DataSet(data)
    earlier = decided.changes.get("decisions")
    decided.changes["decisions"] = str(path) if earlier is None else f"{earlier},{path}"
    splits = open_splits(decided)
    emptied = sorted(classes_with_images(before) - classes_with_images(splits))
    here = data_set.base if root and Path(data_set.base).absolute() == Path(root) else root
    use = str(out) if copy else f"{here}?labels={quote(str(out), safe='/')}"
    applied = Applied(out, counts, {name: len(part) for name, part in splits.items()}, emptied, use)
    own = not data_set.reader.cut
    if copy:
        copy_images(splits, own, applied)
    else:
        write_list(splits, own, applied)
    return applied


def open_splits(data_set: DataSet) -> dict[str, Source]:
    """Return all splits of a data set; of those that vitrail cuts from a small one, some may have no image."""
    splits: dict[str, Source] = {}
    for name in data_set.splits:
        try:
            splits[name] = data_set.whole(name)
        except DataError:
            if not splits or not data_set.reader.cut:
                raise
    return splits


def check_place(out: Path, splits: dict[str, Source], data_set: DataSet, *, copy: bool) -> str | None:
    """Return the folder that the data is in, if it is one of images. Raise ConfigError where `out` is taken or inside
    the data, and for a list of images that are no files."""
    roots = {files_folder(source) for source in splits.values()}
    root = roots.pop() if len(roots) == 1 else None
    for place in filter(None, (root, data_set.base)):
        if Path(place).is_dir() and out.resolve().is_relative_to(Path(place).resolve()):
            raise ConfigError(f"{out} is inside of the data, which is not changed: choose a place outside")
    if copy:
        if out.is_symlink() or (out.exists() and not out.is_dir()):
            raise ConfigError(f"{out} exists and is not a folder: choose another name")
    elif root is None:
        raise ConfigError(f"{data_set.where} is no folder of images, which a list could name: use --copy")
    elif out.suffix.lower() not in LISTS:
        raise ConfigError(f"{out}: a list ends in {' or '.join(LISTS)}; with --copy, --out is a folder")
    elif out.exists() or out.is_symlink():
        raise ConfigError(f"{out} exists, and nothing is overwritten: choose another name")
    check_writable(out.parent)
    return root


def classes_with_images(splits: dict[str, Source]) -> set[str]:
    return {part.class_names[label] for part in splits.values() for label in np.unique(part.labels)}


# --- a list ---


def write_list(splits: dict[str, Source], own: bool, applied: Applied) -> None:
    """Write a row for each image, with its split where the data has `own` ones."""
    rows = list_rows(splits, own)
    names = ["file_name", "label", *(["split"] if own else [])]
    text = io.StringIO()
    if applied.out.suffix.lower() == ".csv":
        csv.writer(text, lineterminator="\n").writerows([names, *rows])
    else:
        text.writelines(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
    with atomic_file(applied.out) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8", newline="")
    try:
        listed = DataSet(applied.use, empty_classes=True)  # and without a note on what it does not name
        if list_rows(open_splits(listed), own) != rows:
            raise DataError("names of images or classes are not read as they are written")
    except (DataError, ConfigError) as error:
        applied.out.unlink()
        raise DataError(f"the corrected list cannot be used, and was removed: {error}. Try --copy") from error


def list_rows(splits: dict[str, Source], own: bool) -> list[list[str]]:
    """Return name, class and, if they count, split of every image, by name."""
    return sorted(
        [part.key(i), part.class_names[part.labels[i]], *([name] if own else [])]
        for name, part in splits.items()
        for i in range(len(part))
    )


# --- a copy ---


def copy_images(splits: dict[str, Source], own: bool, applied: Applied) -> None:
    """Write each image into the folder of its class, below that of its split where the data has `own` ones."""
    out = applied.out
    begin_copy(out, digest(*(part.fingerprint() for part in splits.values())))
    folders = folder_names(dict.fromkeys(name for part in splits.values() for name in part.class_names))
    titles = {folder: name for name, folder in folders.items() if folder != name}
    if titles:
        write_once(out / CLASSES, (json.dumps(titles, indent=2) + "\n").encode())
    written: Counter[tuple[str, str]] = Counter()  # (split, class)
    taken: dict[Path, set[str]] = {}  # folder -> names in it
    for split, part in splits.items():
        around = out / harmless(split) if own else out
        make_folder(around)
        files = files_folder(part) is not None
        for i in progress(range(len(part)), len(part), f"copy {part.name}"):
            label = part.class_names[part.labels[i]]
            try:
                image = encoded(part.read(i).image)
            except (DataError, ImageError) as error:
                applied.unreadable.append(str(error))
                applied.images[split] -= 1
                continue
            place = around / folders[label]
            if place not in taken:
                make_folder(place)
                taken[place] = set()
            write_once(place / free_name(part.key(i), i, image, taken[place], is_file=files), image)
            written[split if own else "", label] += 1
    check_copy(out, own, written)
    (out / MARK).unlink()


def begin_copy(out: Path, mark: str) -> None:
    """Make the folder of a copy; ConfigError unless it is new, empty, or was begun by the same call."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / MARK
    if any(out.iterdir()) and (file.is_symlink() or not file.is_file() or file.read_bytes() != mark.encode()):
        raise ConfigError(f"{out} has other files, and nothing is overwritten: choose a new folder")
    with atomic_file(file) as temporary:
        temporary.write_text(mark)


def encoded(image: bytes | np.ndarray) -> bytes:
    """Return an image as a file; pixels become PNG."""
    if isinstance(image, bytes):
        return image
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def free_name(key: str, index: int, image: bytes, taken: set[str], *, is_file: bool) -> str:
    """Return a name for the file of an image that none in its folder has: its own, if it is a file."""
    if is_file:
        stem, ending = os.path.splitext(key.rpartition("/")[2])  # noqa: PTH122 - a key is no path
    else:
        ending = next((ending for begins, ending in BEGINNINGS.items() if image.startswith(begins)), ".jpg")
        stem = harmless(key)
    stem = stem.encode()[:MAX_NAME].decode("utf-8", "ignore")
    name = f"{stem}{ending}"
    while name.casefold() in taken:
        name, stem = f"{stem} ({index}){ending}", f"{stem}_"
    taken.add(name.casefold())
    return name


def write_once(path: Path, content: bytes) -> None:
    """Write a file; one that a call before has written completely stays."""
    if path.is_symlink() or (path.exists() and path.read_bytes() != content):
        raise DataError(f"{path} was changed since the copy was begun: choose a new folder")
    if not path.exists():
        with atomic_file(path) as temporary:
            temporary.write_bytes(content)


def check_copy(out: Path, own: bool, written: Counter[tuple[str, str]]) -> None:
    """Raise DataError unless the copy, as a data set, has the images that were written, in their classes."""
    there: Counter[tuple[str, str]] = Counter()
    for split, part in open_splits(DataSet(out)).items():
        for label, number in enumerate(np.bincount(part.labels, minlength=len(part.class_names))):
            there[split if own else "", part.class_names[label]] += int(number)
    if +there != written:
        raise DataError(
            f"{out} has all images, but the names of its folders are not read as splits and classes: rename classes "
            "that are called like splits (train, val, test)"
        )
