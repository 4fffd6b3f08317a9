"""Files of others: read within bounds, and left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vitrail.data import bounded_files
from vitrail.data.bounded_files import (
    TooLargeError,
    check_replaceable,
    parse_object,
    read_file,
    read_json,
    read_text,
)
from vitrail.errors import ConfigError, DataError


@pytest.mark.parametrize("size", [0, 1, 5000, 200_000])
def test_all_bytes(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "a").write_bytes(data)
    assert read_file(tmp_path / "a", most=size) == data
    if size:
        with pytest.raises(TooLargeError, match=f"{size:,} bytes; at most {size - 1:,} are read"):
            read_file(str(tmp_path / "a"), most=size - 1)


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(OSError, match="not a regular file"):
            read_file(tmp_path / name, most=10)
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path, most=10)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no files that hide their size")
def test_a_file_that_has_more_than_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/proc/self/environ"
    assert Path(path).stat().st_size == 0
    data = Path(path).read_bytes()
    for chunk in (1, 7, 1 << 16):
        monkeypatch.setattr(bounded_files, "CHUNK", chunk)
        assert read_file(path, most=len(data)) == data
        with pytest.raises(TooLargeError):
            read_file(path, most=len(data) - 1)


def test_text_and_objects(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"é": 1}')
    assert parse_object(read_text(tmp_path / "a", "words"), "here") == {"é": 1}
    with pytest.raises(DataError, match="a: words cannot be read: 9 bytes; at most 5 are read"):
        read_text(tmp_path / "a", "words", 5)
    for text in ("", "5", "[]", "[" * 100_000, "9" * 5000):
        with pytest.raises(DataError, match=r"^here: "):
            parse_object(text, "here")


def test_only_what_is_ours_is_replaced(tmp_path: Path) -> None:
    for name, content in (
        ("ours", b"head mark tail"),
        ("empty", b""),
        ("theirs", b"head"),
        ("late", b"." * 600 + b"mark"),
    ):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    (tmp_path / "nowhere").symlink_to("nothing")
    for name in ("ours", "empty", "absent"):
        check_replaceable(tmp_path / name, b"mark", "list")
    for name in ("theirs", "late", "folder", "nowhere"):
        with pytest.raises(ConfigError, match=f"{name} exists and is not a list"):
            check_replaceable(tmp_path / name, b"mark", "list")


def test_json_of_any_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("[1, null]")
    assert read_json(tmp_path / "a", "a list") == [1, None]
    monkeypatch.setattr(bounded_files, "MAX_JSON_BYTES", 5)
    with pytest.raises(DataError, match="a: a list cannot be read: 9 bytes; at most 5 are read"):
        read_json(tmp_path / "a", "a list")
    for text in ("", "[1", "[" * 100):
        monkeypatch.setattr(bounded_files, "MAX_JSON_BYTES", 100)
        (tmp_path / "a").write_text(text)
        with pytest.raises(DataError, match="a: a list must be JSON: "):
            read_json(tmp_path / "a", "a list")
