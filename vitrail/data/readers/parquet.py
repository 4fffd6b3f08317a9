"""Parquet in the Hugging Face layout, with random access and without loading a file into memory.

    split ──shard_files.py──► shards ──footers──► (shard, row group, row) of each example ──► its bytes

An image column is a struct {bytes, path} or plain binary; a label column holds integers, with the names of
the classes in the `huggingface` metadata of the schema (ClassLabel) or in a `classes.txt` beside the shards,
or strings, which are sorted into classes. Which columns: the ones that the metadata calls Image and
ClassLabel, else `image` or `img`, and `label` or `fine_label`; `path?image=photo&label=breed` says it for
other files.

How a single row is read, and what that costs, is in parquet_rows.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vitrail.data.readers.class_names import (
    check_labels,
    check_names,
    labels_of,
    number_names,
    read_class_names,
)
from vitrail.data.readers.fingerprint import digest, digest_files
from vitrail.data.readers.parquet_rows import DAMAGE, ParquetRows, column_chunks, read_column
from vitrail.data.readers.shard_files import find_shards, shards_of
from vitrail.data.sources import Example
from vitrail.errors import ConfigError, DataError


class ParquetSource:
    """The rows of some Parquet files, one example each."""

    def __init__(
        self, name: str, root: Path, files: tuple[Path, ...], columns: Columns, class_names: list[str]
    ) -> None:
        self.name, self.files, self.columns, self.class_names = name, files, columns, class_names
        self.file_keys = [file.relative_to(root).as_posix() for file in files]
        footers = [_footer(file) for file in files]
        for footer, file in zip(footers, files, strict=True):
            if _leaf(_schema(footer, file), columns.column, file) != columns.image:
                raise DataError(f"{file}: column {columns.column!r} differs from that of {files[0].name}")
        groups = [footer.row_group(g).num_rows for footer in footers for g in range(footer.num_row_groups)]
        self.group_ends = np.cumsum(groups, dtype=np.int64)  # (row groups of all files,): rows up to each end
        self.file_groups = np.cumsum([footer.num_row_groups for footer in footers])  # (files,)
        self.file_ends = np.cumsum([footer.num_rows for footer in footers])  # (files,)
        self.labels = _read_labels(files, columns, class_names, name)
        self.rows = ParquetRows(files, columns.image)

    def __len__(self) -> int:
        return int(self.file_ends[-1])

    def key(self, index: int) -> str:
        f, row = _locate(self.file_ends, index)
        return f"{self.file_keys[f]}:{row}"

    def read(self, index: int) -> Example:
        key = self.key(index)
        group, row = _locate(self.group_ends, index)
        f, group_in_file = _locate(self.file_groups, group)
        try:
            image = self.rows.read(f, group_in_file, row)
        except DataError as error:
            raise DataError(f"{key}: {error}") from error
        if image is None:
            raise DataError(f"{key}: the row has no image bytes (a path alone is not followed)")
        return Example(image, int(self.labels[index]), key)

    def fingerprint(self) -> str:
        files = digest_files(zip(self.file_keys, self.files, strict=True))
        return digest(files, self.columns.image, self.columns.label, *self.class_names)


def open_parquet(path: Path, split: str, image: str | None = None, label: str | None = None) -> ParquetSource:
    """Open one split of a folder of Parquet shards, or of one file."""
    splits = find_shards(path, ".parquet")
    name, shards = shards_of(path, ".parquet", split)
    root = path if path.is_dir() else path.parent
    schema = _schema(_footer(shards.files[0]), shards.files[0])
    columns = Columns.find(schema, image, label, shards.files[0])
    class_names = columns.class_names or read_class_names(root)
    if class_names is None:
        # Nothing names the classes: they are the values that occur, strings in train, numbers in all splits.
        seen = [splits["train"]] if "train" in splits and columns.text else list(splits.values())
        values = [_labels_in(file, columns) for found in seen for file in found.files]
        if columns.text:
            class_names = sorted(
                {text for column in values for text in column.unique().to_pylist() if text is not None}
            )
        else:
            class_names = number_names([column.to_numpy() for column in values if not column.null_count])
    return ParquetSource(f"{root.resolve().name}:{name}", root, shards.files, columns, class_names)


@dataclass(frozen=True)
class Columns:
    """Which columns hold the image and the label."""

    column: str  # of the image
    image: str  # its leaf that holds the bytes: `image.bytes`, or `image` where the column is binary
    label: str
    text: bool  # labels are strings
    class_names: list[str] | None  # as the metadata of the schema has them

    @classmethod
    def find(cls, schema: pa.Schema, image: str | None, label: str | None, file: Path) -> Columns:
        features = _features(schema, file)
        types = {
            name: str(feature.get("_type")) for name, feature in features.items() if isinstance(feature, dict)
        }
        image = _choose("image", image, types, "Image", ("image", "img"), schema, file)
        label = _choose("label", label, types, "ClassLabel", ("label", "fine_label"), schema, file)
        leaf, text = _leaf(schema, image, file), _is_text(schema, label, file)
        names = features[label].get("names") if types.get(label) == "ClassLabel" else None
        if names is not None:
            names = check_names(names, f"{file}: the ClassLabel of column {label!r}")
        return cls(image, leaf, label, text, names)


def _leaf(schema: pa.Schema, image: str, file: Path) -> str:
    """Where the bytes of images are: in the column, or in its field `bytes`."""
    kind = _type(schema, image, file)
    within = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    stored = kind.field("bytes").type if within else kind
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    if not any(is_it(stored) for is_it in binary):
        raise DataError(f"{file}: column {image!r} is {kind}; images are a struct {{bytes, path}}, or binary")
    return f"{image}.bytes" if within else image


def _is_text(schema: pa.Schema, label: str, file: Path) -> bool:
    """Whether labels are strings, and not integers."""
    stored = _type(schema, label, file)
    stored = stored.value_type if pa.types.is_dictionary(stored) else stored
    text: bool = pa.types.is_string(stored) or pa.types.is_large_string(stored)
    if not text and not pa.types.is_integer(stored):
        raise DataError(f"{file}: column {label!r} is {stored}; labels are integers or strings")
    return text


def _type(schema: pa.Schema, column: str, file: Path) -> pa.DataType:
    if schema.names.count(column) != 1:
        raise DataError(f"{file}: {schema.names.count(column)} columns {column!r}; it has to have one")
    return schema.field(column).type


def _locate(ends: np.ndarray, index: int) -> tuple[int, int]:
    """Which of the consecutive ranges that end at `ends` holds `index`, and where in it."""
    if not 0 <= index < ends[-1]:
        raise IndexError(f"{index} in a source of {ends[-1]}")
    part = int(np.searchsorted(ends, index, side="right"))
    return part, index - (int(ends[part - 1]) if part else 0)


def _choose(
    role: str,
    asked: str | None,
    types: dict[str, str],
    feature: str,
    usual: tuple[str, ...],
    schema: pa.Schema,
    file: Path,
) -> str:
    """The column for `role`: the one asked for, else the only one of its feature, else the usual name."""
    if asked is not None:
        if asked not in schema.names:
            raise ConfigError(
                f"{file}: no column {asked!r} for the {role}; columns: {', '.join(schema.names)}"
            )
        return asked
    named = [name for name in schema.names if types.get(name) == feature]
    candidates = named if len(named) == 1 else [name for name in usual if name in schema.names]
    if not candidates:
        raise DataError(
            f"{file}: which column is the {role}, of {', '.join(schema.names)}? Say it behind the path: "
            f"?{role}=NAME"
        )
    return candidates[0]


def _features(schema: pa.Schema, file: Path) -> dict[str, Any]:
    """The features that Hugging Face `datasets` notes in the schema; empty where it did not write them."""
    note = (schema.metadata or {}).get(b"huggingface")
    if note is None:
        return {}
    try:
        features = json.loads(note)["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{file}: its huggingface metadata cannot be read: {error!r}") from error
    return features if isinstance(features, dict) else {}


def _schema(footer: pq.FileMetaData, file: Path) -> pa.Schema:
    try:
        return footer.schema.to_arrow_schema()
    except DAMAGE as error:
        raise DataError(f"{file}: its columns cannot be read: {error}") from error


def _footer(file: Path) -> pq.FileMetaData:
    try:
        return _sound(pq.read_metadata(file), file)
    except DAMAGE as error:
        raise DataError(f"{file}: not a whole Parquet file: {error}") from error


def _sound(footer: pq.FileMetaData, file: Path) -> pq.FileMetaData:
    rows = sum(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
    if rows != footer.num_rows or rows > file.stat().st_size:  # an image has more than one byte
        raise DataError(f"{file}: says {footer.num_rows:,} rows, and has {file.stat().st_size:,} bytes")
    return footer


def _labels_in(file: Path, columns: Columns) -> pa.ChunkedArray:
    try:
        parquet = pq.ParquetFile(file)
        if _is_text(parquet.schema_arrow, columns.label, file) != columns.text:
            raise DataError(f"{file}: column {columns.label!r} differs from that of other files")
        groups = list(range(_sound(parquet.metadata, file).num_row_groups))
        chunks = column_chunks(file, columns.label)
        if len(chunks) != len(groups):
            raise DataError(f"{file}: its footer is damaged: {len(chunks)} row groups, or {len(groups)}")
        column = read_column(parquet, columns.label, groups, file, chunks)
        column.validate(full=True)  # that text is UTF-8
        return column
    except DAMAGE as error:
        raise DataError(f"{file}: column {columns.label!r} cannot be read: {error}") from error


def _read_labels(files: tuple[Path, ...], columns: Columns, class_names: list[str], name: str) -> np.ndarray:
    parts = []
    for file in files:
        column = _labels_in(file, columns)
        if column.null_count:
            raise DataError(f"{file}: {column.null_count} of {len(column)} rows have no label")
        if columns.text:
            parts.append(labels_of(column.to_pylist(), class_names, str(file)))
        else:
            parts.append(column.to_numpy().astype(np.int64))
    labels = np.concatenate(parts)
    if not len(labels):
        raise DataError(f"{name}: no rows in {len(files)} files, first {files[0]}")
    check_labels(labels, class_names, name)
    return labels
