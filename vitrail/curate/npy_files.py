"""Arrays in `.npy` files: written row by row, and mapped into memory, where they may be larger than that.

    GrowingArray(path, dtype, shape of a row) ── append, save ──► path      a complete file after each `save`
    map_array(path, dtype, shape)             ──► array                     nothing is read before it is used

Headers are checked against what is expected and against the size of the file; nothing is ever unpickled.
"""

from __future__ import annotations

import os
import tokenize
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.errors import DataError
from vitrail.runtime.files import open_own
from vitrail.runtime.npz_members import read_npy_header

HEADER = 128  # bytes; numpy leaves room in it for the number of rows to grow


class GrowingArray:
    """A file that rows (*shape) are appended to; those after the last `save` are lost when it is opened again."""

    def __init__(self, path: Path, dtype: str, shape: tuple[int, ...] = (), rows: int = 0) -> None:
        self.dtype, self.shape, self.rows = np.dtype(dtype), shape, rows
        handle = open_own(path, os.O_RDWR | os.O_CREAT)
        self.file = os.fdopen(handle, "r+b")
        self.file.truncate(self.end)
        self.write_header()
        self.file.seek(self.end)

    @property
    def end(self) -> int:
        """Return the size of the file in bytes."""
        return HEADER + self.rows * self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def append(self, rows: np.ndarray) -> None:
        """Append rows (m, *shape)."""
        assert rows.shape[1:] == self.shape, (rows.shape, self.shape)
        self.file.write(np.ascontiguousarray(rows, self.dtype).data)
        self.rows += len(rows)

    def save(self) -> None:
        """Write the number of rows, and wait until everything is on the disk."""
        self.write_header()
        self.file.seek(self.end)
        os.fsync(self.file.fileno())

    def write_header(self) -> None:
        self.file.flush()
        self.file.seek(0)
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.rows, *self.shape)}
        np.lib.format.write_array_header_1_0(self.file, header)
        assert self.file.tell() == HEADER
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def map_array(path: Path, dtype: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """Map an array of this type and shape, None for any length, from a file; DataError if it is another, or damaged.

    It may be written to, which changes nothing on the disk.
    """
    try:
        with os.fdopen(open_own(path), "rb") as file:
            header = read_npy_header(file, os.fstat(file.fileno()).st_size)
            fits = len(header.shape) == len(shape) and all(
                expected in (None, length) for length, expected in zip(header.shape, shape, strict=True)
            )
            if header.dtype != np.dtype(dtype) or header.fortran or not fits:
                wanted = " x ".join("any" if length is None else f"{length:,}" for length in shape)
                raise DataError(f"{path} has {header.dtype} {header.shape}, not {dtype} {wanted}: damaged")
            if 0 in header.shape:
                return np.zeros(header.shape, header.dtype)
            mapped: np.ndarray = np.memmap(
                file, header.dtype, "c", offset=header.start, shape=header.shape
            ).view(np.ndarray)
            return mapped
    except (OSError, ValueError, SyntaxError, tokenize.TokenError, EOFError) as error:
        why: Any = getattr(error, "strerror", None) or error
        raise DataError(f"{path} cannot be read: {why}") from error
