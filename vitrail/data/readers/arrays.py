"""Images as arrays: a `.npz` file, or arrays that are in memory already.

    x_train, y_train, x_test, y_test, ..   train_images, train_labels, val_images, ..   images, labels   x, y

Images are uint8, (n, H, W), (n, H, W, 1) or (n, H, W, 3); labels are integers or strings, (n,) or (n, 1). A
pair without a split word is the split `train`. An array `class_names` names the classes; else the integers,
or the strings sorted, over all splits. Nothing is unpickled. What `np.savez` wrote is mapped into memory,
each process for itself; what `np.savez_compressed` wrote has to be unpacked into memory, and may have
MAX_BYTES.
"""

from __future__ import annotations

import struct
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitrail.data.readers.class_names import check_labels, labels_of, number_names
from vitrail.data.readers.fingerprint import digest, digest_files
from vitrail.data.readers.split_names import WORDS, find_split, in_order
from vitrail.data.sources import Example
from vitrail.errors import DataError
from vitrail.runtime.npz_members import DAMAGE, header_of, read_header, read_member

MAX_BYTES = 8 << 30  # of a compressed array, unpacked
PAIRS = (("images", "labels"), ("x", "y"), ("data", "labels"))  # their names, with or without a split word


class ArraySource:
    """Pixels in an array: `images` uint8 (n, H, W[, 1 or 3]), in memory or still in a file."""

    def __init__(
        self, name: str, images: np.ndarray | ArrayFile, labels: np.ndarray, class_names: list[str]
    ) -> None:
        self.name, self.images, self.class_names = name, images, class_names
        self.labels = np.asarray(labels, dtype=np.int64)
        shape, dtype = images.shape, images.dtype
        if dtype != np.uint8 or len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3)):
            raise DataError(
                f"{name}: images are {dtype} {tuple(shape)}; uint8 (n, H, W), (n, H, W, 1) or (n, H, W, 3) "
                "is read"
            )
        if 0 in shape[1:3]:
            raise DataError(f"{name}: images of {shape[1]} x {shape[2]} have no pixels")
        if self.labels.shape != shape[:1]:
            raise DataError(f"{name}: {shape[0]} images but labels of shape {self.labels.shape}")
        if not len(self.labels):
            raise DataError(f"{name}: no examples")
        check_labels(self.labels, class_names, name)

    def __len__(self) -> int:
        return len(self.labels)

    def key(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"{index} in a source of {len(self)}")
        return f"{self.name.rpartition(':')[2]}:{index}"

    def read(self, index: int) -> Example:
        key = self.key(index)
        array = self.images.array if isinstance(self.images, ArrayFile) else self.images
        pixels = array[index]
        if pixels.ndim == 2:
            pixels = pixels[:, :, None]  # (H, W, 1)
        rgb = np.array(np.broadcast_to(pixels, (*pixels.shape[:2], 3)), order="C")  # (H, W, 3), a copy
        return Example(rgb, int(self.labels[index]), key)

    def fingerprint(self) -> str:
        if isinstance(self.images, ArrayFile):
            images = digest_files([(self.images.member, self.images.path)])
        else:
            images = digest(np.ascontiguousarray(self.images))
        return digest(images, self.labels, *self.class_names)


class ArrayFile:
    """One array of a `.npz` file, opened when it is first used, in each process."""

    def __init__(self, path: Path, member: str) -> None:
        self.path, self.member = path, member
        self._array: np.ndarray | None = None
        self._broken: str | None = None  # tried once: to unpack an array takes long
        try:
            with zipfile.ZipFile(path) as archive:
                header = header_of(archive, archive.getinfo(f"{member}.npy"))
        except DAMAGE as error:
            raise DataError(f"{path}, array {member!r}: not an array of numbers or text: {error}") from error
        self.shape, self.dtype = header.shape, header.dtype

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None}

    @property
    def array(self) -> np.ndarray:
        if self._broken is not None:
            raise DataError(self._broken)
        if self._array is None:
            try:
                self._array = _map_or_load(self.path, self.member)
            except DAMAGE as error:
                self._broken = (
                    f"{self.path}, array {self.member!r}: cannot be read: {error or 'no memory for it'}"
                )
                raise DataError(self._broken) from error
        return self._array


