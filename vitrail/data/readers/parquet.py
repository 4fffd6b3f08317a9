"""Parquet in the Hugging Face layout, with random access and without loading a file into memory.

    split ──file_names.py──► files ──footers──► (file, row group, row) of each example ──ParquetRows──► its bytes

An image column is a struct {bytes, path} or plain binary. A label column holds integers, with the class names in the
`huggingface` metadata of the schema (ClassLabel) or in a `classes.txt` beside the shards, or strings, which are
sorted into classes. The columns are those that the metadata calls Image and ClassLabel, else `image` or `img`, and
`label` or `fine_label`; `path?image=photo&label=breed` names others.

Parquet is made to be read by row group. The first touch of a row group decodes it with pyarrow. Where the column is
stored as it is (uncompressed, plain), the decoded values are then searched for in the raw bytes, and only their
places are kept: from there on a read costs one system call, which makes shuffled reading fast. Each was compared
with its value, so nothing depends on what pages look like. Otherwise the row groups read last are kept decoded, up
to CACHE_BYTES in each process. `vitrail data shard` writes the first kind.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vitrail.data.readers.class_names import (
    check_labels,
    check_names,
    number_labels,
    number_names,
    read_class_names,
)
from vitrail.data.readers.file_names import find_shards, find_split_shards
from vitrail.data.readers.fingerprint import digest, digest_files, file_stamp
from vitrail.data.sources import MAX_FILE_BYTES, Example, Source
from vitrail.data.splits import locate_example
from vitrail.errors import ConfigError, DataError, ImageError

CACHE_BYTES = 128 << 20  # of row groups or places, in each process that reads
OPEN_FILES = 64  # at a time, in each process that reads
PAGE_HEADER_BYTES = 64 << 10  # most between two neighbours where a page begins; headers have about 4 KB
# What a row group may unpack to: images hardly shrink, so a small file does not hold gigabytes.
GROUP_BYTES, EXPANSION = 512 << 20, 16  # at most the first, or the second times the bytes of the file
LABELS_AT_ONCE = 1 << 16
STRINGS, BINARIES = (pa.string(), pa.large_string()), (pa.binary(), pa.large_binary(), pa.binary_view())
# role: feature, usual names
USUAL = {"image": ("Image", ("image", "img")), "label": ("ClassLabel", ("label", "fine_label"))}
DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError)  # raised by pyarrow for damaged files


class ParquetSource(Source):
    """The rows of some Parquet files, one example each."""

    def __init__(
        self,
        name: str,
        root: Path,
        files: tuple[Path, ...],
        columns: Columns,
        class_names: list[str],
        labels: np.ndarray,  # int64 (n,)
    ) -> None:
        self.name, self.files, self.columns = name, files, columns
        self.class_names, self.labels = class_names, labels
        self.file_keys = [file.relative_to(root).as_posix() for file in files]
        groups, group_rows, file_rows = [], [], []
        for f, file in enumerate(files):
            footer, schema = _read_footer(file)
            if _find_leaf(schema, columns.column, file) != columns.image:
                raise DataError(f"{file}: column {columns.column!r} differs from that of {files[0].name}")
            groups += [(f, group) for group in range(footer.num_row_groups)]
            group_rows += [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
            file_rows.append(footer.num_rows)
        self.groups = np.array(groups, np.int64).reshape(-1, 2)  # (groups, 2): file, row group in it
        self.group_ends, self.file_ends = np.cumsum(group_rows), np.cumsum(file_rows)  # (groups,), (files,)
        self.rows = ParquetRows(files, columns.image)

    def key(self, index: int) -> str:
        f, row = locate_example(index, self.file_ends)
        return f"{self.file_keys[f]}:{row}"

    def read(self, index: int) -> Example:
        key = self.key(index)
        number, row = locate_example(index, self.group_ends)
        f, group = self.groups[number].tolist()
        try:
            image = self.rows.read(f, group, row)
        except DataError as error:
            raise type(error)(f"{key}: {error}") from error
        if image is None:
            raise DataError(f"{key}: the row has no image bytes (a path alone is not followed)")
        return Example(image, int(self.labels[index]), key)

    def fingerprint(self) -> str:
        files = digest_files(zip(self.file_keys, self.files, strict=True))
        return digest(files, self.columns.image, self.columns.label, *self.class_names)


def open_parquet(path: Path, split: str, image: str | None = None, label: str | None = None) -> ParquetSource:
    """Open one split of a folder of Parquet shards, or of one file."""
    splits = find_shards(path, ".parquet")
    split, shards = find_split_shards(path, ".parquet", split)
    root = path if path.is_dir() else path.parent
    name, first = f"{root.resolve().name}:{split}", shards.files[0]
    columns = find_columns(_read_footer(first)[1], image, label, first)
    pieces = {file: _read_labels(file, columns) for file in shards.files}

    class_names = columns.class_names or read_class_names(root)
    if class_names is None:
        # Nothing names the classes: they are the values that occur, strings in train, numbers in all splits.
        read = [splits["train"]] if "train" in splits and columns.text else list(splits.values())
        files = [file for others in read for file in others.files]
        there = [piece for file in files for piece in pieces.get(file) or _read_labels(file, columns)]
        if columns.text:
            class_names = sorted({text for piece in there for text in piece.dictionary.to_pylist()} - {None})
        else:
            class_names = number_names([piece.to_numpy() for piece in there if not piece.null_count])

    numbers = [np.zeros(0, np.int64)]
    for file in shards.files:
        if missing := sum(piece.null_count for piece in pieces[file]):
            raise DataError(f"{file}: {missing} of {sum(map(len, pieces[file]))} rows have no label")
        for piece in pieces[file]:
            if columns.text:
                known = number_labels(piece.dictionary.to_pylist(), class_names, str(file))
                numbers.append(known[piece.indices.to_numpy()])
            else:
                numbers.append(piece.to_numpy().astype(np.int64))
    labels = np.concatenate(numbers)
    if not len(labels):
        raise DataError(f"{name}: no rows in {len(shards.files)} files, first {first}")
    check_labels(labels, class_names, name)
    return ParquetSource(name, root, shards.files, columns, class_names, labels)


@dataclass(frozen=True)
class Columns:
    """The columns that hold the image and the label."""

    column: str  # of the image
    image: str  # its leaf that holds the bytes: `image.bytes`, or `image` where the column is binary
    label: str
    text: bool  # labels are strings
    class_names: list[str] | None  # as the metadata of the schema has them


def find_columns(schema: pa.Schema, image: str | None, label: str | None, file: Path) -> Columns:
    """Choose the columns of a file: those that are named, else by feature, else by the usual names."""
    features: dict[str, Any] = {}  # as Hugging Face `datasets` stores them
    if metadata := (schema.metadata or {}).get(b"huggingface"):
        try:
            stored = json.loads(metadata)["info"]["features"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{file}: its huggingface metadata cannot be read: {error!r}") from error
        if isinstance(stored, dict):
            features = {name: feature for name, feature in stored.items() if isinstance(feature, dict)}

    def find_by_feature(role: str) -> list[str]:
        return [name for name in schema.names if features.get(name, {}).get("_type") == USUAL[role][0]]

    column = find_column("image", image, schema.names, find_by_feature("image"), str(file))
    target = find_column("label", label, schema.names, find_by_feature("label"), str(file))
    feature = features.get(target, {})
    class_names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    if class_names is not None:
        class_names = check_names(class_names, f"{file}: the ClassLabel of column {target!r}")
    return Columns(
        column, _find_leaf(schema, column, file), target, _is_text(schema, target, file), class_names
    )


def find_column(role: str, asked: str | None, names: list[str], matching: list[str], where: str) -> str:
    """Return the column for `role`: the one that is named, else the only one of its kind, else the usual name."""
    candidates = matching if len(matching) == 1 else [name for name in USUAL[role][1] if name in names]
    if asked is None and not candidates:
        raise DataError(
            f"{where}: cannot tell which column is the {role}, of {', '.join(names) or 'none'}; name it after the "
            f"path: ?{role}=NAME"
        )
    if asked is not None and asked not in names:
        raise ConfigError(f"{where}: no column {asked!r} for the {role}; columns: {', '.join(names)}")
    return asked or candidates[0]


class ParquetRows:
    """Single values of one binary column of some files. No file is open until the first read in a process."""

    def __init__(
        self, files: tuple[Path, ...], column: str, stamps: list[tuple[int, int]] | None = None
    ) -> None:
        self.files, self.column = files, column
        self.stamps = [file_stamp(file.stat()) for file in files] if stamps is None else stamps
        self._groups: OrderedDict[tuple[int, int], np.ndarray | pa.ChunkedArray] = OrderedDict()
        self._open: OrderedDict[int, tuple[RecordedFile, pq.ParquetFile]] = OrderedDict()
        self._broken: dict[tuple[int, int], str] = {}
        self._bytes = 0
        self._lock = threading.Lock()  # an open Parquet file serves one thread at a time

    def __reduce__(self) -> tuple[Any, ...]:
        return ParquetRows, (self.files, self.column, self.stamps)

    def read(self, f: int, group: int, row: int) -> bytes | None:
        """Return the value in `row` of row group `group` of file `f`; None: null."""
        with self._lock:
            try:
                file, values = self._read_group(f, group)
                if isinstance(values, np.ndarray):
                    buffer, (start, size) = None, values[row].tolist()
                else:
                    buffer, start = values[row].as_buffer(), 0
                    size = -1 if buffer is None else buffer.size
                if size < 0:
                    return None
                if size > MAX_FILE_BYTES:
                    raise ImageError(f"an image of {size:,} bytes; at most {MAX_FILE_BYTES:,} are read")
                data: bytes = file.read_at(size, start) if buffer is None else buffer.to_pybytes()
            except DAMAGE as error:
                raise DataError(f"row group {group} of {self.files[f]} cannot be read: {error}") from error
        if len(data) != size:
            raise DataError(f"{self.files[f]} ends early: it was truncated while it was in use")
        return data

    def _read_group(self, f: int, group: int) -> tuple[RecordedFile, np.ndarray | pa.ChunkedArray]:
        """Return the file, and the places (n, 2) of the values of a row group in it, or the decoded values."""
        if f not in self._open:
            if file_stamp(self.files[f].stat()) != self.stamps[f]:
                raise DataError(f"{self.files[f]} was changed since it was opened as a data set")
            file = RecordedFile(self.files[f])
            self._open[f] = (file, pq.ParquetFile(file, pre_buffer=False))
            if len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)
        self._open.move_to_end(f)
        file, parquet = self._open[f]

        if (f, group) in self._broken:
            raise DataError(self._broken[f, group])
        if (f, group) not in self._groups:
            try:
                values = _read_values(parquet, self.column, group, self.files[f])
            except (pa.ArrowException, DataError) as error:
                self._broken[f, group] = str(error)  # decoding takes long, and each of its rows asks for it
                raise
            places = find_values(file.data, values.to_pylist())
            if places is not None:
                places[places[:, 1] >= 0, 0] += file.start
                values = places
            file.data = b""
            self._groups[f, group] = values
            self._bytes += values.nbytes
            while self._bytes > CACHE_BYTES and len(self._groups) > 1:
                self._bytes -= self._groups.popitem(last=False)[1].nbytes
        self._groups.move_to_end((f, group))
        return file, self._groups[f, group]


class RecordedFile:
    """A file that keeps the bytes last read and where they began: what pyarrow reads of a column, in one piece.

    So the places of columns need not be known. pyarrow has them too, but ends the process, without an exception,
    where a damaged footer contradicts itself (RowGroupMetaData.column).
    """

    closed = False  # what pyarrow asks of a file besides read, seek, tell and close

    def __init__(self, path: Path) -> None:
        self.file = pa.OSFile(str(path))
        self.start, self.data = 0, b""
        self.read_at, self.seek, self.tell = self.file.read_at, self.file.seek, self.file.tell

    def read(self, size: int) -> bytes:
        self.start = self.tell()
        # A damaged footer may ask for any number of bytes.
        self.data = self.file.read(max(0, min(size, self.file.size() - self.start)))
        return self.data

    def close(self) -> None:
        self.file.close()


def find_values(raw: bytes, values: list[bytes | None]) -> np.ndarray | None:
    """Find values in a plainly encoded column: int64 (n, 2), start and length, -1 for null; None: another encoding.

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


