"""Single values out of row groups: by their places where that is possible, always the same as pyarrow's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.readers import parquet
from vitrail.data.readers.parquet import ParquetRows, find_values
from vitrail.errors import DataError, ImageError

PLAIN = {"compression": "none", "use_dictionary": False}


def put(path: Path, values: list[bytes | None], **options: Any) -> Path:
    table = pa.table({"other": pa.array(range(len(values))), "image": pa.array(values, pa.binary())})
    pq.write_table(table, path, **options)
    return path


def read_all(rows: ParquetRows) -> list[bytes | None]:
    footer = pq.read_metadata(rows.files[0])
    return [
        rows.read(0, group, row)
        for group in range(footer.num_row_groups)
        for row in range(footer.row_group(group).num_rows)
    ]


def by_places(rows: ParquetRows) -> set[bool]:
    return {isinstance(group, np.ndarray) for group in rows._groups.values()}


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("page", [64, 1 << 20])
@pytest.mark.parametrize("statistics", [False, True])
@settings(max_examples=20)
@given(st.lists(st.none() | st.binary(max_size=200), min_size=1, max_size=60), st.integers(1, 60))
def test_plain_pages_are_read_by_place(
    tmp_path_factory: pytest.TempPathFactory,
    version: str,
    page: int,
    statistics: bool,
    values: list[bytes | None],
    group: int,
) -> None:
    file = tmp_path_factory.mktemp("rows") / "a.parquet"
    options = {"data_page_version": version, "data_page_size": page, "write_statistics": statistics}
    rows = ParquetRows((put(file, values, row_group_size=group, **options, **PLAIN),), "image")
    assert read_all(rows) == values
    assert by_places(rows) == {True}


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "snappy", "use_dictionary": False},
        {"compression": "zstd", "use_dictionary": True},
        {"compression": "none", "use_dictionary": True},
        {
            "compression": "none",
            "use_dictionary": False,
            "column_encoding": {"image": "DELTA_LENGTH_BYTE_ARRAY"},
        },
    ],
)
def test_everything_else_is_read_by_row_group(tmp_path: Path, options: dict[str, Any]) -> None:
    values = [b"a" * 50, None, b"b" * 70, b"a" * 50, b""] * 5
    if "column_encoding" in options:
        options["column_encoding"]["other"] = "PLAIN"
    rows = ParquetRows((put(tmp_path / "a.parquet", values, **options),), "image")
    assert read_all(rows) == values
    assert by_places(rows) == {False}


def test_places_hold_no_image_in_memory(tmp_path: Path) -> None:
    values: list[bytes | None] = [os.urandom(50_000) for _ in range(40)]
    rows = ParquetRows((put(tmp_path / "a.parquet", values, row_group_size=10, **PLAIN),), "image")
    assert read_all(rows) == values
    assert rows._bytes == 40 * 16


def test_values_that_look_alike() -> None:
    raw = b"header" + b"\1\0\0\0x" + b"\1\0\0\0x" + b"page" + b"\0\0\0\0" + b"\1\0\0\0y"
    found = find_values(raw, [b"x", b"x", None, b"", b"y"])
    assert found is not None
    assert [raw[start : start + length] if length >= 0 else None for start, length in found] == [
        b"x",
        b"x",
        None,
        b"",
        b"y",
    ]
    assert find_values(raw, [b"z"]) is None
    assert find_values(b"\0" * parquet.PAGE_HEADER_BYTES + b"gap" + b"\1\0\0\0x", [b"x"]) is None


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_the_cache_is_bounded_and_reading_does_not_depend_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    monkeypatch.setattr(parquet, "CACHE_BYTES", 120)
    monkeypatch.setattr(parquet, "OPEN_FILES", 1)
    values = [[f"{f} {i}".encode() for i in range(9)] for f in range(3)]
    files = [
        put(
            tmp_path / f"{f}.parquet",
            list(values[f]),
            row_group_size=3,
            compression=compression,
            use_dictionary=False,
        )
        for f in range(3)
    ]
    rows = ParquetRows(tuple(files), "image")
    for place in np.random.default_rng(0).integers(0, 27, size=200).tolist():
        f, i = divmod(place, 9)
        assert rows.read(f, i // 3, i % 3) == values[f][i]
        assert rows._bytes == sum(group.nbytes for group in rows._groups.values()) <= 120
        assert len(rows._open) == 1


def test_files_that_change_while_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "OPEN_FILES", 1)
    files = tuple(put(tmp_path / f"{f}.parquet", [b"a" * 500, b"b" * 500], **PLAIN) for f in range(2))
    rows = ParquetRows(files, "image")
    assert rows.read(0, 0, 1) == b"b" * 500
    os.truncate(files[0], 600)
    with pytest.raises(DataError, match=r"0\.parquet ends early"):
        rows.read(0, 0, 1)
    rows.read(1, 0, 0)
    with pytest.raises(DataError, match=r"0\.parquet was changed since it was opened"):
        rows.read(0, 0, 1)
    files[1].unlink()
    fresh = ParquetRows.__new__(ParquetRows)
    fresh.__setstate__(rows.__getstate__())
    with pytest.raises(DataError, match=r"row group 0 of .*1\.parquet cannot be read"):
        fresh.read(1, 0, 0)


def test_a_small_file_does_not_unpack_to_gigabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1 << 20)
    zeros = put(tmp_path / "zeros.parquet", [bytes(2 << 20)], compression="zstd", use_dictionary=False)
    with pytest.raises(
        DataError, match=r"zeros\.parquet: row group 0 has .* bytes, unpacked; at most 1,048,576"
    ):
        ParquetRows((zeros,), "image").read(0, 0, 0)
    random = put(tmp_path / "random.parquet", [os.urandom(2 << 20)], compression="zstd", use_dictionary=False)
    assert len(ParquetRows((random,), "image").read(0, 0, 0) or b"") == 2 << 20  # the file has as many


def test_values_that_are_stored_once_do_not_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1 << 20)
    alike = put(tmp_path / "alike.parquet", [bytes(100_000)] * 100, compression="zstd", use_dictionary=True)
    assert pq.read_metadata(alike).row_group(0).column(1).total_uncompressed_size < 1 << 20
    rows, before = ParquetRows((alike,), "image"), pa.total_allocated_bytes()
    for row in range(2):
        with pytest.raises(
            DataError, match=r"alike\.parquet: column 'image' unpacks to more than the 1,048,576 b"
        ):
            rows.read(0, 0, row)
        monkeypatch.setattr(parquet, "_read_values", lambda *_: pytest.fail("unpacked again"))
    assert pa.total_allocated_bytes() - before < 4 << 20


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_value_is_no_larger_than_an_image_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    monkeypatch.setattr(parquet, "MAX_FILE_BYTES", 100)
    file = put(
        tmp_path / "a.parquet", [b"a" * 101, b"b" * 100], compression=compression, use_dictionary=False
    )
    rows = ParquetRows((file,), "image")
    with pytest.raises(ImageError, match="an image of 101 bytes; at most 100 are read"):
        rows.read(0, 0, 0)
    assert rows.read(0, 0, 1) == b"b" * 100
