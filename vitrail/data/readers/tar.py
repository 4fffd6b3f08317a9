"""WebDataset tar shards with random access, by the offsets that tar_index.py finds.

    split ──shard_files.py──► shards ──tar_index.py──► (shard, offset, size, label) of each ──► its bytes

Labels that are numbers in all splits are class numbers, named by a `classes.txt` or `classes.json` beside the shards
(class_names.py), else by their digits. Other labels are names, and classes are the names sorted: those of
train where there is such a split, else of all splits. Shards have to be uncompressed: a compressed stream has
no random access.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data.readers.class_names import check_labels, labels_of, number_names, read_class_names
from vitrail.data.readers.fingerprint import digest, digest_files, stamp_of
from vitrail.data.readers.names import printable
from vitrail.data.readers.shard_files import Shards, find_shards, shards_of
from vitrail.data.readers.tar_index import Index, read_index
from vitrail.data.sources import MAX_FILE_BYTES, Example
from vitrail.errors import DataError, ImageError
from vitrail.runtime.progress import progress


@dataclass(frozen=True, eq=False)
class TarSource:
    """The examples of some tar shards."""

    name: str
    files: tuple[Path, ...]
    file_keys: list[str]  # the same, as paths below the folder of the data set
    indexes: list[Index]
    ends: np.ndarray  # int64 (files,): examples up to and with each file
    labels: np.ndarray  # int64 (n,)
    class_names: list[str]

    def __len__(self) -> int:
        return int(self.ends[-1])

    def key(self, index: int) -> str:
        f, i = self._locate(index)
        return f"{self.file_keys[f]}:{printable(self.indexes[f].keys[i])}"

    def read(self, index: int) -> Example:
        key = self.key(index)
        f, i = self._locate(index)
        offset, size = int(self.indexes[f].offsets[i]), int(self.indexes[f].sizes[i])
        if offset < 0:
            raise DataError(f"{key}: the example has a label but no image")
        if not 0 < size <= MAX_FILE_BYTES:
            raise ImageError(f"{key}: an image of {size:,} bytes; 1 to {MAX_FILE_BYTES:,} are read")
        try:
            with self.files[f].open("rb", buffering=0) as file:
                if stamp_of(os.fstat(file.fileno())) != self.indexes[f].stamp:
                    raise DataError(f"{key}: the shard was changed since it was opened as a data set")
                data = os.pread(file.fileno(), size, offset)
        except OSError as error:
            raise DataError(f"{key}: cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise DataError(f"{key}: the shard ends inside of this image")
        return Example(data, int(self.labels[index]), key)

    def fingerprint(self) -> str:
        return digest(digest_files(zip(self.file_keys, self.files, strict=True)), *self.class_names)

    def _locate(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"{index} in a source of {len(self)}")
        f = int(np.searchsorted(self.ends, index, side="right"))
        return f, index - (int(self.ends[f - 1]) if f else 0)


def open_tar(path: Path, split: str) -> TarSource:
    """Open one split of a folder of tar shards, or one shard."""
    name, shards = shards_of(path, ".tar", split)
    root = path if path.is_dir() else path.parent
    indexes = [read_index(file) for file in progress(shards.files, len(shards.files), "tar shards")]
    texts = [label.decode() for index in indexes for label in index.labels]
    if not texts:
        raise DataError(f"{path}: no examples in the {len(shards.files)} shards of {name!r}")
    class_names, numbers = _classes(path, root, texts, dict(zip(shards.files, indexes, strict=True)))
    where = f"{path}, split {name!r}"
    if numbers:
        labels = np.array([int(text) for text in texts], dtype=np.int64)
        check_labels(labels, class_names, where)
    else:
        labels = labels_of(texts, class_names, where)
    return TarSource(
        name=f"{root.resolve().name}:{name}",
        files=shards.files,
        file_keys=[file.relative_to(root).as_posix() for file in shards.files],
        indexes=indexes,
        ends=np.cumsum([len(index.keys) for index in indexes]),
        labels=labels,
        class_names=class_names,
    )


def _classes(path: Path, root: Path, texts: list[str], known: dict[Path, Index]) -> tuple[list[str], bool]:
    """The names of the classes, and whether the labels `texts` are their numbers, and not these names."""
    named, numbers = read_class_names(root), all(map(_is_number, texts))
    if named is not None:
        return named, numbers
    splits = find_shards(path, ".tar")
    if numbers and all(map(_is_number, labels := _labels_in(splits.values(), known))):
        return number_names([np.array([int(label) for label in labels], dtype=np.int64)]), True
    return sorted(_labels_in([splits["train"]] if "train" in splits else splits.values(), known)), False


def _labels_in(splits: Iterable[Shards], known: dict[Path, Index]) -> set[str]:
    files = [file for shards in splits for file in shards.files]
    read = (known[file] if file in known else read_index(file) for file in files)
    return {label.decode() for index in read for label in index.labels}


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,18}", text) is not None
