"""Footers of Parquet files: read as pyarrow reads them, and damaged ones refused where pyarrow ends the process."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.readers.parquet import open_parquet
from vitrail.data.readers.parquet_footer import read_chunks
from vitrail.errors import DataError


def put(path: Path, rows: int = 12, **options: Any) -> Path:
    images = [{"bytes": b"image %d" % row * 9, "path": f"{row}.jpg"} for row in range(rows)]
    pq.write_table(
        pa.table({"image": images, "label": np.arange(rows) % 3}), path, row_group_size=5, **options
    )
    return path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "none"},
        {"compression": "zstd", "write_statistics": False, "use_dictionary": False},
        {"write_page_index": True, "data_page_version": "2.0"},
        {"compression": {"image.bytes": "none", "image.path": "gzip", "label": "snappy"}},
    ],
)
def test_chunks_are_those_that_pyarrow_finds(tmp_path: Path, options: dict[str, Any]) -> None:
    path = put(tmp_path / "a.parquet", **options)
    footer = pq.read_metadata(path)
    columns = [[footer.row_group(g).column(c) for c in range(3)] for g in range(footer.num_row_groups)]
    expected = [
        [
            (c.path_in_schema, c.compression != "UNCOMPRESSED", c.total_uncompressed_size, c.total_compressed_size,
             c.data_page_offset)
            for c in group
        ]
        for group in columns
    ]  # fmt: skip
    found = [[(c.path, c.compressed, c.unpacked_size, c.size, c.start) for c in g] for g in read_chunks(path)]
    assert found == expected and len(found) == 3


def test_files_that_are_none(tmp_path: Path) -> None:
    whole = put(tmp_path / "a.parquet").read_bytes()
    for data in (
        b"",
        b"PAR1",
        whole[:-1],
        whole[:100],
        b"PAR1" + b"\xff" * 4 + b"PAR1",
        b"\x1c" * 100_000 + whole[-8:],
    ):
        (tmp_path / "b.parquet").write_bytes(data)
        with pytest.raises(ValueError, match=r"its (end|footer)"):
            read_chunks(tmp_path / "b.parquet")


@given(st.binary(max_size=300))
def test_any_bytes_are_damage_or_a_footer(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.parquet"
    path.write_bytes(b"PAR1" + data + len(data).to_bytes(4, "little") + b"PAR1")
    with contextlib.suppress(ValueError):
        read_chunks(path)


def test_damage_to_a_footer_never_ends_the_process(tmp_path: Path) -> None:
    """A byte at a time: some of these made pyarrow call abort, or give fewer values than there are rows."""
    path = put(tmp_path / "a.parquet")
    whole = path.read_bytes()
    end = len(whole) - 8
    start = end - int.from_bytes(whole[-8:-4], "little")
    for place in (
        *range(start, start + 120),
        *range(start + 120, end, 7),
    ):  # closely the schema
        damaged = bytearray(whole)
        damaged[place] ^= 1 if place % 3 else 16
        path.write_bytes(damaged)
        with contextlib.suppress(DataError):
            source = open_parquet(path, "train")
            for i in range(len(source)):
                source.read(i)
