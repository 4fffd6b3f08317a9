"""File names: which are images, which are the shards of a split; and long lists of names.

    train-00000-of-00004.parquet ..   data/train-00000-of-00004-8f2a.parquet ..   train800.parquet
    train-000000.tar ..               imagenet-val-000012.tar ..                  train/00000.tar 00001.tar ..

Shards lie in the folder itself, else in `data/` below it, else in sub-folders named after splits. A name without its
shard number is the stem; the split word in the stem (splits.py) is the split. A stem without such a word is `train`
when it is the only one, else its own split; stems that would share one split each keep their own name. A split can
also be named by its stem (`train800`). With `-of-00004` in the names, all four have to exist.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from vitrail.data.decode import WITH_HEIF
from vitrail.data.heif import heif_installed
from vitrail.data.splits import WORDS, find_split, in_order, split_in_name
from vitrail.errors import DataError

HEIC = frozenset((".heic", ".heif", ".hif"))
EXTENSIONS = (HEIC if heif_installed() else frozenset[str]()) | frozenset((
    ".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".j2k", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm",
    ".pgm", ".pbm", ".pnm", ".avif",
))  # fmt: skip
# Images too, by their extension, of kinds that are not supported unless above: drawings, cameras' raw files,
# high range.
UNREAD = HEIC | frozenset((
    ".tga", ".psd", ".psb", ".xcf", ".svg", ".ico", ".icns", ".jxl", ".jxr", ".jpx", ".dds", ".pcx", ".exr", ".hdr",
    ".raw", ".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".sr2", ".srf", ".orf", ".rw2", ".raf", ".pef",
    ".srw", ".3fr", ".x3f",
))  # fmt: skip


def scan_folder(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a directory that are not hidden."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.name != "__MACOSX":
                    yield entry
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {error.strerror}") from error


def walk_images(root: Path, folder: str, skipped: Counter[str]) -> dict[str, list[str]]:
    """Return {folder that has images: their paths} for all folders from root/folder down."""
    images: dict[str, list[str]] = {}
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        here = []
        for entry in scan_folder(root / place):
            path = f"{place}{os.sep}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
                continue
            # Plain files need no further look: a data set may have millions of them.
            kind = "file" if entry.is_file(follow_symlinks=False) else entry_kind(entry)
            if kind == "folder":
                skipped[f"a link to a folder is not followed: {printable(path)}"] += 1
            elif not is_image_name(entry.name):
                skipped[why_not(entry.name)] += 1
            elif kind == "other":
                skipped[f"neither a file nor a folder: {printable(path)}"] += 1
            else:
                here.append(path)
        if here:
            images[place] = here
    return images


def entry_kind(entry: os.DirEntry[str]) -> str:
    """Return the kind of an entry, following links: file, folder, other (a pipe), or nothing."""
    try:
        mode = entry.stat().st_mode
    except OSError:  # a link to nowhere, or in a circle
        return "nothing"
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"


def is_image_name(name: str) -> bool:
    return name[name.rfind(".") :].lower() in EXTENSIONS


def file_extension(name: str) -> str:
    """Return the extension in lower case: `.heic`, or `no extension`."""
    return printable(Path(name).suffix.lower()) or "no extension"


def why_not(name: str) -> str:
    """Return why a file with this name is not used as an image."""
    ending = file_extension(name)
    if ending in HEIC:
        return f"HEIC is not supported: {WITH_HEIF} ({ending})"
    if ending in UNREAD:
        return f"{ending[1:].upper()} is not supported: convert to JPEG or PNG first ({ending})"
    return f"not an image by its extension ({ending})"


@dataclass(frozen=True)
class Shards:
    """The files of one split, in order."""

    stem: str
    files: tuple[Path, ...]


_SHARD = re.compile(r"((?P<stem>.+?)[-_])??(?P<number>\d+)(-of-(?P<total>\d+)(-[0-9a-f]+)?)?")


def find_shards(path: Path, suffix: str) -> dict[str, Shards]:
    """Return {split: its shards}, train first. `path` is a folder, or one file that is a split by itself."""
    stems: dict[str, list[tuple[int, str, int, Path]]] = defaultdict(list)  # number, name, of how many, file
    for folder, file in [("", path)] if path.is_file() else _shard_files(path, suffix):
        name = file.name[: -len(suffix)]
        match = _SHARD.fullmatch(name)
        stem, number, total = (
            (match["stem"] or "train", match["number"], match["total"]) if match else (name, 0, 0)
        )
        stems[folder or stem].append((int(number), file.name, int(total or 0), file))
    words = {stem: split_in_name(stem) for stem in stems}
    times = Counter(words.values())
    splits: dict[str, Shards] = {}
    for stem, shards in stems.items():
        numbers, total = {number for number, *_ in shards}, max(total for _, _, total, _ in shards)
        if path.is_dir() and total and (len(shards) != total or numbers != set(range(total))):
            missing = list(islice((number for number in range(total) if number not in numbers), 8))
            raise DataError(
                f"{path}: {stem!r} has {total} shards by the names of its files, but there are {len(shards)} files; "
                f"missing: {missing}"
            )
        word = words[stem] or ("train" if len(stems) == 1 else None)
        split = word if word is not None and times[words[stem]] == 1 else stem
        splits[split] = Shards(stem, tuple(file for *_, file in sorted(shards)))
    return {split: splits[split] for split in in_order(list(splits))}


def find_split_shards(path: Path, suffix: str, split: str) -> tuple[str, Shards]:
    """Return the split that `split` means, by its name or by the stem of its files, and its shards."""
    splits = find_shards(path, suffix)
    for name, shards in splits.items():
        if shards.stem == split:
            return name, shards
    name = find_split(split, list(splits), str(path))
    return name, splits[name]


def has_shards(folder: Path, suffix: str) -> bool:
    """Tell whether `folder` is a set of shards that end in `suffix`."""
    return bool(_shard_files(folder, suffix))


def _shard_files(folder: Path, suffix: str) -> list[tuple[str, Path]]:
    """List (name of the split folder or empty, file), from the first place that has any."""
    entries = list(scan_folder(folder)) if folder.is_dir() else []
    splits = sorted(entry.name for entry in entries if entry.name.lower() in WORDS)
    for places in ([""], ["data"], splits):
        files = [
            (place if place in splits else "", Path(entry.path))
            for place in places
            if (folder / place).is_dir()
            for entry in sorted(scan_folder(folder / place), key=lambda entry: entry.name)
            if entry.name.lower().endswith(suffix) and entry_kind(entry) == "file"
        ]
        if files:
            return files
    return []


class Names:
    """Read-only list of byte strings in two flat arrays: `names[i]`, `len(names)`.

    A million Python strings held by a data set would be touched, hence copied, by every forked worker that reads
    them (the reference count lives in the string): memory would grow with every batch. Bytes in one array do not.
    """

    def __init__(self, names: Sequence[bytes]) -> None:
        self.bytes = np.frombuffer(b"".join(names), dtype=np.uint8)  # (total,)
        self.ends = np.cumsum([0, *map(len, names)], dtype=np.int64)  # (n + 1,)

    @classmethod
    def from_arrays(cls, data: np.ndarray, ends: np.ndarray) -> Names:
        """Restore names from the arrays `bytes`, uint8, and `ends`, int64, that were kept in a file."""
        if not len(ends) or ends[0] != 0 or ends[-1] != len(data) or (ends[1:] < ends[:-1]).any():
            raise ValueError("these are not the arrays of a list of names")
        names = cls([])
        names.bytes, names.ends = data, ends
        return names

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(f"{index} in a list of {len(self)} names")
        return self.bytes[self.ends[index] : self.ends[index + 1]].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        data = self.bytes.tobytes()
        return (data[start:stop] for start, stop in pairwise(self.ends.tolist()))


def printable(name: str | bytes) -> str:
    """Return a file name as text that can always be printed and stored: bytes that are not UTF-8 become \\\\xNN."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
