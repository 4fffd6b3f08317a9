"""Single values out of Parquet files, which are made to be read by row group.

    (file, row group, row) ──► place of its bytes in the file ──read──► bytes        uncompressed, plainly encoded
                          └──► the decoded row group, kept in memory ──► bytes        anything else

The first touch of a row group decodes it with pyarrow. Where the column is stored as it is, the decoded
values are then looked for in the raw bytes, and only their places are kept: from there on a read costs one
call, and the cache is that of the operating system. Every place was compared with the value, so nothing
depends on what pages look like. Otherwise the decoded row groups read last are kept, up to CACHE_BYTES in
each process, and what costs is one that is not there. `vitrail data shard` writes the first kind, in small
row groups (shard.py).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vitrail.data.readers.parquet_footer import Chunk, read_chunks
from vitrail.data.sources import MAX_FILE_BYTES
from vitrail.errors import DataError, ImageError

CACHE_BYTES = 128 << 20  # of row groups or places, in each process that reads
OPEN_FILES = 64  # at a time, in each process that reads
# How far apart two neighbours may lie where a page begins; headers have about 4 KB at most.
PAGE_HEADER_BYTES = 64 << 10
# What a column of a row group may have, unpacked: images hardly shrink, so a small file does not hold gigabytes.
GROUP_BYTES, EXPANSION = 512 << 20, 16  # at most the first, or the second times the bytes of the file

DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError)  # what broken bytes make of pyarrow


class ParquetRows:
    """The values of one binary column of some files. Nothing is open until the first read in a process."""

    def __init__(self, files: tuple[Path, ...], column: str) -> None:
        self.files, self.column = files, column
        self.stamps = [_stamp(file) for file in files]
        self._forget()

    def __getstate__(self) -> dict[str, object]:
        return {"files": self.files, "column": self.column, "stamps": self.stamps}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        self._groups: OrderedDict[tuple[int, int], np.ndarray | pa.ChunkedArray] = OrderedDict()
        self._open: OrderedDict[int, tuple[pa.OSFile, pq.ParquetFile]] = OrderedDict()
        self._chunks: dict[int, list[Chunk]] = {}  # of each file that was read from
        self._broken: dict[tuple[int, int], str] = {}
        self._bytes = 0
        self._lock = threading.Lock()  # an open Parquet file serves one thread at a time

    def read(self, f: int, group: int, row: int) -> bytes | None:
        """The value in `row` of row group `group` of file `f`; None: null."""
        with self._lock:
            try:
                file, _ = self._file(f)
                found = self._group(f, group)
            except DAMAGE as error:
                raise DataError(f"row group {group} of {self.files[f]} cannot be read: {error}") from error
        if not isinstance(found, np.ndarray):
            buffer = found[row].as_buffer()
            if buffer is not None:
                _check_size(buffer.size)
            return None if buffer is None else buffer.to_pybytes()
        start, length = found[row].tolist()
        if length < 0:
            return None
        _check_size(length)
        try:
            data: bytes = file.read_at(length, start)
        except DAMAGE as error:
            raise DataError(f"row {row} of row group {group} of {self.files[f]}: {error}") from error
        if len(data) != length:
            raise DataError(f"{self.files[f]} ends early: it was cut while it was in use")
        return data

    def _file(self, f: int) -> tuple[pa.OSFile, pq.ParquetFile]:
        if f not in self._open:
            if _stamp(self.files[f]) != self.stamps[f]:
                raise DataError(f"{self.files[f]} was changed since it was opened as a data set")
            file = pa.OSFile(str(self.files[f]))
            self._open[f] = (file, pq.ParquetFile(file, pre_buffer=False))
            if len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)
        self._open.move_to_end(f)
        return self._open[f]

    def _group(self, f: int, group: int) -> np.ndarray | pa.ChunkedArray:
        found = self._groups.get((f, group))
        if found is None:
            found = self._groups[f, group] = self._load(f, group)
            self._bytes += found.nbytes
            while self._bytes > CACHE_BYTES and len(self._groups) > 1:
                self._bytes -= self._groups.popitem(last=False)[1].nbytes
        self._groups.move_to_end((f, group))
        return found

    def _load(self, f: int, group: int) -> np.ndarray | pa.ChunkedArray:
        file, parquet = self._file(f)
        if (f, group) in self._broken:
            raise DataError(self._broken[f, group])
        try:
            if f not in self._chunks:
                self._chunks[f] = column_chunks(self.files[f], self.column)
            values = read_column(parquet, self.column, [group], self.files[f], self._chunks[f])
        except (pa.ArrowException, DataError) as error:
            self._broken[f, group] = str(error)  # to unpack it takes long, and each of its rows asks for it
            raise
        if pa.types.is_struct(values.type):
            values = pc.struct_field(values, "bytes")
        chunk = self._chunks[f][group]
        if not chunk.compressed and chunk.size <= self.stamps[f][0]:
            raw = file.read_at(chunk.size, chunk.start)
            places = find_values(raw, values.to_pylist())
            if places is not None:
                places[places[:, 1] >= 0, 0] += chunk.start
                return places
        return values


def read_column(
    parquet: pq.ParquetFile, column: str, groups: list[int], file: Path, chunks: list[Chunk]
) -> pa.ChunkedArray:
    """A column of some row groups, in memory; DataError where that would be out of proportion to the file.

    Values that are alike may be stored once and so take no room in the file. They are therefore read in steps of
    as many rows as stay below the bound even if each has all bytes of the column.
    """
    most = max(GROUP_BYTES, EXPANSION * file.stat().st_size)
    size = sum(chunks[group].unpacked_size for group in groups)
    if size > most:
        raise DataError(
            f"{file}: column {column!r} has {size:,} bytes, unpacked; at most {most:,} are read of this file"
        )
    rows = sum(parquet.metadata.row_group(group).num_rows for group in groups)
    step = max(1, min(rows, most // max(size, 1)))
    parts, unpacked = [], 0
    for batch in parquet.iter_batches(step, row_groups=groups, columns=[column], use_threads=False):
        part = batch.column(0)
        parts.append(part.dictionary_decode() if pa.types.is_dictionary(part.type) else part)
        unpacked += parts[-1].nbytes
        if unpacked > most:
            raise DataError(
                f"{file}: column {column!r} unpacks to more than the {most:,} bytes that are read of this file"
            )
    if (values := sum(map(len, parts))) != rows:
        raise DataError(f"{file}: column {column!r} has {values:,} values for {rows:,} rows")
    return pa.chunked_array(parts) if parts else pa.chunked_array([], pa.null())


def column_chunks(file: Path, column: str) -> list[Chunk]:
    """What the footer says of a column, for each row group."""
    groups = read_chunks(file)
    found = [chunk for group in groups for chunk in group if chunk.path == column]
    if len(found) != len(groups):
        raise DataError(f"column {column!r} is in {len(found)} of {len(groups)} row groups")
    return found


def _check_size(size: int) -> None:
    if size > MAX_FILE_BYTES:
        raise ImageError(f"an image of {size:,} bytes; at most {MAX_FILE_BYTES:,} are read")


def find_values(raw: bytes, values: list[bytes | None]) -> np.ndarray | None:
    """Where values lie in a plainly encoded column: int64 (n, 2), start and length, -1 for null; None: not so stored.

    A value is stored as its length in 4 bytes, then its bytes. The next one follows, or a page header comes between.
    """
    places = np.full((len(values), 2), -1, dtype=np.int64)  # (n, 2)
    position = 0
    for row, value in enumerate(values):
        if value is None:
            continue
        stored = len(value).to_bytes(4, "little") + value
        if not raw.startswith(stored, position):
            position = raw.find(stored, position, position + PAGE_HEADER_BYTES + len(stored))
            if position < 0:
                return None
        places[row] = position + 4, len(value)
        position += len(stored)
    return places


def _stamp(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns
