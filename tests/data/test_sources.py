"""The one door: what a path, a name and its options lead to; and the contract that all sources keep."""

from __future__ import annotations

import io
import multiprocessing
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.decode import decode
from vitrail.data.shard import shard
from vitrail.data.sources import (
    Example,
    Source,
    find_kind,
    list_splits,
    open_source,
    read_image_file,
    split_options,
)
from vitrail.errors import ConfigError, DataError

PIXELS = np.random.default_rng(0).integers(0, 256, size=(40, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(40) % 4
NAMES = ["ant", "bee", "cat", "dog"]


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def as_folder(root: Path) -> str:
    for i in range(40):
        path = root / "set" / "train" / NAMES[LABELS[i]] / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(PIXELS[i]))
    return str(root / "set")


def as_parquet(root: Path) -> str:
    shard(as_folder(root), root / "parquet")
    return str(root / "parquet")


def as_tar(root: Path) -> str:
    (root / "tar").mkdir()
    with tarfile.open(root / "tar" / "train-000.tar", "w") as archive:
        for i in range(40):
            for name, data in ((f"{i:02d}.png", png(PIXELS[i])), (f"{i:02d}.cls", NAMES[LABELS[i]].encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return str(root / "tar")


def as_arrays(root: Path) -> str:
    np.savez(root / "set.npz", x_train=PIXELS, y_train=LABELS, class_names=np.array(NAMES))
    return str(root / "set.npz")


def as_shapes(root: Path) -> str:
    return "shapes:count?n=40&image_size=8"


KINDS: dict[str, Callable[[Path], str]] = {
    "folder": as_folder,
    "parquet": as_parquet,
    "tar": as_tar,
    "arrays": as_arrays,
    "shapes": as_shapes,
}


def pixels(example: Example) -> np.ndarray:
    return decode(example.image, name=example.key) if isinstance(example.image, bytes) else example.image


def read_all(source: Source) -> list[tuple[bytes, int, str]]:
    examples = [source.read(i) for i in range(len(source))]
    return [(pixels(example).tobytes(), example.label, example.key) for example in examples]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_contract(kind: str, tmp_path: Path) -> None:
    where = KINDS[kind](tmp_path)
    source = open_source(where)
    assert list_splits(where)[0] == "train"
    assert len(source) == 40
    assert source.labels.dtype == np.int64
    assert source.labels.shape == (40,)
    examples = read_all(source)
    assert [label for _, label, _ in examples] == source.labels.tolist()
    assert [key for _, _, key in examples] == [source.key(i) for i in range(40)]
    assert len({key for _, _, key in examples}) == 40
    assert all(isinstance(name, str) for name in source.class_names)
    assert isinstance(source.read(0).label, int)
    for index in (40, 10**9):
        with pytest.raises(IndexError):
            source.read(index)
    assert source.fingerprint() == open_source(where).fingerprint()
    assert source.fingerprint() != open_source(where, "train[1:]").fingerprint()
    with pytest.raises(DataError, match="has no split 'nothing'"):
        open_source(where, "nothing")


@pytest.mark.parametrize("kind", ["folder", "parquet", "tar", "arrays"])
def test_the_same_data_in_every_form(kind: str, tmp_path: Path) -> None:
    source = open_source(KINDS[kind](tmp_path))
    assert source.class_names == NAMES
    found = {(image, label) for image, label, _ in read_all(source)}
    assert found == {(PIXELS[i].tobytes(), LABELS[i]) for i in range(40)}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 and later, where threads run
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_sources_travel_to_other_processes(method: str, tmp_path: Path) -> None:
    sources = []
    for kind, make in KINDS.items():
        (tmp_path / kind).mkdir()
        sources.append(open_source(make(tmp_path / kind), "train[:3]+train[-2:]"))
    here = [read_all(source) for source in sources]  # so files are open here already
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.map(read_all, sources) == here


def test_layouts(tmp_path: Path) -> None:
    assert find_kind(Path(as_folder(tmp_path))) == "folder"
    assert find_kind(Path(as_parquet(tmp_path))) == "parquet"
    assert find_kind(Path(as_arrays(tmp_path))) == "arrays"
    assert find_kind(Path(as_tar(tmp_path))) == "tar"
    (tmp_path / "tar" / "train.parquet").touch()
    with pytest.raises(DataError, match="contains both Parquet and tar shards"):
        open_source(tmp_path / "tar")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(
        DataError, match=r"notes\.txt: not a data set; a data set is a folder, or a file that ends in \.npz"
    ):
        open_source(tmp_path / "notes.txt")


def test_what_is_neither_a_file_nor_a_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe: neither a file nor a folder"):
        open_source(tmp_path / "pipe")


def test_options(tmp_path: Path) -> None:
    assert split_options("photos?seed=1&test=0.2") == ("photos", {"seed": "1", "test": "0.2"})
    assert split_options("photos") == ("photos", {})
    odd = tmp_path / "what?"
    odd.mkdir()
    assert split_options(str(odd)) == (str(odd), {})  # a path that exists is that path
    assert split_options(f"{odd}?seed=1") == (str(odd), {"seed": "1"})
    with pytest.raises(ConfigError, match="write them as"):
        split_options("photos?seed")


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_folder(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(open_source("~/set")) == 40


def test_a_folder_never_loads_pyarrow_nor_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from vitrail.data.sources import open_source; open_source(sys.argv[1]).read(0); "
        "open_source('shapes').read(0); print({'torch', 'pyarrow', 'torchvision', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, as_folder(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert done.stdout.strip() == "set()"


def test_an_image_file_is_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    for name in ("pipe.png", "zero.png"):
        with pytest.raises(DataError, match=f"^{name}: cannot be read: not a regular file$"):
            read_image_file(str(tmp_path / name), name)