def _read_values(parquet: pq.ParquetFile, column: str, group: int, file: Path) -> pa.ChunkedArray:
    """Decode a binary column of a row group; DataError where that would be out of proportion to the file.

    Equal values may be stored once and so take no room in the file. They are therefore read in steps of as many rows
    as stay below the bound even if each has all bytes of the row group.
    """
    metadata, most = parquet.metadata.row_group(group), max(GROUP_BYTES, EXPANSION * file.stat().st_size)
    size = max(metadata.total_byte_size, 1)
    if size > most:
        raise DataError(f"{file}: row group {group} has {size:,} bytes, unpacked; at most {most:,} are read")
    step = max(1, min(metadata.num_rows, most // size))
    batches = parquet.iter_batches(step, row_groups=[group], columns=[column], use_threads=False)
    return pa.chunked_array(_unpack(batches, metadata.num_rows, column, file))


def _read_labels(file: Path, columns: Columns) -> list[pa.Array]:
    """Read the labels of a file in pieces: integers, or dictionaries of text, where a name is held once."""
    footer, schema = _read_footer(file)
    if _is_text(schema, columns.label, file) != columns.text:
        raise DataError(f"{file}: column {columns.label!r} differs from that of other files")
    try:
        parquet = pq.ParquetFile(file, read_dictionary=[columns.label] if columns.text else [])
        batches = parquet.iter_batches(LABELS_AT_ONCE, columns=[columns.label], use_threads=False)
        return _unpack(batches, footer.num_rows, columns.label, file)
    except DAMAGE as error:
        raise DataError(f"{file}: column {columns.label!r} cannot be read: {error}") from error


def _unpack(batches: Iterable[pa.RecordBatch], rows: int, column: str, file: Path) -> list[pa.Array]:
    """Read the values of a column, within the bytes that a file of this size may unpack to."""
    most = max(GROUP_BYTES, EXPANSION * file.stat().st_size)
    pieces, unpacked = [], 0
    for batch in batches:
        piece = batch.column(0)
        if pa.types.is_struct(piece.type):
            piece = pc.struct_field(piece, "bytes")
        if pa.types.is_dictionary(piece.type) and piece.type.value_type not in STRINGS:
            piece = piece.dictionary_decode()
        piece.validate(full=True)  # that text is UTF-8
        pieces.append(piece)
        unpacked += piece.nbytes
        if unpacked > most:
            raise DataError(
                f"{file}: column {column!r} unpacks to more than the {most:,} bytes that are read"
            )
    if (count := sum(map(len, pieces))) != rows:
        raise DataError(f"{file}: column {column!r} has {count:,} values for {rows:,} rows")
    return pieces


def _find_leaf(schema: pa.Schema, image: str, file: Path) -> str:
    """Return where the bytes of images are: in the column, or in its field `bytes`."""
    kind = _column_type(schema, image, file)
    within = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    if (kind.field("bytes").type if within else kind) not in BINARIES:
        raise DataError(f"{file}: column {image!r} is {kind}; images are a struct {{bytes, path}}, or binary")
    return f"{image}.bytes" if within else image


def _is_text(schema: pa.Schema, label: str, file: Path) -> bool:
    """Tell whether labels are strings; else they are integers."""
    stored = _column_type(schema, label, file)
    stored = stored.value_type if pa.types.is_dictionary(stored) else stored
    if stored not in STRINGS and not pa.types.is_integer(stored):
        raise DataError(f"{file}: column {label!r} is {stored}; labels are integers or strings")
    return stored in STRINGS


def _column_type(schema: pa.Schema, column: str, file: Path) -> pa.DataType:
    if schema.names.count(column) != 1:
        raise DataError(f"{file}: {schema.names.count(column)} columns {column!r}; exactly one is needed")
    return schema.field(column).type


def _read_footer(file: Path) -> tuple[pq.FileMetaData, pa.Schema]:
    """Read the footer, and the columns as it has them; DataError for one that contradicts itself or the file."""
    try:
        footer, size = pq.read_metadata(file), file.stat().st_size
        rows = sum(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
        schema = footer.schema.to_arrow_schema()
    except DAMAGE as error:
        raise DataError(f"{file}: not a whole Parquet file: {error}") from error
    if rows != footer.num_rows or rows > size:  # an image has more than one byte
        raise DataError(f"{file}: claims {footer.num_rows:,} rows, but has {size:,} bytes")
    return footer, schema
