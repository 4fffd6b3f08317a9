"""Files of torch.save: the values that their pickles describe, and tensors of the bytes that are really there.

zip   NAME/data.pkl, NAME/data/KEY: the bytes of a storage; every member stored, with a CRC-32
old   five pickles (magic number, protocol, system, content, keys); then for each key the number of its values, 8
      bytes, and the values. There is no checksum. Torch wrote this until 1.6

path  --read-->  TorchFile.content with Views  --TorchFile.tensor-->  tensors that are views of the file
"""

from __future__ import annotations

import io
import math
import mmap
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoints.npz import stored_bytes
from vitrail.checkpoints.torch_pickle import Interpreter, Storage, View
from vitrail.models.checking import is_whole
from vitrail.runtime.log import note

ZIP = b"PK\x03\x04"
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of old files
MOST_DIMENSIONS = 16  # of a tensor


@dataclass(frozen=True)
class TorchFile:
    """The content of a file, tensors as Views; and where the bytes of a storage are."""

    content: Any
    bytes_of: Callable[[Storage], memoryview]
    storages: dict[str, Tensor] = field(default_factory=dict)  # those that were needed so far, by key

    def tensor(self, view: View) -> Tensor:
        """The tensor, not a copy; ValueError where the file does not hold all of it."""
        offset, size, stride = view.offset, view.size, view.stride
        if not (isinstance(size, tuple) and isinstance(stride, tuple) and len(size) == len(stride)):
            raise ValueError("a tensor with more sizes than strides, or fewer")
        if len(size) > MOST_DIMENSIONS or not all(is_whole(n) and n >= 0 for n in (offset, *size, *stride)):
            raise ValueError(f"a tensor of shape {str(size)[:60]}")
        values = self.storage(view.storage).view(view.dtype)
        if not math.prod(size):
            return values.new_empty(size)
        if offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) >= len(values):
            raise ValueError(f"a tensor of shape {str(size)[:60]} with {len(values):,} values behind it")
        return values.as_strided(size, stride, offset)

    def storage(self, wanted: Storage) -> Tensor:
        if wanted.key not in self.storages:
            content = self.bytes_of(wanted)
            if len(content) != wanted.count * wanted.dtype.itemsize:
                raise ValueError(f"a storage of {wanted.count:,} values that has {len(content):,} bytes")
            self.storages[wanted.key] = values_of(content, wanted.dtype)
        return self.storages[wanted.key]


def values_of(content: memoryview, dtype: torch.dtype) -> Tensor:
    if not content:
        return torch.empty(0, dtype=dtype)
    # A byte copy where values do not begin at a multiple of their size, as in old files.
    raw = torch.frombuffer(content, dtype=torch.uint8)
    aligned = raw if raw.data_ptr() % dtype.itemsize == 0 else raw.clone()
    return aligned.view(dtype)


def read(path: Path) -> TorchFile:
    """A torch file. What is not one ends in an exception of zipfile's or of torch_pickle.Interpreter's."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # private to this process
        if mapped[: len(ZIP)] != ZIP:
            return read_old(mapped)
        with zipfile.ZipFile(file) as archive:
            return read_zip(archive.infolist(), mapped, path)


def read_zip(members: list[zipfile.ZipInfo], mapped: mmap.mmap, path: Path) -> TorchFile:
    by_name = {m.filename: m for m in members}
    if len(by_name) < len(members):
        raise ValueError("two of its members have one name")
    if odd := [m.filename for m in members if m.compress_type != zipfile.ZIP_STORED or m.flag_bits & 1]:
        raise ValueError(f"its member {odd[0][:60]!r} is compressed or encrypted, which torch never does")
    if sum(m.file_size for m in members) > len(mapped):
        raise ValueError("its members overlap")
    pickles = [name for name in by_name if f"/{name}".endswith("/data.pkl")]
    prefix = pickles[0].removesuffix("data.pkl") if len(pickles) == 1 else ""
    if len(pickles) != 1 or f"{prefix}constants.pkl" in by_name:  # which a TorchScript program has
        raise ValueError("it is a zip, but not one that torch.save makes")
    has_sums = any(m.CRC for m in members)  # torch.serialization.set_crc32_options(False) writes zeros
    if not has_sums:
        note(f"{path.name} was written without checksums: damage to its weights cannot be seen")

    def content(name: str) -> memoryview:
        if name not in by_name:
            raise ValueError(f"its member {name[:60]!r} is missing")
        try:
            return stored_bytes(mapped, by_name[name], check_sum=has_sums)
        except ValueError as error:
            raise ValueError(f"its member {name[:60]!r} {error}") from error

    if f"{prefix}byteorder" in by_name and bytes(content(f"{prefix}byteorder")) != b"little":
        raise ValueError("its numbers are not little-endian")
    value = Interpreter().run(io.BytesIO(content(pickles[0])))
    return TorchFile(value, lambda storage: content(f"{prefix}data/{storage.key}"))


def read_old(mapped: mmap.mmap) -> TorchFile:
    magic, protocol, system = (Interpreter().run(mapped) for _ in range(3))
    if magic != MAGIC or protocol != PROTOCOL or not isinstance(system, dict):
        raise ValueError("its bytes are of another kind")
    if system.get("little_endian") is not True:
        raise ValueError("its numbers are not little-endian")
    interpreter = Interpreter()
    value, keys = interpreter.run(mapped), Interpreter().run(mapped)
    places, at = {}, mapped.tell()
    for key in keys:
        storage = interpreter.storages[key]
        if int.from_bytes(mapped[at : at + 8], "little") != storage.count:
            raise ValueError(f"storage {key[:60]!r} has another number of values than was said")
        start, at = at + 8, at + 8 + storage.count * storage.dtype.itemsize
        places[key] = slice(start, at)
    if at > len(mapped):
        raise ValueError(f"it ends {at - len(mapped):,} bytes too early")
    return TorchFile(value, lambda storage: memoryview(mapped)[places[storage.key]])
