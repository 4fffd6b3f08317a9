"""Files of labels: CSV, JSON lines or Parquet -> named columns of text.

    labels.csv       ,  ;  or tab between cells, which are quoted as in RFC 4180; the first line names the columns.
    labels.tsv       Without such a line, a column of image names tells them: they are then column 1, column 2, ...
    labels.jsonl     an object on each line; a list of strings is several labels
    labels.parquet   columns of text, numbers or lists of them

Text is UTF-8, with or without a byte order mark, or UTF-16 with one; what is neither is read as Windows-1252, which
Excel writes, and said. A cell is text, a tuple of texts (a list) or None (empty). Sizes are bounded: bytes of the
file, rows, columns, and letters of a cell.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from vitrail.data.bounded_files import parse_object, read_file
from vitrail.data.readers.file_names import is_image_name
from vitrail.errors import ConfigError, DataError
from vitrail.runtime.log import note

Cell = str | tuple[str, ...] | None

ENDINGS = {
    ".csv": "csv", ".tsv": "csv", ".txt": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet",
}  # fmt: skip
MAX_BYTES = 512 << 20  # of a file, and of what a Parquet file unpacks to
MAX_ROWS, MAX_COLUMNS, MAX_LETTERS, MAX_ITEMS = 20_000_000, 4096, 1 << 16, 4096
BOMS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
LOOKED_AT = 100  # rows, for image names where no line names the columns


@dataclass(frozen=True)
class Table:
    """Columns of one length, by name. `lines` says where a row stands, for messages."""

    path: Path
    columns: dict[str, list[Cell]]
    lines: list[int]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, column: str) -> list[Cell]:
        return self.columns[column]

    def place(self, row: int) -> str:
        return f"{self.path}, line {self.lines[row]}"


def read_table(path: Path) -> Table:
    """Read a file of labels; DataError says what is wrong with it, and where."""
    kind = ENDINGS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(f"{path}: not a file of labels; they end in {', '.join(ENDINGS)}")
    if kind == "parquet":
        return _read_parquet(path)
    text = read_encoded(path)
    header, rows = (_read_csv if kind == "csv" else _read_json_lines)(text, path)
    if not rows:
        raise DataError(f"{path}: no rows with labels")
    lines = [line for line, _ in rows]
    columns = {name: [cells[k] for _, cells in rows] for k, name in enumerate(header)}
    return Table(path, columns, lines)


def read_encoded(path: Path) -> str:
    """Read text in one of the encodings above."""
    try:
        data = read_file(path, MAX_BYTES)
    except OSError as error:
        raise DataError(f"{path}: labels cannot be read: {error.strerror or error}") from error
    encoding = next((name for mark, name in BOMS.items() if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            raise DataError(f"{path}: begins as {encoding}, and is not: {error.reason}") from error
        try:
            text = data.decode("cp1252")
        except UnicodeDecodeError:
            raise DataError(f"{path}: neither UTF-8 nor Windows-1252: save it as UTF-8") from error
        note(f"{path} is not UTF-8: read as Windows-1252; check names with accents, or save it as UTF-8")
    if "\0" in text:
        raise DataError(f"{path}: contains zero bytes, as UTF-16 without its mark does: save it as UTF-8")
    return text


Rows = list[tuple[int, list[Cell]]]  # (line, cells in the order of the columns)


def _read_csv(text: str, path: Path) -> tuple[list[str], Rows]:
    if text.startswith("sep=") and (mark := text[4:5]) in (",", ";", "\t", "|"):  # a first line for Excel
        text = "\n" + text.partition("\n")[2]  # lines keep their numbers
    else:
        mark = max(",\t;", key=lambda mark: _count_columns(text, mark, path))
    rows: Rows = []
    width, header = 0, [""]
    for line, cells in _split(text, mark, path):
        if not width:
            width, header = len(cells), [cell.strip() for cell in cells]
            if width > MAX_COLUMNS:
                raise DataError(f"{path}: {width:,} columns; at most {MAX_COLUMNS:,} are read")
            if not any(map(is_image_name, header)):
                continue
            header = [f"column {k}" for k in range(1, width + 1)]
        if len(cells) != width:
            raise DataError(f"{path}, line {line}: {len(cells)} cells, where the first line has {width}")
        if len(rows) == MAX_ROWS:
            raise DataError(f"{path}: more than {MAX_ROWS:,} rows, which are not read")
        rows.append((line, [_check_cell(cell, f"{path}, line {line}") for cell in cells]))
    return _check_header(header, path), rows


def _count_columns(text: str, mark: str, path: Path) -> int:
    """Count the cells that a mark makes of the first line; 0 where it makes none."""
    try:
        return len(next(_split(text, mark, path), (0, []))[1])
    except DataError:
        return 0


def _split(text: str, mark: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells) of the rows that are not blank."""
    reader = csv.reader(StringIO(text, newline=""), delimiter=mark, strict=True)
    line = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}, line {line}: not a row of a CSV file: {error}") from error


