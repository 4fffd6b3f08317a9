"""Hub names: the package that is needed, the network that is not asked, the columns that are found."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vitrail.data.shard import shard
from vitrail.data.sources import list_splits, open_source
from vitrail.errors import ConfigError, DataError


class Image:
    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


class ClassLabel:
    def __init__(self, names: list[str]) -> None:
        self.names = names


class Rows:
    """The part of datasets.Dataset that is used."""

    _fingerprint = "f00"

    def __init__(self, features: dict[str, Any], columns: dict[str, list[Any]]) -> None:
        self.features, self.columns = features, columns

    def with_format(self, _: str) -> dict[str, np.ndarray]:
        return {name: np.array(column) for name, column in self.columns.items()}

    def select_columns(self, names: list[str]) -> Rows:
        return Rows(self.features, {name: self.columns[name] for name in names})

    def cast_column(self, name: str, feature: Image) -> Rows:
        assert not feature.decode
        return self

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: column[index] for name, column in self.columns.items()}


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """A stand-in for the package `datasets`, which holds one data set of three images."""
    (tmp_path / "file.jpg").write_bytes(b"from a file")
    images = [{"bytes": b"stored", "path": None}, {"bytes": None, "path": str(tmp_path / "file.jpg")}, None]
    rows = Rows(
        {"img": Image(), "fine": ClassLabel(["a", "b"]), "coarse": ClassLabel(["x"]), "id": int},
        {"img": images, "fine": [1, 0, 1], "coarse": [0, 0, 0], "id": [5, 6, 7]},
    )
    datasets = SimpleNamespace(Image=Image, ClassLabel=ClassLabel, asked=[])
    datasets.config = SimpleNamespace(HF_HUB_OFFLINE=False)
    datasets.exceptions = SimpleNamespace(DatasetsError=type("DatasetsError", (Exception,), {}))

    def load_dataset(name: str, configuration: str | None) -> dict[str, Rows]:
        datasets.asked.append((name, configuration, datasets.config.HF_HUB_OFFLINE))
        if name != "owner/name":
            raise datasets.exceptions.DatasetsError("no such thing")
        return {"train": rows, "val": rows}

    datasets.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    return datasets


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        DataError, match=r"needs the package datasets, which is not installed: pip install 'vitrail\[hub\]'"
    ):
        open_source("hf:owner/name")


def test_images_labels_and_splits(package: SimpleNamespace) -> None:
    assert list_splits("hf:owner/name") == ["train", "validation"]
    source = open_source("hf:owner/name:small?label=fine", "validation")
    assert (source.class_names, source.labels.tolist()) == (["a", "b"], [1, 0, 1])
    assert [source.read(i).image for i in range(2)] == [b"stored", b"from a file"]
    assert source.key(1) == source.read(1).key == "validation:1"
    with pytest.raises(DataError, match="validation:2: the row has no image"):
        source.read(2)
    with pytest.raises(IndexError):
        source.key(3)


def test_the_network_only_when_asked(package: SimpleNamespace) -> None:
    open_source("hf:owner/name?label=fine")
    open_source("hf:owner/name:small?label=fine", download=True)
    assert package.asked == [("owner/name", None, True), ("owner/name", "small", False)]
    assert package.config.HF_HUB_OFFLINE is False
    with pytest.raises(
        DataError, match="no such thing; it was looked for in the local cache only, download=True fetches"
    ):
        open_source("hf:owner/other")
    assert package.config.HF_HUB_OFFLINE is False


def test_columns_that_are_not_clear(package: SimpleNamespace) -> None:
    with pytest.raises(DataError, match=r"which column is the label, of fine, coarse; .*\?label=NAME"):
        open_source("hf:owner/name")
    with pytest.raises(ConfigError, match="no column 'id' for the image; columns: img"):
        open_source("hf:owner/name?image=id&label=fine")
    package.ClassLabel = bytes
    with pytest.raises(DataError, match="which column is the label, of none; "):
        open_source("hf:owner/name")
    with pytest.raises(ConfigError, match="a name is expected"):
        open_source("hf:")


def test_the_real_package_reads_what_shard_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    pytest.importorskip("datasets", reason="the package datasets is not installed")
    for split in ("train", "test"):
        shard("shapes:colour?n=40&image_size=16", tmp_path / "owner" / "shapes", split=split)
    monkeypatch.chdir(tmp_path)
    source, drawn = open_source("hf:owner/shapes", "test"), open_source(tmp_path / "owner" / "shapes", "test")
    assert source.class_names == drawn.class_names
    assert np.array_equal(source.labels, drawn.labels)
    assert [source.read(i).image for i in range(10)] == [drawn.read(i).image for i in range(10)]
    assert pickle.loads(pickle.dumps(source)).read(3) == source.read(3)
