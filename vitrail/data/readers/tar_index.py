"""Where the examples of a tar shard lie: built once per shard by reading its headers, then kept in a file.

    shard.tar ──tar_headers.py──► members by key ──► Index(keys, offsets, sizes, labels) ──► shard.tar.index.npz

The index lies beside the shard, or where that folder cannot be written in the cache folder ($XDG_CACHE_HOME,
else ~/.cache, /vitrail/tar). It is used as long as the size and the modification time of the shard are those
that it notes. Members are only read, never unpacked: no name inside an archive becomes a path.

A key is a member's name up to the first dot of its last part, as WebDataset has it: `a/000123.jpg` and
`a/000123.cls` are one example. Its image is the member whose extension is that of an image
(class_folders.py); its label is in `.cls` (a number or a class name) or in `.json` (field `label` or `cls`).
"""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data.readers.class_folders import EXTENSIONS
from vitrail.data.readers.fingerprint import digest, stamp_of
from vitrail.data.readers.names import Names
from vitrail.data.readers.tar_headers import Member, walk
from vitrail.errors import DataError
from vitrail.runtime.files import atomic_file
from vitrail.runtime.npz_members import DAMAGE, read_member

FORMAT = 1  # of the index file
ARRAYS = ("stamp", "keys", "key_ends", "offsets", "sizes", "labels", "label_ends")  # in the index file
INDEX_BYTES = 1 << 16  # that an index may have more than its shard: of its headers
MAX_LABEL_BYTES = 1 << 20  # of a .cls or .json member


@dataclass(frozen=True, eq=False)
class Index:
    """The examples of one shard, in the order of their first members."""

    keys: Names
    offsets: np.ndarray  # int64 (n,): where the image begins in the file; -1: the example has no image
    sizes: np.ndarray  # int64 (n,)
    labels: Names  # as text: a number or a class name
    stamp: tuple[int, int]  # size and modification time of the shard


def read_index(shard: Path) -> Index:
    """The index of `shard`, from its file where there is one that fits, else built and kept."""
    stamp = stamp_of(shard.stat())
    beside = shard.with_name(f"{shard.name}.index.npz")
    cached = _cache_folder() / f"{digest(str(shard.resolve()))}.npz"
    for file in (beside, cached):
        index = _load(file, stamp)
        if index is not None:
            return index
    index = build_index(shard)
    _save(index, beside, cached)
    return index


def build_index(shard: Path) -> Index:
    """Read all headers of a shard."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, str] = {}
    keys: dict[str, None] = {}
    try:
        with shard.open("rb", buffering=0) as archive:
            stamp = stamp_of(os.fstat(archive.fileno()))
            for member in walk(archive.fileno()):
                folder, slash, base = member.name.rpartition("/")
                stem, dot, extension = base.partition(".")
                if not stem or not dot:
                    continue
                key, extension = f"{folder}{slash}{stem}", extension.lower()
                if f".{extension.rpartition('.')[2]}" in EXTENSIONS:
                    if key in images:
                        raise DataError(f"{shard}: two images for {key!r}; one example has one image")
                    images[key] = (member.offset, member.size)
                elif extension in ("cls", "json"):
                    label = _read_label(archive.fileno(), member, shard)
                    if label is not None and labels.setdefault(key, label) != label:
                        raise DataError(f"{shard}: two labels for {key!r}: {labels[key]!r} and {label!r}")
                else:
                    continue
                keys[key] = None
    except (ValueError, OSError) as error:
        raise DataError(f"{shard}: not a whole, uncompressed tar file: {error}") from error
    unlabelled = [key for key in keys if key not in labels]
    if unlabelled:
        raise DataError(
            f"{shard}: {len(unlabelled)} of {len(keys)} examples have no label, first {unlabelled[0]!r}; "
            "a label is a member .cls, or .json with the field label or cls"
        )
    places = np.array([images.get(key, (-1, 0)) for key in keys], dtype=np.int64).reshape(-1, 2)  # (n, 2)
    return Index(
        Names([key.encode("utf-8", "surrogateescape") for key in keys]),
        places[:, 0],
        places[:, 1],
        Names([labels[key].encode("utf-8", "backslashreplace") for key in keys]),
        stamp,
    )


def _read_label(archive: int, member: Member, shard: Path) -> str | None:
    """The label in a .cls or .json member as text; None: a .json that has none."""
    if member.size > MAX_LABEL_BYTES:
        raise DataError(f"{shard}: {member.name!r} has {member.size:,} bytes, too many for a label")
    data = os.pread(archive, member.size, member.offset)
    try:
        if member.name.lower().endswith(".cls"):
            return data.decode().strip()
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{shard}: the label in {member.name!r} cannot be read: {error}") from error
    for field in ("label", "cls"):
        if isinstance(fields, dict) and isinstance(fields.get(field), int | str):
            return str(fields[field])
    return None


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitrail" / "tar"


def _load(file: Path, stamp: tuple[int, int]) -> Index | None:
    """A kept index; None where there is none, or one of another state of the shard, or a broken one."""
    most = stamp[0] + INDEX_BYTES
    try:
        if not file.is_file() or file.stat().st_size > most:
            return None
        with zipfile.ZipFile(file) as archive:
            if sum(member.file_size for member in archive.infolist()) > most:
                return None
            stored = {name: read_member(archive, archive.getinfo(f"{name}.npy")) for name in ARRAYS}
        if stored["stamp"].tolist() != [FORMAT, *stamp]:
            return None
        keys = Names.from_arrays(stored["keys"], stored["key_ends"])
        labels = Names.from_arrays(stored["labels"], stored["label_ends"])
        index = Index(keys, stored["offsets"], stored["sizes"], labels, stamp)
        return index if _sound(index) else None
    except DAMAGE:
        return None


def _sound(index: Index) -> bool:
    """Whether all images lie in the shard, and all labels are text."""
    for places in (index.offsets, index.sizes):
        if places.dtype != np.int64 or places.shape != (len(index.keys),):
            return False
    offsets, sizes, size = index.offsets, index.sizes, index.stamp[0]
    inside = (offsets >= -1) & (offsets <= size) & (sizes >= 0) & (sizes <= size - np.maximum(offsets, 0))
    text, starts = index.labels.bytes, index.labels.ends[:-1]
    text.tobytes().decode()  # UnicodeDecodeError, which is a ValueError
    inner = text[starts[starts < len(text)]] & 0xC0 == 0x80  # a label begins inside of a character
    return len(index.labels) == len(index.keys) and bool(inside.all()) and not inner.any()


def _save(index: Index, *files: Path) -> None:
    """Keep the index in the first of `files` that can be written; else it is built again next time."""
    for file in files:
        try:
            with atomic_file(file) as temporary, temporary.open("wb") as stream:
                np.savez(
                    stream,
                    stamp=np.array([FORMAT, *index.stamp], dtype=np.int64),
                    keys=index.keys.bytes,
                    key_ends=index.keys.ends,
                    offsets=index.offsets,
                    sizes=index.sizes,
                    labels=index.labels.bytes,
                    label_ends=index.labels.ends,
                )
            return
        except OSError:
            continue
