"""Arrays in .npz files, or in memory, as sources."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitrail.data.readers import arrays
from vitrail.data.readers.arrays import ArrayFile, ArraySource, open_arrays
from vitrail.data.sources import open_source, splits_of
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
    assert isinstance(source.images, ArrayFile)
    assert isinstance(source.images.array, np.memmap) != packed


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
    assert splits_of(path) == splits
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
        ({"a": PIXELS}, "arrays a; pairs like images and labels"),
        ({"x": PIXELS.astype(np.float32), "y": LABELS}, r"images are float32 \(6, 4, 5, 3\)"),
        ({"x": PIXELS.transpose(0, 3, 1, 2), "y": LABELS}, r"images are uint8 \(6, 3, 4, 5\)"),
        ({"x": PIXELS, "y": LABELS[:5]}, r"6 images but labels of shape \(5,\)"),
        ({"x": PIXELS, "y": LABELS.astype(float)}, "labels 'y' are float64"),
        ({"x": PIXELS[:0], "y": LABELS[:0]}, "no examples"),
        ({"x": PIXELS, "y": LABELS - 1}, "labels are none of the"),
        ({"x": PIXELS, "y": LABELS, "class_names": np.array("cat")}, r"class_names are <U3 \(\); strings or"),
        (
            {"x": PIXELS, "y": LABELS, "class_names": np.array([["a"], ["b"], ["c"]])},
            r"class_names are <U1 \(3, 1\)",
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
        with pytest.raises(DataError, match="holds Python objects, which are never unpickled"):
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


def test_a_packed_array_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_arrays(put(tmp_path / "a.npz", packed=True, x=PIXELS, y=LABELS), "train")
    monkeypatch.setattr(arrays, "MAX_BYTES", 100)
    with pytest.raises(DataError, match="bytes unpacked, more than 100"):
        source.read(0)


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
