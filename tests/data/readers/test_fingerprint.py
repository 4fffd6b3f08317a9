"""Digests change with what they stand for."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.readers.fingerprint import digest, digest_files, file_stamp, read_bytes_at


def test_digest_tells_parts_apart() -> None:
    assert digest("ab", "c") != digest("a", "bc") != digest("abc")
    assert digest(np.arange(3)) != digest(np.arange(4))
    assert digest("a", 1) == digest("a", 1)
    assert digest("\udcff") != digest("")  # names that are not UTF-8 do not fail


def test_files_by_name_size_and_time(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"1")
    seen = {digest_files([("a", file)])}
    os.utime(file, ns=(1, 1))
    seen.add(digest_files([("a", file)]))
    file.write_bytes(b"22")
    os.utime(file, ns=(1, 1))
    seen.add(digest_files([("a", file)]))
    seen.add(digest_files([("b", file)]))
    file.unlink()
    seen.add(digest_files([("a", file)]))
    assert len(seen) == 5


def test_a_piece_of_a_file_that_has_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"0123456789")
    stamp = file_stamp(file.stat())
    assert read_bytes_at(file, 3, 4, stamp) == b"3456"
    with pytest.raises(OSError, match="it ends inside this image"):
        read_bytes_at(file, 8, 4, stamp)
    file.write_bytes(b"01234567890")
    with pytest.raises(OSError, match="it was changed since it was opened"):
        read_bytes_at(file, 3, 4, stamp)
