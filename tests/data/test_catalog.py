"""Data sets by name: where they are looked for, what is said when they are missing, how torchvision is read."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from tests.peers import torchvision_or_skip
from vitrail.data.catalog import CATALOG, data_root
from vitrail.data.shard import shard
from vitrail.data.sources import list_splits, open_source
from vitrail.errors import ConfigError, DataError


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(path)
    return path


@pytest.fixture
def torchvision() -> ModuleType:
    return torchvision_or_skip()


@pytest.fixture(autouse=True)
def no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VITRAIL_DATA", raising=False)


def test_where_names_are_looked_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache/vitrail/data"
    monkeypatch.setenv("VITRAIL_DATA", "/from/variable")
    assert data_root() == Path("/from/variable")
    assert data_root("~/here") == tmp_path / "here"


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_a_missing_set_says_where_it_was_looked_for_and_how_to_get_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        open_source(name, "train", root=tmp_path)
    message = str(caught.value)
    assert f"{tmp_path}/{name} (a folder of images" in message
    assert CATALOG[name].get.format(name=name) in message
    assert "VITRAIL_DATA" in message
    assert ("(as torchvision keeps it)" in message) == bool(CATALOG[name].torchvision)
    assert f"{tmp_path}/{CATALOG[name].found_by.format(split='train')}" in message
    assert list(tmp_path.iterdir()) == []  # looking leaves nothing behind


def test_unknown_names_suggest_a_near_one() -> None:
    with pytest.raises(
        DataError, match=r"no data set 'cifar': .* \(did you mean 'cifar10'\?\).* Names: shapes, cifar10"
    ):
        open_source("cifar")
    with pytest.raises(DataError, match="no such path"):
        list_splits("no/such/path")


def test_a_folder_under_root_in_our_own_layouts(tmp_path: Path) -> None:
    shard("shapes:colour?n=40&image_size=8", tmp_path / "cifar10", split="validation")
    assert list_splits("cifar10", root=tmp_path) == ["validation"]
    assert len(open_source("cifar10", "validation", root=tmp_path)) == 10
    for name in ("train/n01/a.jpg", "val/n01/b.jpg"):
        put(tmp_path / "imagenet" / name)
    assert list_splits("imagenet", root=tmp_path) == ["train", "validation"]
    assert open_source("imagenet", "val", root=tmp_path).key(0) == "val/n01/b.jpg"


def test_a_path_that_exists_comes_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "pets/train/cat/a.jpg")
    monkeypatch.chdir(tmp_path)
    assert open_source("pets").class_names == ["cat"]


def test_an_import_that_fails_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(DataError, match=r"'cifar10' .* not installed .*pip install 'vitrail\[torchvision\]'"):
        open_source("cifar10", root=tmp_path)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("operator torchvision::nms does not exist"),
        OSError("libcudart.so.13: cannot open shared object file"),
        ImportError("undefined symbol: _ZN3c105ErrorC2E"),
        AttributeError("partially initialized module 'torchvision' has no attribute 'extension'"),
    ],
)
def test_a_torchvision_for_another_torch_is_said_plainly(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name.split(".")[0] == "torchvision":
                raise error

    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Broken, *sys.meta_path])
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(DataError, match=r"cannot be imported .*vitrail\[torchvision\]") as caught:
        open_source("cifar10", root=tmp_path)
    assert str(error) in str(caught.value) and "\n" not in str(caught.value)


def test_names_in_the_table_are_torchvisions(torchvision: ModuleType) -> None:
    for name, entry in CATALOG.items():
        assert not entry.torchvision or hasattr(torchvision.datasets, entry.torchvision), name


def test_a_broken_copy_says_what_torchvision_says(torchvision: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(DataError, match="Dataset not found or corrupted"):
        open_source("cifar10", root=tmp_path)


def test_files_with_official_splits(torchvision: ModuleType, tmp_path: Path) -> None:
    for split, names in {"train": "b/2 a/1", "val": "a/3", "test": "b/4"}.items():
        lines = [f"{name}.jpg" for name in names.split()]
        for line in lines:
            put(tmp_path / "dtd/dtd/images" / line)
        labels = tmp_path / "dtd/dtd/labels" / f"{split}1.txt"
        labels.parent.mkdir(exist_ok=True)
        labels.write_text("\n".join(lines))
    assert list_splits("dtd", root=tmp_path) == ["train", "validation", "test"]
    source = open_source("dtd", root=tmp_path)
    assert [source.key(i) for i in range(2)] == ["dtd/dtd/images/a/1.jpg", "dtd/dtd/images/b/2.jpg"]
    assert source.labels.tolist() == [0, 1]
    assert source.read(1).image == (tmp_path / source.key(1)).read_bytes()
    assert pickle.loads(pickle.dumps(source)).read(0) == source.read(0)
    with pytest.raises(ConfigError, match="'dtd' has no option seed"):
        open_source("dtd?seed=1", root=tmp_path)


def test_food_and_pets(torchvision: ModuleType, tmp_path: Path) -> None:
    for name in ("pie/1", "ham/2"):
        put(tmp_path / f"food-101/images/{name}.jpg")
    (tmp_path / "food-101/meta").mkdir()
    (tmp_path / "food-101/meta/train.json").write_text(json.dumps({"pie": ["pie/1"], "ham": ["ham/2"]}))
    source = open_source("food101", root=tmp_path)
    assert [(source.key(i), source.class_names[source.labels[i]]) for i in range(2)] == [
        ("food-101/images/ham/2.jpg", "ham"),
        ("food-101/images/pie/1.jpg", "pie"),
    ]
    for name in ("great_pyrenees_7", "beagle_1"):
        put(tmp_path / f"oxford-iiit-pet/images/{name}.jpg")
    (tmp_path / "oxford-iiit-pet/annotations").mkdir()
    (tmp_path / "oxford-iiit-pet/annotations/trainval.txt").write_text(
        "great_pyrenees_7 2 2 1\nbeagle_1 1 2 1\n"
    )
    pets = open_source("pets", "train", root=tmp_path)
    assert [(pets.key(i).split("/")[-1], pets.class_names[pets.labels[i]]) for i in range(2)] == [
        ("beagle_1.jpg", "Beagle"),
        ("great_pyrenees_7.jpg", "Great Pyrenees"),
    ]
    assert isinstance(pets.read(0).image, bytes)


@pytest.mark.parametrize(
    ("name", "folder"), [("eurosat", "eurosat/2750"), ("caltech101", "caltech101/101_ObjectCategories")]
)
def test_sets_in_one_piece_are_split_here(
    torchvision: ModuleType, tmp_path: Path, name: str, folder: str
) -> None:
    for kind in ("Forest", "River"):
        for i in range(1, 21):
            put(tmp_path / folder / kind / f"image_{i:04d}.jpg")
    if name == "caltech101":
        (tmp_path / folder / "BACKGROUND_Google").mkdir()
    splits = {split: open_source(name, split, root=tmp_path) for split in list_splits(name, root=tmp_path)}
    assert {split: np.bincount(source.labels).tolist() for split, source in splits.items()} == {
        "train": [16, 16],
        "validation": [2, 2],
        "test": [2, 2],
    }
    assert len({source.key(i) for source in splits.values() for i in range(len(source))}) == 40
    assert isinstance(splits["test"].read(0).image, bytes)
    assert len(open_source(f"{name}?test=0.5", "test", root=tmp_path)) == 20


def test_nothing_is_fetched_unless_asked(
    torchvision: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []

    def download(dataset: object) -> None:
        fetched.append(type(dataset).__name__)
        for i in range(10):
            put(tmp_path / "eurosat/2750/River" / f"{i}.jpg")

    monkeypatch.setattr(torchvision.datasets.EuroSAT, "download", download)
    with pytest.raises(DataError, match=r"open_source\('eurosat', download=True\) fetches it"):
        open_source("eurosat", root=tmp_path)
    assert fetched == []
    assert list_splits("eurosat", root=tmp_path, download=True) == ["train", "validation", "test"]
    assert fetched == []
    assert len(open_source("eurosat", root=tmp_path, download=True)) == 8
    assert fetched == ["EuroSAT"]
    assert len(open_source("eurosat", "test", root=tmp_path)) == 1
    assert fetched == ["EuroSAT"]


@pytest.fixture
def cifar(torchvision: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """A CIFAR-10 of 10 training and 2 test images, whose checksums torchvision is told."""
    pixels = np.random.default_rng(0).integers(0, 256, size=(12, 3, 32, 32), dtype=np.uint8)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()

    def write(name: str, content: dict[str, object]) -> list[str]:
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]

    def batch(rows: slice) -> dict[str, object]:
        return {"data": pixels[rows].reshape(-1, 3072), "labels": list(range(12))[rows]}  # (rows, 3072)

    reader = torchvision.datasets.CIFAR10
    train = [write(f"data_batch_{i + 1}", batch(slice(2 * i, 2 * i + 2))) for i in range(5)]
    monkeypatch.setattr(reader, "train_list", train)
    monkeypatch.setattr(
        reader, "test_list", [write("test_batch", {"data": pixels[10:].reshape(-1, 3072), "labels": [0, 1]})]
    )
    meta = write("batches.meta", {"label_names": [f"name {i}" for i in range(10)]})
    monkeypatch.setattr(reader, "meta", {"filename": meta[0], "key": "label_names", "md5": meta[1]})
    return pixels.transpose(0, 2, 3, 1)  # (12, 32, 32, 3)


def test_cifar(cifar: np.ndarray, tmp_path: Path) -> None:
    assert list_splits("cifar10", root=tmp_path) == ["train", "test"]
    source = open_source("cifar10", "train[:50%]+test", root=tmp_path)
    assert source.labels.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert source.class_names[9] == "name 9"
    assert np.array_equal(source.read(6).image, cifar[11])
    assert source.read(6).key == "test:1"
    with pytest.raises(DataError, match="data set 'cifar10' has no split 'validation'; it has: train, test"):
        open_source("cifar10", "validation", root=tmp_path)


def test_mnist_and_planes(torchvision: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, size=(3, 28, 28), dtype=np.uint8)
    raw = tmp_path / "MNIST/raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(
            struct.pack(">4B3I", 0, 0, 8, 3, 3, 28, 28) + pixels.tobytes()
        )
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, 3) + bytes([5, 0, 9]))
    source = open_source("mnist", root=tmp_path)
    assert source.labels.tolist() == [5, 0, 9]
    assert np.array_equal(source.read(1).image, np.stack([pixels[1]] * 3, axis=-1))  # (28, 28, 3)

    planes = np.random.default_rng(0).integers(0, 256, size=(2, 3, 96, 96), dtype=np.uint8)
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    (folder / "train_X.bin").write_bytes(planes.transpose(0, 1, 3, 2).tobytes())  # stored by columns
    (folder / "train_y.bin").write_bytes(bytes([2, 10]))
    (folder / "class_names.txt").write_text("\n".join(f"class {i}" for i in range(10)))
    monkeypatch.setattr(torchvision.datasets.STL10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(torchvision.datasets.SVHN, "_check_integrity", lambda self: True)
    birds = open_source("stl10", root=tmp_path)
    assert birds.labels.tolist() == [1, 9]
    assert np.array_equal(birds.read(1).image, planes[1].transpose(1, 2, 0))  # (96, 96, 3)

    savemat = pytest.importorskip("scipy.io", reason="scipy is not installed").savemat
    savemat(
        tmp_path / "test_32x32.mat", {"X": planes[:, :, :32, :32].transpose(2, 3, 1, 0), "y": [[3], [10]]}
    )
    digits = open_source("svhn", "test", root=tmp_path)
    assert [digits.class_names[label] for label in digits.labels] == ["3", "0"]
    assert np.array_equal(digits.read(0).image, planes[0, :, :32, :32].transpose(1, 2, 0))  # (32, 32, 3)
