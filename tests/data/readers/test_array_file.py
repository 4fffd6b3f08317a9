"""Images in .npz files: from the disk or unpacked, within bounds, and unharmed when the file changes meanwhile."""

from __future__ import annotations

import os
import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitrail.data.readers import arrays
from vitrail.data.readers.arrays import ArrayFile, open_arrays
from vitrail.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, size=(40, 16, 16, 3), dtype=np.uint8)


def put(path: Path, *, packed: bool = False, order: Any = "C", pixels: np.ndarray = PIXELS) -> Path:
    save = np.savez_compressed if packed else np.savez
    save(path, x=np.array(pixels, order=order), y=np.arange(len(pixels)) % 3)
    return path


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("change", ["cut", "removed", "replaced"])
def test_a_file_that_changes_while_it_is_in_use(
    tmp_path: Path, packed: bool, order: str, change: str
) -> None:
    path = put(tmp_path / "a.npz", packed=packed, order=order)
    used, unused = ArrayFile(path, "x"), ArrayFile(path, "x")
    assert np.array_equal(used.read(3), PIXELS[3])
    in_memory = packed or order == "F"
    if change == "cut":
        os.truncate(path, 300)  # in place: a file that was mapped would now be a SIGBUS
    elif change == "removed":
        path.unlink()
    else:
        put(path, packed=packed, order=order, pixels=255 - PIXELS)
        os.utime(path, ns=(7, 7))
    if in_memory:
        assert np.array_equal(used.read(30), PIXELS[30])
    for file in (unused, pickle.loads(pickle.dumps(used)), *([] if in_memory else [used])):
        with pytest.raises(DataError, match=r"a\.npz, array 'x': cannot be read"):
            file.read(30)


def test_nothing_of_a_stored_array_stays_in_memory(tmp_path: Path) -> None:
    source = open_arrays(put(tmp_path / "a.npz", pixels=np.zeros((2000, 64, 64, 3), np.uint8)), "train")
    tracemalloc.start()
    for i in range(len(source)):
        source.read(i)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_unpacked_is_bounded_before_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    flat = np.zeros((400, 32, 32, 3), np.uint8)  # 1.2 MB, packed in 2 KB
    path = put(tmp_path / "a.npz", packed=packed, pixels=flat)
    monkeypatch.setattr(arrays, "read_member", lambda *_: pytest.fail("unpacked"))
    monkeypatch.setattr(arrays, "FREE_BYTES", 1 << 20)
    if not packed:  # which costs no memory, however much it is
        assert not ArrayFile(path, "x").read(399).any()
        return
    with pytest.raises(DataError, match=r"takes 1,228,928 bytes of memory; .*1,048,576"):
        ArrayFile(path, "x")
    random = np.random.default_rng(0).integers(0, 256, flat.shape, dtype=np.uint8)
    noise = put(tmp_path / "b.npz", packed=True, pixels=random)
    ArrayFile(noise, "x")  # as much, from a file as large
    monkeypatch.setattr(arrays, "MAX_BYTES", 1 << 19)
    with pytest.raises(DataError, match="524,288"):
        ArrayFile(noise, "x")


def test_a_damaged_array_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a.npz", packed=True, pixels=np.tile(PIXELS, (40, 1, 1, 1)))
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("x.npy")
    data = bytearray(path.read_bytes())
    data[info.header_offset + info.compress_size - 50] ^= 255  # far behind its header
    path.write_bytes(data)
    file = ArrayFile(path, "x")
    for _ in range(2):
        with pytest.raises(DataError, match=r"a\.npz, array 'x': cannot be read"):
            file.read(0)
        monkeypatch.setattr(arrays, "read_member", lambda *_: pytest.fail("unpacked again"))


@pytest.mark.parametrize("packed", [False, True])
def test_pixels_that_differ_from_what_was_saved_are_refused(tmp_path: Path, packed: bool) -> None:
    path = put(tmp_path / "a.npz", packed=packed)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("x.npy")
    for place in rng.integers(200, info.compress_size, 30):
        data = bytearray(whole)
        data[info.header_offset + place] ^= 1 << rng.integers(8)
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"a\.npz, array 'x'"):
            ArrayFile(path, "x").read(0)
