"""Arrays in .npz files, or in memory, as sources."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitrail.data.readers import arrays
from vitrail.data.readers.arrays import ArrayFile, ArraySource, open_arrays
from vitrail.data.sources import list_splits, open_source
from vitrail.errors import DataError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, size=(6, 4, 5, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def put(path: Path, *, packed: bool = False, **members: Any) -> Path:
    (np.savez_compressed if packed else np.savez)(path, **members)
    return path


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_pixels_as_stored(tmp_path: Path, packed: bool, order: Any) -> None:
    path = put(tmp_path / "a.npz", packed=packed, x_train=np.array(PIXELS, order=order), y_train=LABELS)
    source = open_arrays(path, "train")
    assert len(source) == 6
    for i in range(6):
        example = source.read(i)
        assert np.array_equal(example.image, PIXELS[i])
        assert (example.label, example.key) == (LABELS[i], f"train:{i}")


def test_what_is_read_may_be_changed(tmp_path: Path) -> None:
    for source in (
        open_arrays(put(tmp_path / "a.npz", x=PIXELS, y=LABELS), "train"),
        ArraySource("a", PIXELS, LABELS, list("abc")),
    ):
        image = source.read(0).image
        assert isinstance(image, np.ndarray)
        image[:] = 0
        assert np.array_equal(source.read(0).image, PIXELS[0])
        assert image.flags.c_contiguous


@pytest.mark.parametrize("shape", [(6, 4, 5), (6, 4, 5, 1)])
def test_grey_becomes_three_channels(shape: tuple[int, ...]) -> None:
    grey = PIXELS[..., 0].reshape(shape)  # (6, 4, 5[, 1])
    image = ArraySource("grey", grey, LABELS, list("abc")).read(2).image
    assert np.array_equal(image, np.stack([PIXELS[2, ..., 0]] * 3, axis=-1))  # (4, 5, 3)


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("images", "labels"), ["train"]),
        (("x", "y"), ["train"]),
        (("x_train", "y_train", "x_test", "y_test"), ["train", "test"]),
        (("train_images", "train_labels", "val_images", "val_labels"), ["train", "validation"]),
        (("data", "labels", "other"), ["train"]),
    ],
)
def test_names_of_arrays(tmp_path: Path, names: tuple[str, ...], splits: list[str]) -> None:
    members = {name: LABELS[:, None] if "label" in name or name[0] == "y" else PIXELS for name in names}
    path = put(tmp_path / "a.npz", **members)
    assert list_splits(path) == splits
    assert open_source(path, splits[-1]).labels.tolist() == LABELS.tolist()


def test_names_of_classes(tmp_path: Path) -> None:
    words = np.array(["dog", "cat", "dog", "cat", "cow", "cow"])
    source = open_arrays(put(tmp_path / "a.npz", x=PIXELS, y=words), "train")
    assert (source.class_names, source.labels.tolist()) == (["cat", "cow", "dog"], [2, 0, 2, 0, 1, 1])
    named = put(tmp_path / "b.npz", x=PIXELS, y=LABELS, class_names=np.array(["one", "two", "three"]))
    assert open_arrays(named, "train").class_names == ["one", "two", "three"]
    counted = put(tmp_path / "c.npz", x_train=PIXELS, y_train=LABELS, x_test=PIXELS, y_test=LABELS + 2)
    assert open_arrays(counted, "train").class_names == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"a": PIXELS}, "arrays a; .*images and labels"),
        ({"x": PIXELS.astype(np.float32), "y": LABELS}, r"images are float32 \(6, 4, 5, 3\)"),
        ({"x": PIXELS.transpose(0, 3, 1, 2), "y": LABELS}, r"images are uint8 \(6, 3, 4, 5\)"),
        ({"x": PIXELS, "y": LABELS[:5]}, r"6 images but labels of shape \(5,\)"),
        ({"x": PIXELS, "y": LABELS.astype(float)}, "'y' is float64"),
        ({"x": PIXELS[:0], "y": LABELS[:0]}, "no examples"),
        ({"x": PIXELS, "y": LABELS - 1}, "labels are not among the"),
        ({"x": PIXELS, "y": LABELS, "class_names": np.array("cat")}, r"class_names' is <U3 \(\)"),
        (
            {"x": PIXELS, "y": LABELS, "class_names": np.array([["a"], ["b"], ["c"]])},
            r"class_names' is <U1 \(3, 1\)",
        ),
        ({"x": PIXELS, "y": LABELS, "class_names": np.array(list("aba"))}, "name more than one class: a$"),
        ({"x": PIXELS, "y": LABELS, "images": PIXELS, "labels": LABELS}, "two pairs of arrays for 'train'"),
    ],
)
def test_refused(tmp_path: Path, members: dict[str, np.ndarray], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        open_arrays(put(tmp_path / "a.npz", **members), "train")


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    for name in ("x", "y"):
        members = {"x": PIXELS, "y": LABELS} | {name: np.array([{}] * 6, dtype=object)}
        np.savez(tmp_path / "a.npz", allow_pickle=True, **members)
        with pytest.raises(DataError, match="holds pickled Python objects, which are never loaded"):
            open_arrays(tmp_path / "a.npz", "train")


def test_files_that_are_not_whole(tmp_path: Path) -> None:
    path = put(tmp_path / "a.npz", x=PIXELS, y=LABELS)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"not a whole \.npz file"):
        open_arrays(path, "train")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"not an array")
        archive.writestr("y.npy", b"not an array")
    with pytest.raises(DataError, match="not an array"):
        open_arrays(path, "train")


def npy(header: str, data: bytes = b"") -> bytes:
    """A member with any header."""
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def says(descr: str, shape: str, data: bytes = b"") -> bytes:
    return npy(f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}}}", data)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("member", "content", "reason"),
    [
        ("y", says("<i8", "(1000000000000,)"), r"\(1000000000000,\) of int64.* 128 bytes"),
        ("y", says("<U0", "(1000000000,)"), r"\(1000000000,\) of <U0"),
        ("y", npy("{'descr': ((((("), "not an array"),
        ("y", says("<U1", "(6,)", b"\xff" * 24), "'y' is not Unicode text"),
        ("y", says("<U1", "(6,)", b"\x00\xd8\x00\x00" * 6), "not Unicode text"),
        ("y", b"\x93NUMPY\x09\x00\x10\x00", "version"),
        ("y", b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "not an array"),
        ("x", says("|u1", "(6, True, True, 3)", bytes(18)), r"\(6, True, True, 3\)"),
        ("x", says("|u1", "(6, -4, -5, 3)", bytes(360)), r"\(6, -4, -5, 3\)"),
        ("class_names", says("<U1", "(3,)", b"\xff" * 12), "'class_names' is not Unicode text"),
    ],
)
def test_members_that_lie(tmp_path: Path, method: int, member: str, content: bytes, reason: str) -> None:
    np.savez(tmp_path / "good.npz", x=PIXELS, y=LABELS)
    with (
        zipfile.ZipFile(tmp_path / "good.npz") as good,
        zipfile.ZipFile(tmp_path / "a.npz", "w", method) as bad,
    ):
        for name in {"x", "y", member}:
            bad.writestr(f"{name}.npy", content if name == member else good.read(f"{name}.npy"))
    with pytest.raises(DataError, match=reason):
        open_arrays(tmp_path / "a.npz", "train")


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("packed", [False, True])
def test_random_damage_is_a_data_error(tmp_path: Path, packed: bool, seed: int) -> None:
    path = put(
        tmp_path / "a.npz", packed=packed, images=np.zeros((4, 8, 8, 3), np.uint8), labels=np.arange(4)
    )
    data, rng = bytearray(path.read_bytes()), np.random.default_rng(seed)
    for place in rng.integers(0, len(data), 5):
        data[place] = rng.integers(0, 256)
    path.write_bytes(data)
    with contextlib.suppress(DataError):
        open_arrays(path, "train").read(0)


def test_methods_that_numpy_does_not_write_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", x=PIXELS, y=LABELS)
    with (
        zipfile.ZipFile(tmp_path / "good.npz") as good,
        zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_LZMA) as packed,
    ):
        for name in good.namelist():
            packed.writestr(name, good.read(name))
    with pytest.raises(DataError, match="method 14"):
        open_arrays(tmp_path / "a.npz", "train")


def test_labels_and_images_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a.npz", packed=True, x=PIXELS, y=LABELS)
    monkeypatch.setattr(arrays, "MAX_LABEL_BYTES", 100)
    with pytest.raises(DataError, match=r"array 'y'.* at most 100 are read"):
        open_arrays(path, "train")
    monkeypatch.undo()
    monkeypatch.setattr(arrays, "MAX_PIXELS", 19)
    with pytest.raises(DataError, match=r"images of 4 x 5 pixels; .*19"):
        open_arrays(path, "train")


def test_pickles_without_its_pixels_and_fingerprint(tmp_path: Path) -> None:
    big = np.zeros((1000, 32, 32, 3), np.uint8)
    source = open_arrays(put(tmp_path / "a.npz", packed=True, x=big, y=np.zeros(1000, int)), "train")
    source.read(0)
    data = pickle.dumps(source)
    assert len(data) < 20_000
    again = pickle.loads(data)
    assert np.array_equal(again.read(999).image, big[999])
    assert again.fingerprint() == source.fingerprint()
    memory = [
        ArraySource("a", PIXELS, labels, list("abc")).fingerprint() for labels in (LABELS, LABELS[::-1])
    ]
    memory.append(ArraySource("a", 255 - PIXELS, LABELS, list("abc")).fingerprint())
    assert len(set(memory)) == 3


PIXELS_STORED = np.random.default_rng(0).integers(0, 256, size=(40, 16, 16, 3), dtype=np.uint8)


def put_stored(
    path: Path, *, packed: bool = False, order: Any = "C", pixels: np.ndarray = PIXELS_STORED
) -> Path:
    save = np.savez_compressed if packed else np.savez
    save(path, x=np.array(pixels, order=order), y=np.arange(len(pixels)) % 3)
    return path


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("change", ["cut", "removed", "replaced"])
def test_a_file_that_changes_while_it_is_in_use(
    tmp_path: Path, packed: bool, order: str, change: str
) -> None:
    path = put_stored(tmp_path / "a.npz", packed=packed, order=order)
    used, unused = ArrayFile(path, "x"), ArrayFile(path, "x")
    assert np.array_equal(used.read(3), PIXELS_STORED[3])
    in_memory = packed or order == "F"
    if change == "cut":
        os.truncate(path, 300)  # in place: a file that was mapped would now be a SIGBUS
    elif change == "removed":
        path.unlink()
    else:
        put_stored(path, packed=packed, order=order, pixels=255 - PIXELS_STORED)
        os.utime(path, ns=(7, 7))
    if in_memory:
        assert np.array_equal(used.read(30), PIXELS_STORED[30])
    reason = "No such file" if change == "removed" else "it was changed since it was opened as a data set"
    for file in (unused, pickle.loads(pickle.dumps(used)), *([] if in_memory else [used])):
        with pytest.raises(DataError, match=rf"a\.npz, array 'x': cannot be read: {reason}"):
            file.read(30)


def test_nothing_of_a_stored_array_stays_in_memory(tmp_path: Path) -> None:
    source = open_arrays(
        put_stored(tmp_path / "a.npz", pixels=np.zeros((2000, 64, 64, 3), np.uint8)), "train"
    )
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
    path = put_stored(tmp_path / "a.npz", packed=packed, pixels=flat)
    monkeypatch.setattr(arrays, "read_member", lambda *_: pytest.fail("unpacked"))
    monkeypatch.setattr(arrays, "FREE_BYTES", 1 << 20)
    if not packed:  # which costs no memory, however much it is
        assert not ArrayFile(path, "x").read(399).any()
        return
    with pytest.raises(DataError, match=r"takes 1,228,928 bytes of memory; .*1,048,576"):
        ArrayFile(path, "x")
    random = np.random.default_rng(0).integers(0, 256, flat.shape, dtype=np.uint8)
    noise = put_stored(tmp_path / "b.npz", packed=True, pixels=random)
    ArrayFile(noise, "x")  # as much, from a file as large
    monkeypatch.setattr(arrays, "MAX_BYTES", 1 << 19)
    with pytest.raises(DataError, match="524,288"):
        ArrayFile(noise, "x")


def test_a_damaged_array_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put_stored(tmp_path / "a.npz", packed=True, pixels=np.tile(PIXELS_STORED, (40, 1, 1, 1)))
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
    path = put_stored(tmp_path / "a.npz", packed=packed)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("x.npy")
    for place in rng.integers(200, info.compress_size, 30):
        data = bytearray(whole)
        data[info.header_offset + place] ^= 1 << rng.integers(8)
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"a\.npz, array 'x'"):
            ArrayFile(path, "x").read(0)