def open_arrays(path: Path, split: str) -> ArraySource:
    """Open one split of a `.npz` file."""
    pairs = _pairs(path)
    split = find_split(split, list(pairs), str(path))
    values = {name: _labels(path, member) for name, (_, member) in pairs.items()}
    class_names = _class_names(path, values, pairs)
    images, _ = pairs[split]
    labels = values[split]
    if labels.dtype.kind == "U":
        labels = labels_of(labels.tolist(), class_names, f"{path}, split {split!r}")
    return ArraySource(f"{path.stem}:{split}", ArrayFile(path, images), labels, class_names)


def array_splits(path: Path) -> list[str]:
    """The splits that a `.npz` file has."""
    return list(_pairs(path))


def _pairs(path: Path) -> dict[str, tuple[str, str]]:
    """Split -> the names of its arrays of images and of labels."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}
    except DAMAGE as error:
        raise DataError(f"{path}: not a whole .npz file: {error}") from error
    found: dict[str, tuple[str, str]] = {}
    for x, y in PAIRS:
        candidates = {(x, y): "train"}
        for word, split in WORDS.items():
            candidates[f"{x}_{word}", f"{y}_{word}"] = split
            candidates[f"{word}_{x}", f"{word}_{y}"] = split
        for pair, split in candidates.items():
            if members.issuperset(pair) and found.setdefault(split, pair) != pair:
                raise DataError(f"{path}: two pairs of arrays for {split!r}: {found[split]} and {pair}")
    if not found:
        raise DataError(
            f"{path}: arrays {', '.join(sorted(members)) or 'none'}; pairs like images and labels, x_train and "
            "y_train, or train_images and train_labels are read"
        )
    return {split: found[split] for split in in_order(list(found))}


def _labels(path: Path, member: str) -> np.ndarray:
    """Labels of one split, integers or text, (n,)."""
    labels = ArrayFile(path, member).array
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]  # (n,)
    if labels.ndim != 1 or labels.dtype.kind not in "iuU":
        raise DataError(
            f"{path}: labels {member!r} are {labels.dtype} {labels.shape}; integers or strings (n,) are read"
        )
    _check_text(labels, f"{path}: labels {member!r}")
    return labels if labels.dtype.kind == "U" else labels.astype(np.int64)


def _check_text(names: np.ndarray, where: str) -> None:
    """numpy does not look whether the numbers that it takes for characters are some."""
    if names.dtype.kind == "U":
        codes = np.ascontiguousarray(names).view(np.dtype(np.uint32).newbyteorder(names.dtype.byteorder))
        if ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes <= 0xDFFF))).any():
            raise DataError(f"{where} hold what is no Unicode text")


def _class_names(path: Path, values: dict[str, np.ndarray], pairs: dict[str, tuple[str, str]]) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        named = "class_names.npy" in archive.namelist()
    if named:
        return _named(path, ArrayFile(path, "class_names").array)
    text = [split for split in pairs if values[split].dtype.kind == "U"]
    if text:
        return sorted({name for split in text for name in values[split].tolist()})
    return number_names(list(values.values()))


def _named(path: Path, names: np.ndarray) -> list[str]:
    if names.ndim != 1 or names.dtype.kind not in "iuU":
        raise DataError(
            f"{path}: class_names are {names.dtype} {names.shape}; strings or integers (classes,) are read"
        )
    _check_text(names, f"{path}: class_names")
    listed = [str(name) for name in names.tolist()]
    twice = [name for name, count in Counter(listed).items() if count > 1]
    if twice:
        raise DataError(f"{path}: class_names that name more than one class: {', '.join(twice[:8])}")
    return listed


def _map_or_load(path: Path, member: str) -> np.ndarray:
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        info = archive.getinfo(f"{member}.npy")
        if info.compress_type != zipfile.ZIP_STORED:
            if info.file_size > MAX_BYTES:
                raise ValueError(
                    f"{info.file_size:,} bytes unpacked, more than {MAX_BYTES:,}; what np.savez stores, "
                    "uncompressed, is read from the disk as needed"
                )
            return read_member(archive, info)
        # The data of a stored member follow its local header: 30 bytes, the name, an extra field.
        file.seek(info.header_offset + 26)
        name_length, extra_length = struct.unpack("<HH", file.read(4))
        start = info.header_offset + 30 + name_length + extra_length
        file.seek(start)
        header = read_header(file, info.file_size)
        order: Literal["C", "F"] = "F" if header.fortran else "C"
        mapped: np.ndarray = np.memmap(
            path, header.dtype, "r", offset=start + header.start, shape=header.shape, order=order
        )
        return mapped
