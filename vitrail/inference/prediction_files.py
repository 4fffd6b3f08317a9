"""Predictions as tables: a Parquet, CSV or JSON Lines file, or several of at most so many rows.

    path                one row for each image, in the order of the images
    class               the most probable class; "unsure" below its threshold, or the confidence asked for; of several
                        labels every class above its threshold, joined by |
    confidence          its probability
    top_classes         the most probable classes, most probable first       list<string> (top,)
    top_probabilities   and their probabilities                              list<float> (top,)
    probabilities       of all classes, in the order of the model's          list<float> (K,), on request
    features            the input of the classifier                          list<float> (D,), on request
    error               why the image could not be read, else null; such a row has nothing but this and its path

CSV has no lists: there each is a column for every entry. Text is UTF-8, numbers are float32.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from vitrail.errors import ConfigError, DataError
from vitrail.models.calibration import UNSURE
from vitrail.runtime.files import atomic_file

JOINT = "|"  # between the classes of an image
ROWS_AT_ONCE = 1 << 14  # held while files are joined
Write = Callable[[pa.Table], object]


@dataclass(frozen=True)
class Columns:
    """Columns of a table of predictions, besides path and error."""

    class_names: Sequence[str]  # empty: the model has no classifier
    top: int = 5
    probabilities: bool = False
    features: int = 0  # width D; 0: left out
    multi_label: bool = False

    @property
    def schema(self) -> pa.Schema:
        texts, numbers = pa.list_(pa.string()), pa.list_(pa.float32())
        fields = [("path", pa.string())]
        if self.class_names:
            fields += [("class", pa.string()), ("confidence", pa.float32())]
            fields += [("top_classes", texts), ("top_probabilities", numbers)]
        fields += [("probabilities", numbers)] if self.probabilities else []
        fields += [("features", numbers)] if self.features else []
        return pa.schema([*fields, ("error", pa.string())])


def to_table(
    columns: Columns,
    paths: list[str],
    errors: dict[int, str],
    arrays: dict[str, np.ndarray],
) -> pa.Table:
    """Return the table of n images.

    `errors`: row -> why it cannot be read. `arrays`, for the other rows, in order (m, ...): `top` int64 (m, top), the
    classes; `sure` bool (m, 1), whether the first is an answer, or of several labels (m, K), whether each is;
    top_probabilities (m, top), probabilities (m, K), features (m, D), float32.
    """
    n = len(paths)
    read = np.ones(n, bool)  # (n,)
    read[list(errors)] = False
    data: dict[str, pa.Array] = {"path": pa.array(map(as_utf8, paths), pa.string())}
    if columns.class_names:
        names = pa.array(list(map(as_utf8, columns.class_names)), pa.string())
        chosen, p = arrays["top"], arrays["top_probabilities"]  # (m, top) each
        if columns.multi_label:
            answers = [
                JOINT.join(names[int(c)].as_py() for c in np.flatnonzero(one)) for one in arrays["sure"]
            ]
            answer = pa.array([one or UNSURE for one in answers], pa.string())
        else:
            first = names.take(pa.array(chosen[:, 0]))
            answer = pc.if_else(pa.array(arrays["sure"][:, 0]), first, pa.scalar(UNSURE))
        data["class"], data["confidence"] = spread(answer, read), spread(pa.array(p[:, 0]), read)
        data["top_classes"] = lists(names.take(pa.array(chosen.ravel())), read)
    for name in ("top_probabilities", "probabilities", "features"):
        if name in arrays:
            data[name] = lists(pa.array(arrays[name].ravel()), read)
    data["error"] = pa.array([as_utf8(errors[i]) if i in errors else None for i in range(n)], pa.string())
    return pa.table(data, schema=columns.schema)


def spread(values: pa.Array, read: np.ndarray) -> pa.Array:
    """Return (n,) values: those given, (m,), at the rows that were read (n,), null at the others."""
    return values.take(pa.array(np.cumsum(read) - 1, mask=~read))


def lists(values: pa.Array, read: np.ndarray) -> pa.Array:
    """Return n lists: the m k values given, k for each row that was read (n,), null for the others."""
    k = len(values) // max(1, int(read.sum()))
    offsets = np.concatenate([[0], np.cumsum(read * k)]).astype(np.int32)  # (n + 1,)
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(~read))


def as_utf8(text: str) -> str:
    """Return text that can be stored: bytes of a file name that are not UTF-8 become \\xNN."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


# --- files ---


def check_format(out: Path) -> None:
    if out.suffix not in WRITERS:
        raise ConfigError(f"--out {out} does not end in {', '.join(WRITERS)}")


