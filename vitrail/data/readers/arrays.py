"""Images as arrays: a `.npz` file, or arrays that are in memory already.

    x_train, y_train, x_test, y_test, ..   train_images, train_labels, val_images, ..   images, labels   x, y

Images are uint8, (n, H, W), (n, H, W, 1) or (n, H, W, 3); labels are integers or strings, (n,) or (n, 1). A pair
without a split word is the split `train`. An array `class_names` names the classes; else the integers, or the
strings sorted, over all splits. Nothing is unpickled.

    saved with np.savez              ──read──────► one image     nothing is kept in memory
    saved with np.savez_compressed   ──unpack────► all of them   in memory, in each process that reads
    an array in Fortran order        ──copy──────► all of them   since there an image is spread over the whole file

Nothing is mapped into memory: a process is killed (SIGBUS) if a file that it has mapped is truncated by another. The
checksum of an array is verified when it is opened, or unpacked; a file that was changed since is an error. The
memory that an array may take is bounded before anything is unpacked.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.decode import MAX_PIXELS
from vitrail.data.readers.class_names import check_labels, number_labels, number_names
from vitrail.data.readers.fingerprint import digest, digest_files, file_stamp, read_bytes_at
from vitrail.data.sources import Example, Source
from vitrail.data.splits import WORDS, find_split, in_order
from vitrail.errors import DataError
from vitrail.runtime.npz_members import DAMAGE, read_member, read_member_header

MAX_LABEL_BYTES = 256 << 20  # of an array of labels or class names
FREE_BYTES = 1 << 30  # that images of any file may unpack to; beyond that
MAX_RATIO = 20  # they may be this many times the size of their file,
MAX_BYTES = 8 << 30  # up to this
PIECE = 1 << 20  # bytes read at a time for the checksum
# Names of arrays, with or without a split word.
PAIRS = (("images", "labels"), ("x", "y"), ("data", "labels"))


class ArraySource(Source):
    """Pixels in an array: `images` uint8 (n, H, W[, 1 or 3]), in memory or still in a file."""

    def __init__(
        self, name: str, images: np.ndarray | ArrayFile, labels: np.ndarray, class_names: list[str]
    ) -> None:
        self.name, self.images, self.class_names = name, images, class_names
        self.labels = np.asarray(labels, dtype=np.int64)
        shape, dtype = images.shape, images.dtype
        if dtype != np.uint8 or len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3)):
            raise DataError(
                f"{name}: images are {dtype} {tuple(shape)}; supported: uint8 (n, H, W), (n, H, W, 1) or (n, H, W, 3)"
            )
        if not 0 < shape[1] * shape[2] <= MAX_PIXELS:
            raise DataError(f"{name}: images of {shape[1]} x {shape[2]} pixels; allowed: 1 to {MAX_PIXELS:,}")
        if self.labels.shape != shape[:1]:
            raise DataError(f"{name}: {shape[0]} images but labels of shape {self.labels.shape}")
        if not len(self.labels):
            raise DataError(f"{name}: no examples")
        check_labels(self.labels, class_names, name)

    def read(self, index: int) -> Example:
        key = self.key(index)
        pixels = self.images.read(index) if isinstance(self.images, ArrayFile) else self.images[index]
        height, width = pixels.shape[:2]
        channels = pixels.reshape(height, width, -1)  # (H, W, 1 or 3)
        copied = np.array(np.broadcast_to(channels, (height, width, 3)), order="C")  # (H, W, 3)
        return Example(copied, int(self.labels[index]), key)

    def fingerprint(self) -> str:
        if isinstance(self.images, ArrayFile):
            images = digest_files([(self.images.member, self.images.path)])
        else:
            images = digest(np.ascontiguousarray(self.images))
        return digest(images, self.labels, *self.class_names)


class ArrayFile:
    """Images in a `.npz` file: uint8 (n, ..), read one by one, or unpacked when the first is read."""

    def __init__(self, path: Path, member: str) -> None:
        self.path, self.member = path, member
        self._array: np.ndarray | None = None
        self._broken: str | None = None  # unpacking takes long: it is tried once
        self._start: int | None = None  # of the pixels in the file; None: they are unpacked
        try:
            with path.open("rb") as file, zipfile.ZipFile(file) as archive:
                info = archive.getinfo(f"{member}.npy")
                header = read_member_header(archive, info)
                self._stamp = file_stamp(os.fstat(file.fileno()))
                size, unpacked = self._stamp[0], info.file_size
                most = min(MAX_BYTES, max(FREE_BYTES, MAX_RATIO * size))
                if info.compress_type == zipfile.ZIP_STORED and not header.fortran:
                    # The array begins after a local header of 30 bytes, a name and an extra field.
                    lengths = os.pread(file.fileno(), 4, info.header_offset + 26)
                    start = info.header_offset + 30 + sum(struct.unpack("<HH", lengths))
                    if start + unpacked > size:
                        raise ValueError(f"{unpacked:,} bytes, more than the file has")
                    self._start = start + header.start
                    with archive.open(info) as stream:
                        while stream.read(PIECE):  # which compares the checksum at the end
                            pass
                elif unpacked > most:  # more than photographs in so small a file would take
                    raise DataError(
                        f"{path}, array {member!r}: takes {unpacked:,} bytes of memory; allowed for a file of "
                        f"{size:,} bytes: {most:,}. Save it with np.savez, uncompressed and in C order, to read it "
                        "from the disk as needed"
                    )
        except zipfile.BadZipFile as error:
            raise DataError(f"{path}, array {member!r}: damaged: {error}") from error
        except DAMAGE as error:
            raise DataError(f"{path}, array {member!r}: not an array of numbers or text: {error}") from error
        self.shape, self.dtype = header.shape, header.dtype

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None}

    def read(self, index: int) -> np.ndarray:
        """Return a view of the image `index`, 0 to n - 1."""
        if self._broken is not None:
            raise DataError(self._broken)
        try:
            if self._start is not None:
                size = math.prod(self.shape[1:]) * self.dtype.itemsize
                piece = read_bytes_at(self.path, self._start + index * size, size, self._stamp)
                return np.frombuffer(piece, self.dtype).reshape(self.shape[1:])
            if self._array is None:
                with self.path.open("rb") as file:
                    if file_stamp(os.fstat(file.fileno())) != self._stamp:
                        raise ValueError("it was changed since it was opened as a data set")
                    with zipfile.ZipFile(file) as archive:
                        self._array = read_member(archive, archive.getinfo(f"{self.member}.npy"))
            return self._array[index]
        except DAMAGE as error:
            problem = getattr(error, "strerror", None) or error or "no memory for it"
            reason = f"{self.path}, array {self.member!r}: cannot be read: {problem}"
            self._broken = reason if self._start is None else None
            raise DataError(reason) from error


def open_arrays(path: Path, split: str) -> ArraySource:
    """Open one split of a `.npz` file."""
    pairs, named = find_array_pairs(path)
    split = find_split(split, list(pairs), str(path))
    values = {name: _read_small(path, labels, column=True) for name, (_, labels) in pairs.items()}
    texts = [labels for labels in values.values() if labels.dtype.kind == "U"]
    if named:
        class_names = [str(name) for name in _read_small(path, "class_names").tolist()]
        twice = [name for name, count in Counter(class_names).items() if count > 1]
        if twice:
            raise DataError(f"{path}: class_names that name more than one class: {', '.join(twice[:8])}")
    elif texts:
        class_names = sorted({name for labels in texts for name in np.unique(labels).tolist()})
    else:
        class_names = number_names(list(values.values()))
    labels = values[split]
    if labels.dtype.kind == "U":
        # Each label once: a file may have many millions.
        names, inverse = np.unique(labels, return_inverse=True)
        labels = number_labels(names.tolist(), class_names, f"{path}, split {split!r}")[inverse]
    return ArraySource(f"{path.stem}:{split}", ArrayFile(path, pairs[split][0]), labels, class_names)


def find_array_pairs(path: Path) -> tuple[dict[str, tuple[str, str]], bool]:
    """Return {split: names of its arrays of images and of labels}, and whether there is an array class_names."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}
    except DAMAGE as error:
        raise DataError(f"{path}: not a whole .npz file: {error}") from error
    pairs: dict[str, tuple[str, str]] = {}
    for x, y in PAIRS:
        candidates = {(x, y): "train"}
        for word, split in WORDS.items():
            candidates[f"{x}_{word}", f"{y}_{word}"] = split
            candidates[f"{word}_{x}", f"{word}_{y}"] = split
        for pair, split in candidates.items():
            if members.issuperset(pair) and pairs.setdefault(split, pair) != pair:
                raise DataError(f"{path}: two pairs of arrays for {split!r}: {pairs[split]} and {pair}")
    if not pairs:
        raise DataError(
            f"{path}: arrays {', '.join(sorted(members)) or 'none'}; supported are pairs such as images and labels, "
            "x_train and y_train, or train_images and train_labels"
        )
    return {split: pairs[split] for split in in_order(list(pairs))}, "class_names" in members


def _read_small(path: Path, member: str, *, column: bool = False) -> np.ndarray:
    """Read an array of labels or of class names: int64 or text, (n,); with `column` also (n, 1)."""
    try:
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo(f"{member}.npy")
            if info.file_size > MAX_LABEL_BYTES:
                raise ValueError(f"{info.file_size:,} bytes; at most {MAX_LABEL_BYTES:,} are read")
            array = read_member(archive, info)
    except DAMAGE as error:
        raise DataError(f"{path}, array {member!r}: not an array of numbers or text: {error}") from error
    if array.ndim == 2 and array.shape[1] == 1 and column:
        array = array[:, 0]  # (n,)
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise DataError(
            f"{path}: array {member!r} is {array.dtype} {array.shape}; supported: integers or strings (n,)"
        )
    if array.dtype.kind != "U":
        return array.astype(np.int64)
    # numpy does not check that the numbers that it takes for characters are characters.
    codes = np.ascontiguousarray(array).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
    if ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes <= 0xDFFF))).any():
        raise DataError(f"{path}: array {member!r} is not Unicode text")
    return array
