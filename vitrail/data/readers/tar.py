"""WebDataset tar shards with random access, by an index that is built once per shard and then kept in a file.

    shard.tar ──walk──► members ──build_index──► Index(keys, offsets, sizes, labels) ──► shard.tar.index.npz
                                                                                     └──► bytes of an example

A key is a member's name up to the first dot of its last part, as in WebDataset: `a/000123.jpg` and `a/000123.cls`
are one example. Its image is the member with the extension of an image; its label is in `.cls` (a number or a class
name) or in `.json` (field `label` or `cls`). Labels that are numbers in all splits are class numbers, named by a
`classes.txt` or `classes.json` beside the shards, else by their digits. Other labels are names, and the classes are
the names sorted: those of train where there is such a split, else of all splits.

The index is stored beside the shard or, if that folder cannot be written, in ~/.cache/vitrail/tar ($XDG_CACHE_HOME).
It is used as long as the shard has the size and modification time that it records. Members are only read, never
unpacked: no name inside an archive becomes a path. Shards are uncompressed, for random access.

Single headers are parsed by Python's tarfile. The walk is our own, because tarfile uses a size before it is checked
(a negative one leads to an endless loop), reads as many bytes as a name claims to have, and stops without an error at
a damaged header. Here a header is used only if its checksum is right and its data is inside the archive, so every
step moves forward and the walk ends after at most one step per 512 bytes.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data.readers.class_names import check_labels, number_labels, number_names, read_class_names
from vitrail.data.readers.file_names import (
    Names,
    find_shards,
    find_split_shards,
    is_image_name,
    printable,
)
from vitrail.data.readers.fingerprint import digest, digest_files, file_stamp, read_bytes_at
from vitrail.data.sources import MAX_FILE_BYTES, Example, Source
from vitrail.data.splits import locate_example
from vitrail.errors import DataError, ImageError
from vitrail.runtime.files import atomic_file
from vitrail.runtime.npz_members import DAMAGE, read_member
from vitrail.runtime.progress import progress

FORMAT = 1  # of the index file
ARRAYS = {  # in the index file
    "stamp": np.int64, "keys": np.uint8, "key_ends": np.int64, "offsets": np.int64, "sizes": np.int64,
    "labels": np.uint8, "label_ends": np.int64,
}  # fmt: skip
INDEX_BYTES = 1 << 16  # that an index may be larger than its shard
MAX_LABEL_BYTES = 1 << 20  # of a .cls or .json member
NUMBER = re.compile(r"-?[0-9]{1,18}")

BLOCK = tarfile.BLOCKSIZE
END_CHUNK = 1 << 20  # read at a time after the end
NO_DATA = b"123456"  # links, devices, folders, pipes: nothing follows their header, whatever its size
MAX_NAME_BYTES = 4096  # of a path, on Linux
MAX_PAX_BYTES = 1 << 20  # of the pax records of one member, extended attributes included
# These describe the member that follows.
PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE)
EXTENSIONS = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, *PAX)
RECORD = re.compile(rb"([0-9]{1,7}) ([^=\n]+)=")


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
        f, i = locate_example(index, self.ends)
        return f"{self.file_keys[f]}:{printable(self.indexes[f].keys[i])}"

    def read(self, index: int) -> Example:
        key = self.key(index)
        f, i = locate_example(index, self.ends)
        offset, size = int(self.indexes[f].offsets[i]), int(self.indexes[f].sizes[i])
        if offset < 0:
            raise DataError(f"{key}: the example has a label but no image")
        if not 0 < size <= MAX_FILE_BYTES:
            raise ImageError(f"{key}: an image of {size:,} bytes; 1 to {MAX_FILE_BYTES:,} are read")
        try:
            data = read_bytes_at(self.files[f], offset, size, self.indexes[f].stamp)
        except OSError as error:
            raise DataError(f"{key}: cannot be read: {error.strerror}") from error
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
        labels_of: dict[str, set[str]] = {}  # split -> its labels
        for other in splits if numbers or "train" not in splits else ["train"]:
            read = (indexes.get(file) or read_index(file) for file in splits[other].files)
            labels_of[other] = {label.decode() for index in read for label in index.labels}
        everywhere = set().union(*labels_of.values())
        numbers = numbers and all(map(NUMBER.fullmatch, everywhere))
        if numbers:
            class_names = number_names([np.array([int(label) for label in everywhere], dtype=np.int64)])
        else:
            class_names = sorted(labels_of.get("train", everywhere))

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
    """Return the index of a shard: read from its file if that fits, else built and kept."""
    stamp = file_stamp(shard.stat())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitrail" / "tar"
    places = (shard.with_name(f"{shard.name}.index.npz"), cache / f"{digest(str(shard.resolve()))}.npz")
    for file in places:
        with suppress(*DAMAGE):  # else it is of another state of the shard, or damaged
            return _load_index(file, stamp)
    index = build_index(shard)
    arrays = (
        np.array([FORMAT, *index.stamp], dtype=np.int64), index.keys.bytes, index.keys.ends, index.offsets,
        index.sizes, index.labels.bytes, index.labels.ends,
    )  # fmt: skip
    for file in places:  # the first that can be written; else it is built again next time
        with suppress(OSError), atomic_file(file) as temporary, temporary.open("wb") as stream:
            np.savez(stream, **dict(zip(ARRAYS, arrays, strict=True)))  # type: ignore[arg-type]
            break
    return index


def _load_index(file: Path, stamp: tuple[int, int]) -> Index:
    """Read a kept index; one of DAMAGE if there is none, or it is of another state of the shard, or damaged."""
    most = stamp[0] + INDEX_BYTES
    if not file.is_file() or file.stat().st_size > most:
        raise ValueError("no file, or too large")
    with zipfile.ZipFile(file) as archive:
        if sum(member.file_size for member in archive.infolist()) > most:
            raise ValueError("unpacks to too much")
        stored = {name: read_member(archive, archive.getinfo(f"{name}.npy")) for name in ARRAYS}
    if any(array.dtype != ARRAYS[name] or array.ndim != 1 for name, array in stored.items()):
        raise ValueError("arrays of other kinds")
    keys = Names.from_arrays(stored["keys"], stored["key_ends"])
    labels = Names.from_arrays(stored["labels"], stored["label_ends"])
    for label in labels:
        label.decode()  # UnicodeDecodeError, which is a ValueError
    offsets, sizes = stored["offsets"], stored["sizes"]
    inside = (offsets >= -1) & (sizes >= 0) & (sizes <= stamp[0] - offsets.clip(0, stamp[0]))
    counts = {len(keys), len(labels), len(offsets), len(sizes)}
    if stored["stamp"].tolist() != [FORMAT, *stamp] or len(counts) > 1 or not inside.all():
        raise ValueError("not the index of this shard")
    return Index(keys, offsets, sizes, labels, stamp)


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
                key = f"{folder}{slash}{stem}"
                if is_image_name(base):
                    if key in images:
                        raise DataError(f"{shard}: two images for {key!r}; one example has one image")
                    images[key] = (member.offset, member.size)
                elif extension.lower() in ("cls", "json"):
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


@dataclass(frozen=True)
class Member:
    """A regular file in the archive."""

    name: str  # bytes that are not UTF-8 become surrogates
    offset: int  # of its first byte in the archive
    size: int


def walk(descriptor: int) -> Iterator[Member]:
    """Yield each regular file of the archive that is open as `descriptor`, in order; ValueError or OSError.

    Supported are ustar, the older V7, GNU's long names (L), and pax records (x) for names and sizes; folders, links
    and devices are skipped. The walk goes to the end of the archive, a block of zeros. Without one the archive is
    truncated; other bytes after it mean that a header was lost, or that two archives were concatenated.
    """
    end = os.fstat(descriptor).st_size
    if not end:
        raise ValueError("the file is empty")
    at, records = 0, dict[bytes, bytes]()  # path and size of the member that follows
    while True:
        header = os.pread(descriptor, BLOCK, at)
        if len(header) < BLOCK:
            raise ValueError(f"truncated at byte {end:,}, where a header should be")
        if not any(header):
            break
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise ValueError(f"no header at byte {at:,}: {error}") from error
        kind, data = info.type, at + BLOCK
        size = 0 if header[156] in NO_DATA else info.size
        if kind not in EXTENSIONS and b"size" in records:
            size = int(records[b"size"])
        if not 0 <= size <= end - data:
            raise ValueError(f"the header at byte {at:,} claims {size:,} bytes, but {end - data:,} follow")
        most = MAX_PAX_BYTES if kind in PAX else MAX_NAME_BYTES
        if kind in EXTENSIONS and size > most:
            raise ValueError(
                f"the name or records at byte {at:,} have {size:,} bytes; at most {most:,} are read"
            )
        if kind in PAX:
            more = _pax_records(os.pread(descriptor, size, data), at)
            if more and kind == tarfile.XGLTYPE:
                raise ValueError(f"the pax header at byte {at:,} gives all members one path or size")
            records |= more
        elif kind == tarfile.GNUTYPE_LONGNAME:
            records.setdefault(b"path", os.pread(descriptor, size, data).partition(b"\0")[0])
        elif kind == tarfile.GNUTYPE_SPARSE:
            raise ValueError(f"the member at byte {at:,} is sparse: pack the files without --sparse")
        elif kind not in EXTENSIONS:
            # GNU's headers, whose magic is b"ustar ", have times in the place of the prefix of a name.
            old = None if header[257:263] == b"ustar\0" else header[:100].partition(b"\0")[0]
            name = records.get(b"path", old)
            if info.isreg():
                text = info.name if name is None else name.decode("utf-8", "surrogateescape")
                yield Member(text, data, size)
            records = {}
        at = data + -(-size // BLOCK) * BLOCK
    if records:
        raise ValueError(f"ends at byte {at:,} with a name or records of a member that does not follow")
    while rest := os.pread(descriptor, END_CHUNK, at):
        if rest.strip(b"\0"):
            raise ValueError(f"the archive ends at byte {at:,}, but other bytes than zeros follow")
        at += len(rest)


def _pax_records(data: bytes, at: int) -> dict[bytes, bytes]:
    """Return the path and the size in records `30 path=folder/name.jpg\\n`; the number is the length of it all."""
    records: dict[bytes, bytes] = {}
    start = 0
    while start < len(data) and data[start]:  # some pad with zeros
        head = RECORD.match(data, start)
        stop = start + int(head[1]) if head else 0
        if head is None or not head.end() < stop <= len(data) or data[stop - 1] != ord("\n"):
            raise ValueError(f"the pax records at byte {at:,} are broken")
        name, value = head[2], data[head.end() : stop - 1]
        if name.startswith(b"GNU.sparse."):
            raise ValueError(f"the member at byte {at:,} is sparse: pack the files without --sparse")
        if name in (b"path", b"size"):
            if len(value) > MAX_NAME_BYTES:
                raise ValueError(
                    f"a {name.decode()} of {len(value):,} bytes in the pax records at byte {at:,}"
                )
            if name == b"size" and not value.isdigit():  # int() also takes blanks, signs and underscores
                raise ValueError(f"the pax records at byte {at:,} have the size {value[:40]!r}")
            records[name] = value
        start = stop
    return records
