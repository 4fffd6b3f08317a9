"""Images in a `.npz` file, read one by one as they are asked for.

    what np.savez wrote              ──read──────► one image     nothing is kept in memory
    what np.savez_compressed wrote   ──unpack────► all of them   in memory, in each process that reads
    an array in Fortran's order      ──copy──────► all of them   for there an image is spread over all of the file

Nothing is mapped into memory: a process ends (SIGBUS) when a file that it has mapped is cut by somebody else.
The checksum of an array is verified when it is opened, or unpacked; a file that was changed since is an error.
What an array may take in memory is bounded before anything is unpacked; what takes too much is to be saved with
np.savez.
"""

from __future__ import annotations

import os
import struct
import zipfile
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.readers.fingerprint import stamp_of
from vitrail.errors import DataError
from vitrail.runtime.npz_members import DAMAGE, read_member, read_member_header

FREE_BYTES = 1 << 30  # that images of any file may unpack to; more than that
MAX_RATIO = 20  # they may be this many times the size of their file,
MAX_BYTES = 8 << 30  # up to this
PIECE = 1 << 20  # bytes read at a time for the checksum


class ArrayFile:
    """Images in a `.npz` file: uint8 (n, ..), read one by one, or unpacked when the first is asked for."""

    def __init__(self, path: Path, member: str) -> None:
        self.path, self.member = path, member
        self._array: np.ndarray | None = None
        self._broken: str | None = None  # tried once: to unpack an array takes long
        try:
            with path.open("rb") as file, zipfile.ZipFile(file) as archive:
                info = archive.getinfo(f"{member}.npy")
                header = read_member_header(archive, info)
                self._stamp = stamp_of(os.fstat(file.fileno()))
                self._start: int | None = None  # of the pixels in the file; None: they are unpacked
                if info.compress_type == zipfile.ZIP_STORED and not header.fortran:
                    self._start = _data_start(file.fileno(), info) + header.start
                    with archive.open(info) as stream:
                        while stream.read(PIECE):  # which compares the checksum at the end
                            pass
                else:
                    _check_unpacked(info.file_size, self._stamp[0], f"{path}, array {member!r}")
        except zipfile.BadZipFile as error:
            raise DataError(f"{path}, array {member!r}: damaged: {error}") from error
        except DAMAGE as error:
            raise DataError(f"{path}, array {member!r}: not an array of numbers or text: {error}") from error
        self.shape, self.dtype = header.shape, header.dtype

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None}

    def read(self, index: int) -> np.ndarray:
        """The image `index`, 0 to n - 1: an array of its own, or a view of all where they are in memory."""
        if self._broken is not None:
            raise DataError(self._broken)
        try:
            if self._start is not None:
                return self._read_stored(index)
            if self._array is None:
                self._array = self._unpack()
            return self._array[index]
        except DAMAGE as error:
            reason = f"{self.path}, array {self.member!r}: cannot be read: {error or 'no memory for it'}"
            self._broken = reason if self._start is None else None
            raise DataError(reason) from error

    def _read_stored(self, index: int) -> np.ndarray:
        assert self._start is not None
        image = np.empty(self.shape[1:], self.dtype)
        with FileIO(self.path) as file:
            self._check_unchanged(file.fileno())
            file.seek(self._start + index * image.nbytes)
            if file.readinto(image.data) != image.nbytes:
                raise ValueError("the file ends inside of this image")
        return image

    def _unpack(self) -> np.ndarray:
        with self.path.open("rb") as file, zipfile.ZipFile(file) as archive:
            self._check_unchanged(file.fileno())
            return read_member(archive, archive.getinfo(f"{self.member}.npy"))

    def _check_unchanged(self, descriptor: int) -> None:
        if stamp_of(os.fstat(descriptor)) != self._stamp:
            raise ValueError("the file was changed since it was opened as a data set")


def _data_start(descriptor: int, info: zipfile.ZipInfo) -> int:
    """Where the data of a stored member begin: after its local header of 30 bytes, a name and an extra field."""
    lengths = os.pread(descriptor, 4, info.header_offset + 26)
    start = info.header_offset + 30 + sum(struct.unpack("<HH", lengths))
    if start + info.file_size > os.fstat(descriptor).st_size:
        raise ValueError(f"{info.file_size:,} bytes, more than the file has")
    return start


def _check_unpacked(unpacked: int, size: int, where: str) -> None:
    """Refuse, before anything is unpacked, what takes more memory than photographs of so small a file would."""
    most = min(MAX_BYTES, max(FREE_BYTES, MAX_RATIO * size))
    if unpacked > most:
        raise DataError(
            f"{where}: takes {unpacked:,} bytes of memory, and {most:,} are allowed for a file of {size:,}; saved "
            "with np.savez, uncompressed and in C order, it is read from the disk as needed"
        )
