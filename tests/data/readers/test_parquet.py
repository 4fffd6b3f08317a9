"""Parquet shards as sources."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.readers import parquet
from vitrail.data.readers.parquet import ParquetRows, ParquetSource, find_values, open_parquet
from vitrail.data.sources import list_splits, open_source
from vitrail.errors import ConfigError, DataError, ImageError

SHARED = Path(__file__).parents[4] / "shared" / "data"


def put(
    path: Path,
    labels: Any,
    *,
    first: int = 0,
    names: list[str] | None = None,
    plain: bool = False,
    columns: tuple[str, str] = ("image", "label"),
    **options: Any,
) -> Path:
    """A Parquet file whose images are the bytes of `image 0`, `image 1`, ... from `first` on."""
    data = [f"image {first + i}".encode() for i in range(len(labels))]
    images = pa.array(data) if plain else pa.array([{"bytes": d, "path": None} for d in data], IMAGE)
    table = pa.table(
        {columns[0]: images, columns[1]: labels if isinstance(labels, pa.Array) else pa.array(labels)}
    )
    if names is not None:
        features = {columns[0]: {"_type": "Image"}, columns[1]: {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """train in two files of 7 and 5 rows, row groups of 3; test in one."""
    put(
        tmp_path / "train-00000-of-00002.parquet",
        [0, 1, 2, 0, 1, 2, 0],
        names=["a", "b", "c"],
        row_group_size=3,
    )
    put(
        tmp_path / "train-00001-of-00002.parquet",
        [1, 1, 1, 1, 2],
        first=7,
        names=["a", "b", "c"],
        row_group_size=3,
    )
    put(tmp_path / "test-00000-of-00001.parquet", [2, 0], names=["a", "b", "c"])
    return tmp_path


def images(source: ParquetSource) -> list[bytes | np.ndarray]:
    return [source.read(i).image for i in range(len(source))]


def test_every_row_of_every_file_in_order(shards: Path) -> None:
    assert list_splits(shards) == ["train", "test"]
    source = open_parquet(shards, "train")
    assert images(source) == [f"image {i}".encode() for i in range(12)]
    assert source.labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 1, 1, 1, 2]
    assert [source.read(i).label for i in range(12)] == source.labels.tolist()
    assert source.class_names == ["a", "b", "c"]
    assert (source.key(6), source.key(7)) == (
        "train-00000-of-00002.parquet:6",
        "train-00001-of-00002.parquet:0",
    )
    for index in (-1, 12):
        with pytest.raises(IndexError):
            source.read(index)


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("plain", [False, True])
def test_binary_and_struct_columns_compressed_or_not(tmp_path: Path, compression: str, plain: bool) -> None:
    put(tmp_path / "train.parquet", [0, 1], plain=plain, compression=compression)
    assert images(open_parquet(tmp_path, "train")) == [b"image 0", b"image 1"]


def test_numbers_without_names_count_over_all_splits(tmp_path: Path) -> None:
    put(tmp_path / "train.parquet", [0, 1])
    put(tmp_path / "test.parquet", [3])
    assert open_parquet(tmp_path, "train").class_names == ["0", "1", "2", "3"]
    (tmp_path / "classes.txt").write_text("w\nx\ny\nz\n")
    assert open_parquet(tmp_path, "train").class_names == ["w", "x", "y", "z"]


def test_strings_are_sorted_into_the_classes_of_train(tmp_path: Path) -> None:
    put(tmp_path / "train.parquet", ["dog", "cat", "dog"])
    put(tmp_path / "test.parquet", ["cat"])
    source = open_parquet(tmp_path, "train")
    assert (source.class_names, source.labels.tolist()) == (["cat", "dog"], [1, 0, 1])
    put(tmp_path / "test.parquet", pa.array(["dog", "cat"]).dictionary_encode())
    assert open_parquet(tmp_path, "test").labels.tolist() == [1, 0]
    put(tmp_path / "test.parquet", ["cow"])
    with pytest.raises(DataError, match="not among the 2 classes: cow"):
        open_parquet(tmp_path, "test")


def test_columns_by_feature_by_name_and_by_option(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", [0], columns=("picture", "kind"), names=["x"])
    assert images(open_parquet(tmp_path / "a.parquet", "train")) == [b"image 0"]
    put(tmp_path / "b.parquet", [0], columns=("img", "fine_label"))
    assert images(open_parquet(tmp_path / "b.parquet", "train")) == [b"image 0"]
    put(tmp_path / "c.parquet", [0], columns=("picture", "kind"))
    with pytest.raises(DataError, match=r"which column is the image, of picture, kind"):
        open_parquet(tmp_path / "c.parquet", "train")
    assert len(open_source(f"{tmp_path}/c.parquet?image=picture&label=kind")) == 1
    with pytest.raises(ConfigError, match="no column 'photo' for the image; columns: picture, kind"):
        open_source(f"{tmp_path}/c.parquet?image=photo&label=kind")
    with pytest.raises(DataError, match="column 'kind' is int64; images are a struct"):
        open_source(f"{tmp_path}/c.parquet?image=kind&label=kind")


def test_labels_that_cannot_be(tmp_path: Path) -> None:
    put(tmp_path / "train.parquet", [0, None, 1])
    with pytest.raises(DataError, match="1 of 3 rows have no label"):
        open_parquet(tmp_path, "train")
    put(tmp_path / "train.parquet", [-1, -1], names=["a"])
    with pytest.raises(DataError, match="2 of 2 labels are not among the 1 classes"):
        open_parquet(tmp_path, "train")
    put(tmp_path / "train.parquet", [0.5, 1.5])
    with pytest.raises(DataError, match="column 'label' is double; labels are integers or strings"):
        open_parquet(tmp_path, "train")
    pq.write_table(
        pa.table({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}),
        tmp_path / "train.parquet",
    )
    with pytest.raises(DataError, match="no rows"):
        open_parquet(tmp_path, "train")


def test_a_row_without_bytes_is_broken_and_its_path_is_not_followed(tmp_path: Path) -> None:
    rows = pa.array([{"bytes": None, "path": "/etc/hostname"}, None, {"bytes": b"x", "path": None}], IMAGE)
    pq.write_table(pa.table({"image": rows, "label": [0, 0, 0]}), tmp_path / "train.parquet")
    source = open_parquet(tmp_path, "train")
    for index in (0, 1):
        with pytest.raises(DataError, match=rf"train\.parquet:{index}: the row has no image bytes"):
            source.read(index)
    assert source.read(2).image == b"x"


def test_a_file_that_is_not_whole(shards: Path) -> None:
    file = shards / "train-00001-of-00002.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"train-00001-of-00002\.parquet: not a whole Parquet file"):
        open_parquet(shards, "train")


def test_metadata_that_is_nonsense(tmp_path: Path) -> None:
    table = pa.table({"image": [b"x"], "label": [0]}).replace_schema_metadata({"huggingface": "{"})
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(DataError, match="huggingface metadata cannot be read"):
        open_parquet(tmp_path, "train")


@pytest.mark.parametrize("names", [5, "ab", {"0": "a"}, [1, 2], [None, "b"], [["a"]], ["\ud800", "b"]])
def test_class_names_are_a_list_of_text(tmp_path: Path, names: Any) -> None:
    put(tmp_path / "train.parquet", [0, 1], names=names)
    with pytest.raises(DataError, match=r"train\.parquet: the ClassLabel of column 'label': .*class name"):
        open_parquet(tmp_path, "train")


@pytest.mark.parametrize("stored", [5, "text", [1, 2], {"x": b"1"}])
def test_bytes_that_are_none(tmp_path: Path, stored: Any) -> None:
    table = pa.table({"image": [{"bytes": stored, "path": "a"}], "label": [0]})
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"column 'image' is struct<bytes: .*; images are a struct"):
        open_parquet(tmp_path, "train")


@pytest.mark.parametrize("twice", ["image", "label"])
def test_a_column_that_is_there_twice(tmp_path: Path, twice: str) -> None:
    columns = {"image": pa.array([b"x"]), "label": pa.array([0])}
    table = pa.Table.from_arrays([*columns.values(), columns[twice]], names=[*columns, twice])
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(DataError, match=f"2 columns '{twice}'"):
        open_parquet(tmp_path, "train")


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"image": [b"x"]}, "0 columns 'label'"),
        ({"label": [0]}, "0 columns 'image'"),
        ({"image": ["x"], "label": [0]}, "column 'image' is string"),
        (
            {"image": [{"bytes": b"x"}], "label": [0]},
            "column 'image' differs from that of train-00000-of-00002",
        ),
        ({"image": [b"x"], "label": ["0"]}, "column 'label' differs from that of other files"),
    ],
)
def test_a_further_file_with_other_columns(tmp_path: Path, second: Any, reason: str) -> None:
    pq.write_table(pa.table({"image": [b"x"], "label": [0]}), tmp_path / "train-00000-of-00002.parquet")
    pq.write_table(pa.table(second), tmp_path / "train-00001-of-00002.parquet")
    with pytest.raises(DataError, match=rf"train-00001-of-00002\.parquet: {reason}"):
        open_parquet(tmp_path, "train")


def test_another_split_is_asked_for_its_labels_alone(tmp_path: Path) -> None:
    put(tmp_path / "train.parquet", [0, 1])
    put(tmp_path / "test.parquet", [2], plain=True)
    assert open_parquet(tmp_path, "train").class_names == ["0", "1", "2"]
    pq.write_table(pa.table({"label": [3]}), tmp_path / "test.parquet")
    assert open_parquet(tmp_path, "train").class_names == ["0", "1", "2", "3"]
    for columns, reason in (({"image": [b"x"]}, "0 columns 'label'"), ({"label": ["a"]}, "'label' differs")):
        pq.write_table(pa.table(columns), tmp_path / "test.parquet")
        with pytest.raises(DataError, match=rf"test\.parquet: .*{reason}"):
            open_parquet(tmp_path, "train")


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    put(tmp_path / "train.parquet", ["ab@@@@", "cd"], compression="none", use_dictionary=False)
    whole = (tmp_path / "train.parquet").read_bytes()
    (tmp_path / "train.parquet").write_bytes(whole.replace(b"ab@@@@", b"ab\xff\xff\xff\xff"))
    with pytest.raises(DataError, match=r"column 'label' cannot be read: .*UTF8"):
        open_parquet(tmp_path, "train")
    put(tmp_path / "train.parquet", [0, 1], columns=("imagé", "label"), store_schema=False)
    whole = (tmp_path / "train.parquet").read_bytes()
    (tmp_path / "train.parquet").write_bytes(whole.replace("imagé".encode(), b"imag\xff\xff"))
    with pytest.raises(DataError, match="can't decode byte 0xff"):
        open_parquet(tmp_path, "train")


def test_a_long_label_that_is_stored_once(tmp_path: Path) -> None:
    label = pa.array(["a" * 100_000] * 200).dictionary_encode()
    put(tmp_path / "train.parquet", label, compression="zstd")
    before = pa.total_allocated_bytes()
    source = open_parquet(tmp_path, "train")
    assert source.class_names == ["a" * 100_000] and source.labels.tolist() == [0] * 200
    assert pa.total_allocated_bytes() - before < 4 << 20


def test_more_rows_than_bytes(tmp_path: Path) -> None:
    table = pa.table({"image": pa.nulls(50_000, pa.binary()), "label": pa.array(np.zeros(50_000, np.int64))})
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"claims 50,000 rows, but has [0-9,]+ bytes"):
        open_parquet(tmp_path, "train")


@pytest.mark.parametrize("seed", range(40))
def test_random_damage_is_a_data_error(tmp_path: Path, seed: int) -> None:
    file = put(tmp_path / "train.parquet", [0, 1, 2], names=["a", "b", "c"])
    data, rng = bytearray(file.read_bytes()), np.random.default_rng(seed)
    for place in rng.integers(0, len(data), 4):
        data[place] = rng.integers(0, 256)
    file.write_bytes(data)
    with contextlib.suppress(DataError):
        images(open_parquet(tmp_path, "train"))


def test_damage_to_a_footer_never_ends_the_process(tmp_path: Path) -> None:
    """A byte at a time: some of these made pyarrow call abort, or give fewer values than there are rows."""
    path = put(tmp_path / "a.parquet", np.arange(12) % 3, row_group_size=5)
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


def test_pickles_without_its_cache_and_reads_in_another_process(shards: Path) -> None:
    source = open_parquet(shards, "train")
    size = len(pickle.dumps(source))
    images(source)
    assert len(pickle.dumps(source)) == size
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(images, (source,)) == images(source)


def test_threads_share_a_source(shards: Path) -> None:
    source = open_parquet(shards, "train")
    wrong: list[int] = []

    def read() -> None:
        for index in np.random.default_rng().permutation(np.tile(np.arange(12), 20)):
            if source.read(int(index)).image != f"image {index}".encode():
                wrong.append(int(index))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_fingerprint(shards: Path) -> None:
    before = open_parquet(shards, "train").fingerprint()
    assert before == open_parquet(shards, "train").fingerprint()
    put(shards / "train-00001-of-00002.parquet", [1, 1], names=["a", "b", "c"])
    assert open_parquet(shards, "train").fingerprint() != before


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared images are not here")
def test_real_files() -> None:
    source = open_source(SHARED / "transfer" / "pets", "train800+val200")
    assert (len(source), len(source.class_names), source.class_names[0]) == (1000, 37, "Abyssinian")
    image = source.read(999).image
    assert isinstance(image, bytes)
    assert image[:4] == b"RIFF"


PLAIN = {"compression": "none", "use_dictionary": False}


def put_values(path: Path, values: list[bytes | None], **options: Any) -> Path:
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
    rows = ParquetRows((put_values(file, values, row_group_size=group, **options, **PLAIN),), "image")
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
    rows = ParquetRows((put_values(tmp_path / "a.parquet", values, **options),), "image")
    assert read_all(rows) == values
    assert by_places(rows) == {False}


def test_places_hold_no_image_in_memory(tmp_path: Path) -> None:
    values: list[bytes | None] = [os.urandom(50_000) for _ in range(40)]
    rows = ParquetRows((put_values(tmp_path / "a.parquet", values, row_group_size=10, **PLAIN),), "image")
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
        put_values(
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
    files = tuple(put_values(tmp_path / f"{f}.parquet", [b"a" * 500, b"b" * 500], **PLAIN) for f in range(2))
    rows = ParquetRows(files, "image")
    assert rows.read(0, 0, 1) == b"b" * 500
    os.truncate(files[0], 600)
    with pytest.raises(DataError, match=r"0\.parquet ends early"):
        rows.read(0, 0, 1)
    rows.read(1, 0, 0)
    with pytest.raises(DataError, match=r"0\.parquet was changed since it was opened"):
        rows.read(0, 0, 1)
    files[1].unlink()
    fresh = pickle.loads(pickle.dumps(rows))
    with pytest.raises(DataError, match=r"row group 0 of .*1\.parquet cannot be read"):
        fresh.read(1, 0, 0)


def test_a_small_file_does_not_unpack_to_gigabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1 << 20)
    zeros = put_values(tmp_path / "zeros.parquet", [bytes(2 << 20)], compression="zstd", use_dictionary=False)
    with pytest.raises(
        DataError, match=r"zeros\.parquet: row group 0 has .* bytes, unpacked; at most 1,048,576"
    ):
        ParquetRows((zeros,), "image").read(0, 0, 0)
    random = put_values(
        tmp_path / "random.parquet", [os.urandom(2 << 20)], compression="zstd", use_dictionary=False
    )
    assert len(ParquetRows((random,), "image").read(0, 0, 0) or b"") == 2 << 20  # the file has as many


def test_values_that_are_stored_once_do_not_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1 << 20)
    alike = put_values(
        tmp_path / "alike.parquet", [bytes(100_000)] * 100, compression="zstd", use_dictionary=True
    )
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
    file = put_values(
        tmp_path / "a.parquet", [b"a" * 101, b"b" * 100], compression=compression, use_dictionary=False
    )
    rows = ParquetRows((file,), "image")
    with pytest.raises(ImageError, match="an image of 101 bytes; at most 100 are read"):
        rows.read(0, 0, 0)
    assert rows.read(0, 0, 1) == b"b" * 100