def _read_json_lines(text: str, path: Path) -> tuple[list[str], Rows]:
    objects: list[tuple[int, dict[str, Any]]] = []
    names: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            objects.append((number, parse_object(line, f"{path}, line {number}")))
            for name in objects[-1][1]:
                names.setdefault(name.strip(), len(names))
            if len(names) > MAX_COLUMNS or len(objects) > MAX_ROWS:
                raise DataError(f"{path}: more than {MAX_ROWS:,} rows or {MAX_COLUMNS:,} columns")
    rows: Rows = []
    for number, row in objects:
        cells: list[Cell] = [None] * len(names)
        for name, value in row.items():
            cells[names[name.strip()]] = _check_cell(value, f"{path}, line {number}, {name!r:.60}")
        rows.append((number, cells))
    return _check_header(list(names), path), rows


def _read_parquet(path: Path) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from vitrail.data.readers.parquet import DAMAGE

    columns: dict[str, list[Cell]] = {}
    try:
        with path.open("rb") as file:
            parquet = pq.ParquetFile(file)
            footer, schema = parquet.metadata, parquet.schema_arrow
            if footer.num_rows > MAX_ROWS or len(schema.names) > MAX_COLUMNS:
                raise DataError(
                    f"{path}: {footer.num_rows:,} rows, {len(schema.names):,} columns; at most {MAX_ROWS:,} and "
                    f"{MAX_COLUMNS:,} are read"
                )
            plain = [field.name for field in schema if _is_plain(field.type)]
            header = _check_header(plain, path)
            columns, unpacked = {name: [] for name in header}, 0
            batches = parquet.iter_batches(1 << 16, columns=plain, use_threads=False) if plain else ()
            for batch in batches:
                unpacked += batch.nbytes
                if unpacked > MAX_BYTES:
                    raise DataError(f"{path}: unpacks to more than the {MAX_BYTES:,} bytes that are read")
                for name, column in zip(header, batch.columns, strict=True):
                    column.validate(full=True)  # that text is UTF-8
                    columns[name] += [_check_cell(value, f"{path}, {name!r}") for value in column.to_pylist()]
    except (*DAMAGE, pa.ArrowException) as error:
        raise DataError(f"{path}: not a Parquet file of labels: {error}") from error
    rows = len(next(iter(columns.values()), []))
    if not rows:
        raise DataError(f"{path}: no rows with labels")
    return Table(path, columns, list(range(1, rows + 1)))


def _is_plain(kind: Any) -> bool:
    """Tell whether a column is text, numbers, or lists of these; all others, such as images, are not read."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return not pa.types.is_list(kind.value_type) and _is_plain(kind.value_type)
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_floating)
    return any(test(kind) for test in (*tests, pa.types.is_boolean))


def _check_header(names: list[str], path: Path) -> list[str]:
    """Return the names of the columns; two of one name are told apart, as neither can be chosen."""
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        raise DataError(f"{path}: two columns are called {', '.join(map(repr, twice[:4]))}")
    return names


def _check_cell(value: Any, where: str) -> Cell:
    """Return a value as text, its items if it is a list, or None if it is empty."""
    if isinstance(value, list):
        if len(value) > MAX_ITEMS:
            raise DataError(f"{where}: a list of {len(value):,}; at most {MAX_ITEMS:,} are read")
        items = [None if isinstance(item, list) else _check_cell(item, where) for item in value]
        texts = tuple(item for item in items if isinstance(item, str))
        return texts if len(texts) == len(items) else None  # boxes, say, which are no labels
    if value is None or isinstance(value, dict) or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool):
        value = json.dumps(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas makes numbers of a column with empty cells
    text = str(value).strip()
    if len(text) > MAX_LETTERS:
        raise DataError(f"{where}: a cell of {len(text):,} letters; at most {MAX_LETTERS:,} are read")
    return text or None
