import csv
import json
import os
import subprocess
import sys

import pytest

from vitrail.errors import ConfigError
from vitrail.transfer.tables import (
    check_results_folder,
    claim_piece,
    escape_csv,
    read_piece,
    results_lock,
    write_tables,
)

HOLD = """
import sys, pathlib
from vitrail.transfer.tables import claim_piece
with claim_piece(pathlib.Path(sys.argv[1]), {"a": 1}) as piece:
    print("mine" if piece else "taken", flush=True)
    sys.stdin.read()
"""


def test_a_piece_is_done_once(tmp_path):
    with claim_piece(tmp_path / "piece", {"a": 1}) as piece:
        assert piece.results() is None
        piece.finish({"score": 0.5})
    with claim_piece(tmp_path / "piece", {"a": 1}) as piece:
        assert piece.results() == {"score": 0.5}
    assert read_piece(tmp_path / "piece") == {"score": 0.5}
    assert read_piece(tmp_path / "another") is None


def test_another_process_is_at_it_until_it_ends(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "piece")]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "mine\n"
    with claim_piece(tmp_path / "piece", {"a": 1}) as piece:
        assert piece is None
    other.kill()
    other.communicate()
    with claim_piece(tmp_path / "piece", {"a": 1}) as piece:
        assert piece is not None


def test_other_settings_are_refused(tmp_path):
    with claim_piece(tmp_path / "piece", {"a": 1}):
        pass
    with pytest.raises(ConfigError, match="a is 1 there, 2 here"), claim_piece(tmp_path / "piece", {"a": 2}):
        pass


def test_an_error_frees_the_piece(tmp_path):
    with pytest.raises(ZeroDivisionError), claim_piece(tmp_path / "piece", {}):
        _ = 1 / 0
    with claim_piece(tmp_path / "piece", {}) as piece:
        assert piece is not None


def test_a_wrong_setting_leaves_nothing_new(tmp_path):
    with pytest.raises(ConfigError, match="wrong"), claim_piece(tmp_path / "piece", {"a": 1}):
        raise ConfigError("wrong")
    with claim_piece(tmp_path / "piece", {"a": 2}):
        pass
    with pytest.raises(ConfigError, match="wrong"), claim_piece(tmp_path / "piece", {"a": 2}):
        raise ConfigError("wrong")
    assert (tmp_path / "piece" / "run.json").exists()  # it was there before


def test_not_under_torchrun(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    with pytest.raises(ConfigError, match="once for each device"), claim_piece(tmp_path / "piece", {}):
        pass


def test_the_lock_of_the_results_is_no_link(tmp_path):
    """What it leads to would be emptied."""
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".results.lock").symlink_to(tmp_path / "thesis.tex")
    with pytest.raises(OSError, match="a link"), results_lock(tmp_path / "out"):
        pass
    with pytest.raises(ConfigError, match="is a link"):
        check_results_folder(tmp_path / "out")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_results_are_written_over_our_own_only(tmp_path):
    check_results_folder(tmp_path / "new")
    with results_lock(tmp_path):
        (tmp_path / "results.md").touch()
    check_results_folder(tmp_path)
    (tmp_path / "theirs").mkdir()
    for name in ("results.md", "results.csv", "results.json"):
        (tmp_path / "theirs" / name).symlink_to("elsewhere")
        with pytest.raises(ConfigError, match=f"{name} of another program"):
            check_results_folder(tmp_path / "theirs")


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
    write_tables(tmp_path, result, ["data", "mean"], [[name, "50%"]], ["below"])
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
