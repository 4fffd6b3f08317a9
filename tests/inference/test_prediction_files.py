import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from vitrail.inference.prediction_files import (
    Columns,
    Piece,
    as_utf8,
    file_names,
    join_pieces,
    read_classes,
    to_table,
    write_piece,
)
from vitrail.inference.prediction_job import rows_before_gap, rows_in, runs

COLUMNS = Columns(["ant", "bee", "cow"], 2, probabilities=True, features=2)


def rows(start, stop, broken=()):
    """A table of the rows start to stop; the class of row i is i % 3."""
    read = [i for i in range(start, stop) if i not in broken]
    p = np.eye(3, dtype=np.float32)[[i % 3 for i in read]].reshape(-1, 3) * np.float32(0.7) + np.float32(0.1)
    top = np.argsort(-p, axis=1, kind="stable")[:, :2]
    arrays = {"top": top, "top_probabilities": np.take_along_axis(p, top, 1), "probabilities": p}
    arrays["sure"] = np.ones((len(read), 1), bool)
    arrays["features"] = np.array([[i, -i] for i in read], np.float32).reshape(-1, 2)
    errors = {i - start: f"{i} is broken" for i in broken if start <= i < stop}
    return to_table(COLUMNS, [f"{i}.png" for i in range(start, stop)], errors, arrays)


@pytest.fixture
def pieces(tmp_path):
    """Pieces of the rows 0 to 11 that overlap in every way, in none of which 4, 5 and 10 can be read."""
    made = []
    for start, stop in ((0, 4), (2, 6), (3, 5), (4, 6), (6, 12)):
        made.append(Piece(start, stop, tmp_path / f"{start}-{stop}"))
        write_piece(rows(start, stop, broken=(4, 5, 10)), made[-1].path)
    return made


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("rows_per_file", [5, 12])
def test_every_row_is_written_once(tmp_path, pieces, kind, rows_per_file):
    files = file_names(tmp_path / f"p.{kind}", 12, rows_per_file)
    counts, unreadable = join_pieces(pieces, files, rows_per_file, COLUMNS, {})
    expected = [None if i in (4, 5, 10) else COLUMNS.class_names[i % 3] for i in range(12)]
    assert [name for file in files for name in read_classes(file)] == expected
    assert unreadable == 3 and sum(counts.values()) == 9 and counts["ant"] == expected.count("ant")
    if kind == "parquet":
        table = [row for file in files for row in pq.read_table(file).to_pylist()]
        assert [row["path"] for row in table] == [f"{i}.png" for i in range(12)]
        assert [row["features"] for row in table if row["features"]] == [
            [i, -i] for i in range(12) if expected[i]
        ]
        assert [row["error"] for row in table if row["error"]] == [f"{i} is broken" for i in (4, 5, 10)]


def test_numbers_in_json_are_short_and_exact(tmp_path, pieces):
    join_pieces(pieces, [tmp_path / "p.jsonl"], 12, COLUMNS, {})
    row = json.loads((tmp_path / "p.jsonl").read_text().splitlines()[1])
    assert row["probabilities"] == [0.1, 0.8, 0.1] and row["confidence"] == 0.8


def test_a_table_of_images_of_which_none_can_be_read():
    table = rows(0, 3, broken=(0, 1, 2))
    assert table["error"].null_count == 0 and table["features"].null_count == table["class"].null_count == 3


def test_ranges_of_rows():
    for some in ([], [0], [0, 1, 2], [0, 2, 3, 7], [5, 6]):
        assert rows_in(runs(np.array(some, np.int64))).tolist() == some
    assert runs(np.array([0, 2, 3, 7])) == [(0, 1), (2, 4), (7, 8)]


def test_rows_before_a_gap(pieces):
    assert rows_before_gap(pieces) == 12 and rows_before_gap(pieces[1:]) == 0
    assert rows_before_gap([pieces[0], pieces[-1]]) == 4


def test_text_that_is_not_utf8():
    assert as_utf8("caf\udce9") == "caf\\xe9" and as_utf8("é\n") == "é\n"