def file_names(out: Path, n: int, rows_per_file: int) -> list[Path]:
    """Return FILE.csv; for more rows than one file may have, FILE-00000-of-00002.csv, FILE-00001-of-00002.csv."""
    count = -(-n // rows_per_file)
    if count == 1:
        return [out]
    return [out.with_name(f"{out.stem}-{i:05}-of-{count:05}{out.suffix}") for i in range(count)]


def write_piece(table: pa.Table, path: Path) -> None:
    """Write a table that `join_pieces` reads, completely or not at all."""
    with atomic_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


def rows_of(piece: Path) -> int:
    """Return the number of rows of a piece; -1 if it is damaged."""
    try:
        return int(pq.read_metadata(piece).num_rows)
    except (pa.ArrowException, OSError):
        return -1


class Piece(NamedTuple):
    """A file of the rows start ... stop - 1."""

    start: int
    stop: int
    path: Path


def join_pieces(
    pieces: Sequence[Piece],
    files: Sequence[Path],
    rows_per_file: int,
    columns: Columns,
    about: dict[str, Any],
) -> tuple[Counter[str], int]:
    """Write the rows of the pieces, in order, into files; return how many rows each class has, and how many none."""
    counts: Counter[str] = Counter()
    unreadable = 0
    rows = read_pieces(pieces)
    waiting: list[pa.Table] = []
    for file in files:
        left = rows_per_file
        with atomic_file(file) as temporary, WRITERS[file.suffix](temporary, columns, about) as write:
            while left and (table := waiting.pop() if waiting else next(rows, None)) is not None:
                if len(table) > left:
                    waiting.append(table.slice(left))
                    table = table.slice(0, left)
                write(table)
                left -= len(table)
                unreadable += len(table) - table["error"].null_count
                if "class" in table.column_names:
                    for entry in table["class"].drop_null().value_counts().to_pylist():
                        counts[entry["values"]] += entry["counts"]
    return counts, unreadable


def read_pieces(pieces: Sequence[Piece]) -> Iterator[pa.Table]:
    """Yield every row once, in order, even if two processes have written the same one."""
    there = 0
    for piece in pieces:
        try:
            with pq.ParquetFile(piece.path, page_checksum_verification=True) as file:
                at = piece.start
                for batch in file.iter_batches(ROWS_AT_ONCE) if piece.stop > there else ():
                    new = pa.Table.from_batches([batch]).slice(max(0, there - at))
                    at += len(batch)
                    there = max(there, at)
                    if len(new):
                        yield new
        except (pa.ArrowException, OSError) as error:
            piece.path.unlink(missing_ok=True)
            raise DataError(
                f"{piece.path} was damaged ({error}) and is removed: the same command again computes its rows"
            ) from error


def read_classes(file: Path) -> Iterator[str | None]:
    """Yield the class in each row of a file of predictions; None where the image could not be read."""
    if file.suffix == ".jsonl":
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                yield None if row["error"] else row["class"]
        return
    with ExitStack() as stack:
        batches: Iterator[pa.RecordBatch]
        if file.suffix == ".csv":
            parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
            convert = pyarrow.csv.ConvertOptions(
                include_columns=["class", "error"], column_types={"class": pa.string(), "error": pa.string()}
            )
            batches = stack.enter_context(pyarrow.csv.open_csv(file, None, parse, convert))
        else:
            batches = stack.enter_context(pq.ParquetFile(file)).iter_batches(columns=["class", "error"])
        for batch in batches:
            for name, error in zip(batch["class"].to_pylist(), batch["error"].to_pylist(), strict=True):
                yield None if error else name


@contextmanager
def parquet_writer(path: Path, columns: Columns, about: dict[str, Any]) -> Iterator[Write]:
    writer: pq.ParquetWriter | None = None

    def write(table: pa.Table) -> None:
        nonlocal writer
        if writer is None:
            schema = table.schema.with_metadata({"vitrail": json.dumps(about)})
            writer = pq.ParquetWriter(path, schema, compression="zstd")
        writer.write_table(table.replace_schema_metadata(writer.schema.metadata))

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


@contextmanager
def csv_writer(path: Path, columns: Columns, about: dict[str, Any]) -> Iterator[Write]:
    writer: pyarrow.csv.CSVWriter | None = None

    def write(table: pa.Table) -> None:
        nonlocal writer
        flat = flatten(table, columns)
        if writer is None:
            writer = pyarrow.csv.CSVWriter(path, flat.schema)
        writer.write_table(flat)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


def flatten(table: pa.Table, columns: Columns) -> pa.Table:
    """Return the table with a column for every entry of a list: class_1, probability_1, ..., feature_0, ..."""
    entries = {
        "top_classes": [f"class_{i + 1}" for i in range(columns.top)],
        "top_probabilities": [f"probability_{i + 1}" for i in range(columns.top)],
        "probabilities": [f"probability of {as_utf8(name)}" for name in columns.class_names],
        "features": [f"feature_{i}" for i in range(columns.features)],
    }
    flat: list[tuple[str, Any]] = []
    for name in table.column_names:
        if name in entries:
            flat += [(one, pc.list_element(table[name], i)) for i, one in enumerate(entries[name])]
        else:
            flat.append((name, table[name]))
    return pa.Table.from_arrays([column for _, column in flat], names=[name for name, _ in flat])


@contextmanager
def jsonl_writer(path: Path, columns: Columns, about: dict[str, Any]) -> Iterator[Write]:
    with path.open("w", encoding="utf-8") as file:

        def write(table: pa.Table) -> None:
            for row in table.to_pylist():
                line = {name: shorten(value) for name, value in row.items()}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")

        yield write


def shorten(value: Any) -> Any:
    """Return float32 numbers with as few digits as tell them apart from other float32 numbers."""
    if isinstance(value, float):
        return float(str(np.float32(value)))
    if isinstance(value, list) and value and isinstance(value[0], float):
        return [float(one) for one in np.array(value, np.float32).astype(str)]
    return value


WRITERS: dict[str, Callable[[Path, Columns, dict[str, Any]], AbstractContextManager[Write]]] = {
    ".parquet": parquet_writer, ".csv": csv_writer, ".jsonl": jsonl_writer,
}  # fmt: skip
