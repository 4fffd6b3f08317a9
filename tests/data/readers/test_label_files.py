"""Files of labels: what was written is read, and any bytes end in a table or in an error that says why."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from vitrail.data.readers import label_files
from vitrail.data.readers.label_files import read_encoded, read_table
from vitrail.errors import DataError, VitrailError

# Text without zero bytes and surrogates; at the ends without white space, which is stripped.
TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=20).map(
    str.strip
)
ROWS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=8).filter(
    lambda rows: all(any(cell for cell in row) for row in rows)  # lines that are blank are skipped
)
QUICK = settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(
    ROWS,
    st.sampled_from(",;\t"),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    st.sampled_from(["\n", "\r\n"]),
)
@example([("a\nb", 'c"d'), ("x,y;z", "\t")][:1], ",", "utf-16", "\r\n")
def test_what_csv_writes_is_read(tmp_path: Path, rows, mark, encoding, end) -> None:
    stream = io.StringIO(newline="")
    csv.writer(stream, delimiter=mark, lineterminator=end).writerows([("file", "label"), *rows])
    path = tmp_path / "labels.csv"
    path.write_bytes(stream.getvalue().encode(encoding))
    table = read_table(path)
    assert list(zip(table["file"], table["label"], strict=True)) == [(a or None, b or None) for a, b in rows]


@QUICK
@given(ROWS)
def test_json_lines_and_parquet_are_read(tmp_path: Path, rows) -> None:
    lines = tmp_path / "labels.jsonl"
    lines.write_text(
        "".join(json.dumps({"file": a, "label": [b, "x"]}) + "\n" for a, b in rows), encoding="utf-8"
    )
    expected = [(a or None, (b, "x") if b else None) for a, b in rows]
    table = read_table(lines)
    assert list(zip(table["file"], table["label"], strict=True)) == expected
    columns = {
        "file": [a for a, _ in rows],
        "label": [[b, "x"] for _, b in rows],
        "image": [b"\xff" for _ in rows],
    }
    pq.write_table(pa.table(columns), tmp_path / "labels.parquet")
    table = read_table(tmp_path / "labels.parquet")
    assert list(table.columns) == ["file", "label"]  # bytes are not labels
    assert list(zip(table["file"], table["label"], strict=True)) == expected


@QUICK
@given(st.binary(max_size=60), st.sampled_from(["csv", "jsonl", "parquet"]))
@example(b'"', "csv")
@example(b"\xff\xfea", "csv")
@example(b"[" * 9000, "jsonl")
@example(b"PAR1PAR1", "parquet")
def test_any_bytes_end_in_a_table_or_an_error(tmp_path: Path, data: bytes, kind: str) -> None:
    path = tmp_path / f"labels.{kind}"
    path.write_bytes(data)
    try:
        table = read_table(path)
    except VitrailError as error:
        assert str(path) in str(error)
    else:
        assert len(table) and all(len(cells) == len(table) for cells in table.columns.values())


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("file,label\n" + "a.png,b\n" * 20)
    for name, most, message in (
        ("MAX_BYTES", 50, "at most 50 are read"),
        ("MAX_ROWS", 19, "more than 19 rows"),
        ("MAX_COLUMNS", 1, "2 columns; at most 1"),
        ("MAX_LETTERS", 4, "a cell of 5 letters"),
    ):
        with monkeypatch.context() as patch, pytest.raises(DataError, match=message):
            patch.setattr(label_files, name, most)
            read_table(path)
    lines = tmp_path / "labels.jsonl"
    lines.write_text(json.dumps({"file": "a.png", "label": ["x"] * 9}))
    monkeypatch.setattr(label_files, "MAX_ITEMS", 8)
    with pytest.raises(DataError, match="a list of 9; at most 8"):
        read_table(lines)
    pq.write_table(pa.table({"file": ["a" * 10_000] * 1000, "label": ["b"] * 1000}), tmp_path / "l.parquet")
    monkeypatch.setattr(label_files, "MAX_BYTES", 1 << 20)  # the file has less
    with pytest.raises(DataError, match="unpacks to more"):
        read_table(tmp_path / "l.parquet")


def test_bytes_that_no_encoding_has(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_bytes(b"file,label\na,\x81\n")
    with pytest.raises(DataError, match="neither UTF-8 nor Windows-1252"):
        read_encoded(tmp_path / "l.csv")


def test_a_table_says_where_its_rows_stand(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text('file,label\n\na.png,"x\ny"\nb.png,z\n')
    table = read_table(tmp_path / "l.csv")
    assert table.lines == [3, 5] and table.place(1).endswith("l.csv, line 5")
