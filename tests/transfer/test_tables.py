import csv
import json
import os

import pytest

from vitrail.transfer.tables import escape_csv, write_tables


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("flowers", "flowers"),
        ("a|b", r"a\|b"),
        (r"a\|b", r"a\\\|b"),
        ("a\nb", r"a\\nb"),
        (os.fsdecode(b"caf\xe9"), r"caf\\xe9"),
    ],
)
def test_any_name_is_one_cell(tmp_path, name, cell):
    result = {"rows": [{"data": name, "mean": 0.5, "values": [1]}]}
    write_tables(tmp_path, ["data", "mean"], [[name, "50%"]], result, ["below"])
    lines = (tmp_path / "results.md").read_text().split("\n")
    assert lines == ["| data | mean |", "|---|---|", f"| {cell} | 50% |", "", "below", ""]
    assert json.loads((tmp_path / "results.json").read_text()) == result
    with (tmp_path / "results.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["mean"] == "0.5" and "\n" not in row["data"]


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+a", "'+a"),
        ("-a", "'-a"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-5", "-5"),
        ("+1e-3", "+1e-3"),
        ("a=b", "a=b"),
        ("", ""),
        (-0.5, -0.5),
        (None, None),
    ],
)
def test_no_name_is_a_formula(value, cell):
    assert escape_csv(value) == cell
