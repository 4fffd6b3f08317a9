"""WebDataset tar shards with random access, by an index that is built once per shard and then kept in a file.

    shard.tar ──tar_headers.py──► Index(keys, offsets, sizes, labels) ──► shard.tar.index.npz ──► bytes of an example

A key is a member's name up to the first dot of its last part, as in WebDataset: `a/000123.jpg` and `a/000123.cls`
are one example. Its image is the member with the extension of an image; its label is in `.cls` (a number or a class
name) or in `.json` (field `label` or `cls`). Labels that are numbers in all splits are class numbers, named by a
`classes.txt` or `classes.json` beside the shards, else by their digits. Other labels are names, and the classes are
the names sorted: those of train where there is such a split, else of all splits.

The index lies beside the shard, or where that folder cannot be written in ~/.cache/vitrail/tar ($XDG_CACHE_HOME).
It is used as long as the shard has the size and modification time that it records. Members are only read, never
unpacked: no name inside an archive becomes a path. Shards are uncompressed, for random access.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data.readers.class_names import check_labels, number_labels, number_names, read_class_names
from vitrail.data.readers.file_names import EXTENSIONS, Names, find_shards, find_split_shards, printable
from vitrail.data.readers.fingerprint import digest, digest_files, file_stamp
from vitrail.data.readers.tar_headers import Member, walk
from vitrail.data.sources import MAX_FILE_BYTES, Example, Source
from vitrail.data.splits import locate
from vitrail.errors import DataError, ImageError
from vitrail.runtime.files import atomic_file
from vitrail.runtime.npz_members import DAMAGE, read_member
from vitrail.runtime.progress import progress

FORMAT = 1  # of the index file
ARRAYS = ("stamp", "keys", "key_ends", "offsets", "sizes", "labels", "label_ends")  # in the index file
INDEX_BYTES = 1 << 16  # that an index may be larger than its shard
MAX_LABEL_BYTES = 1 << 20  # of a .cls or .json member
NUMBER = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True, eq=False)
class TarSource(Source):
    """The examples of some tar shards."""

    name: str
    files: tuple[Path, ...]
    file_keys: list[str]  # the same, as paths below the folder of the data set
    indexes: list[Index]
    ends: np.ndarray  # int64 (files,): examples up to and with each file
    labels: np.ndarray  # int64 (n,)
    class_names: list[str]

    def key(self, index: int) -> str:
        f, i = locate(index, self.ends)
        return f"{self.file_keys[f]}:{printable(self.indexes[f].keys[i])}"

    def read(self, index: int) -> Example:
        key = self.key(index)
        f, i = locate(index, self.ends)
        offset, size = int(self.indexes[f].offsets[i]), int(self.indexes[f].sizes[i])
        if offset < 0:
            raise DataError(f"{key}: the example has a label but no image")
        if not 0 < size <= MAX_FILE_BYTES:
            raise ImageError(f"{key}: an image of {size:,} bytes; 1 to {MAX_FILE_BYTES:,} are read")
        try:
            with self.files[f].open("rb", buffering=0) as file:
                if file_stamp(os.fstat(file.fileno())) != self.indexes[f].stamp:
                    raise DataError(f"{key}: the shard was changed since it was opened as a data set")
                data = os.pread(file.fileno(), size, offset)
        except OSError as error:
            raise DataError(f"{key}: cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise DataError(f"{key}: the shard ends inside of this image")
        return Example(data, int(self.labels[index]), key)

    def fingerprint(self) -> str:
        return digest(digest_files(zip(self.file_keys, self.files, strict=True)), *self.class_names)


def open_tar(path: Path, split: str) -> TarSource:
    """Open one split of a folder of tar shards, or one shard."""
    name, shards = find_split_shards(path, ".tar", split)
    root = path if path.is_dir() else path.parent
    indexes = {file: read_index(file) for file in progress(shards.files, len(shards.files), "tar shards")}
    texts = [label.decode() for index in indexes.values() for label in index.labels]
    if not texts:
        raise DataError(f"{path}: no examples in the {len(shards.files)} shards of {name!r}")

    class_names = read_class_names(root)
    numbers = all(map(NUMBER.fullmatch, texts))
    if class_names is None:
        # Nothing names the classes: they are the labels that occur, numbers in all splits, or names in train.
        splits = find_shards(path, ".tar")
        found: dict[str, set[str]] = {}  # split -> its labels
        for other in splits if numbers or "train" not in splits else ["train"]:
            read = (indexes.get(file) or read_index(file) for file in splits[other].files)
            found[other] = {label.decode() for index in read for label in index.labels}
        labels_there = set().union(*found.values())
        numbers = numbers and all(map(NUMBER.fullmatch, labels_there))
        if numbers:
            class_names = number_names([np.array([int(label) for label in labels_there], dtype=np.int64)])
        else:
            class_names = sorted(found.get("train", labels_there))

    where = f"{path}, split {name!r}"
    if numbers:
        labels = np.array([int(text) for text in texts], dtype=np.int64)
        check_labels(labels, class_names, where)
    else:
        labels = number_labels(texts, class_names, where)
    return TarSource(
        name=f"{root.resolve().name}:{name}",
        files=shards.files,
        file_keys=[file.relative_to(root).as_posix() for file in shards.files],
        indexes=list(indexes.values()),
        ends=np.cumsum([len(index.keys) for index in indexes.values()]),
        labels=labels,
        class_names=class_names,
    )


@dataclass(frozen=True, eq=False)
class Index:
    """The examples of one shard, in the order of their first members."""

    keys: Names
    offsets: np.ndarray  # int64 (n,): where the image begins in the file; -1: the example has no image
    sizes: np.ndarray  # int64 (n,)
    labels: Names  # as text: a number or a class name
    stamp: tuple[int, int]  # size and modification time of the shard


def read_index(shard: Path) -> Index:
    """Return the index of a shard: from its file where there is one that fits, else built and kept."""
    stamp = file_stamp(shard.stat())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitrail" / "tar"
    places = (shard.with_name(f"{shard.name}.index.npz"), cache / f"{digest(str(shard.resolve()))}.npz")
    for file in places:
        index = _load_index(file, stamp)
        if index is not None:
            return index
    index = build_index(shard)
    arrays = {
        "stamp": np.array([FORMAT, *index.stamp], dtype=np.int64),
        "keys": index.keys.bytes,
        "key_ends": index.keys.ends,
        "offsets": index.offsets,
        "sizes": index.sizes,
        "labels": index.labels.bytes,
        "label_ends": index.labels.ends,
    }
    for file in places:  # the first that can be written; else it is built again next time
        with suppress(OSError), atomic_file(file) as temporary, temporary.open("wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
            break
    return index


def build_index(shard: Path) -> Index:
    """Read all headers of a shard, and its labels."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, str] = {}
    keys: dict[str, None] = {}
    try:
        with shard.open("rb", buffering=0) as archive:
            stamp = file_stamp(os.fstat(archive.fileno()))
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
    """Read the label in a .cls or .json member, as text; None: a .json that has none."""
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


def _load_index(file: Path, stamp: tuple[int, int]) -> Index | None:
    """Read a kept index; None where there is none, or it is of another state of the shard, or damaged."""
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
        offsets, sizes = stored["offsets"], stored["sizes"]
        for array in (offsets, sizes):
            if array.dtype != np.int64 or array.shape != (len(keys),):
                return None
        inside = (offsets >= -1) & (sizes >= 0) & (sizes <= stamp[0] - offsets.clip(0, stamp[0]))
        for label in labels:
            label.decode()  # UnicodeDecodeError, which is a ValueError
        return (
            Index(keys, offsets, sizes, labels, stamp) if inside.all() and len(labels) == len(keys) else None
        )
    except DAMAGE:
        return None
