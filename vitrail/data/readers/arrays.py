"""Images as arrays: a `.npz` file, or arrays that are in memory already.

    x_train, y_train, x_test, y_test, ..   train_images, train_labels, val_images, ..   images, labels   x, y

Images are uint8, (n, H, W), (n, H, W, 1) or (n, H, W, 3); labels are integers or strings, (n,) or (n, 1). A
pair without a split word is the split `train`. An array `class_names` names the classes; else the integers,
or the strings sorted, over all splits. Nothing is unpickled.
Where the pixels stay, on the disk or in memory, is said in array_file.py.
"""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path

import numpy as np

from vitrail.data.decode import MAX_PIXELS
from vitrail.data.readers.array_file import ArrayFile
from vitrail.data.readers.class_names import check_labels, labels_of, number_names
from vitrail.data.readers.fingerprint import digest, digest_files
from vitrail.data.readers.split_names import WORDS, find_split, in_order
from vitrail.data.sources import Example
from vitrail.errors import DataError
from vitrail.runtime.npz_members import DAMAGE, read_member

MAX_LABEL_BYTES = 256 << 20  # of an array of labels or class names
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
        if shape[1] * shape[2] > MAX_PIXELS:
            raise DataError(
                f"{name}: images of {shape[1]} x {shape[2]} pixels; at most {MAX_PIXELS:,} are read"
            )
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
        pixels = self.images.read(index) if isinstance(self.images, ArrayFile) else self.images[index]
        if pixels.ndim == 2:
            pixels = pixels[:, :, None]  # (H, W, 1)
        if not pixels.flags.owndata or pixels.shape[2] != 3:  # else it was read for this call alone
            pixels = np.array(np.broadcast_to(pixels, (*pixels.shape[:2], 3)), order="C")  # (H, W, 3), a copy
        return Example(pixels, int(self.labels[index]), key)

    def fingerprint(self) -> str:
        if isinstance(self.images, ArrayFile):
            images = digest_files([(self.images.member, self.images.path)])
        else:
            images = digest(np.ascontiguousarray(self.images))
        return digest(images, self.labels, *self.class_names)


def open_arrays(path: Path, split: str) -> ArraySource:
    """Open one split of a `.npz` file."""
    pairs = _pairs(path)
    split = find_split(split, list(pairs), str(path))
    values = {name: _labels(path, member) for name, (_, member) in pairs.items()}
    class_names = _class_names(path, values, pairs)
    images, _ = pairs[split]
    labels = values[split]
    if labels.dtype.kind == "U":
        # Each label once: a file may have many millions.
        names, inverse = np.unique(labels, return_inverse=True)
        labels = labels_of(names.tolist(), class_names, f"{path}, split {split!r}")[inverse]
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
    labels = _load(path, member)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]  # (n,)
    if labels.ndim != 1 or labels.dtype.kind not in "iuU":
        raise DataError(
            f"{path}: labels {member!r} are {labels.dtype} {labels.shape}; integers or strings (n,) are read"
        )
    _check_text(labels, f"{path}: labels {member!r}")
    return labels if labels.dtype.kind == "U" else labels.astype(np.int64)


def _load(path: Path, member: str) -> np.ndarray:
    """An array of labels or names, whole."""
    try:
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo(f"{member}.npy")
            if info.file_size > MAX_LABEL_BYTES:
                raise ValueError(f"{info.file_size:,} bytes; at most {MAX_LABEL_BYTES:,} are read")
            return read_member(archive, info)
    except DAMAGE as error:
        raise DataError(f"{path}, array {member!r}: not an array of numbers or text: {error}") from error


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
        return _named(path, _load(path, "class_names"))
    text = [split for split in pairs if values[split].dtype.kind == "U"]
    if text:
        return sorted({name for split in text for name in np.unique(values[split]).tolist()})
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
