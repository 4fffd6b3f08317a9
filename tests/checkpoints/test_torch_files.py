from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitrail.checkpoints import torch_files
from vitrail.checkpoints.json_files import save_json
from vitrail.errors import CheckpointError

TENSORS = {"a.weight": torch.randn(4, 3), "a.bias": torch.randn(4)}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def torch_bytes(content: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


@pytest.mark.parametrize("name", ["a.safetensors", "a.pth", "old.pth", "named-otherwise.bin"])
def test_what_a_file_is_its_content_says(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name in ("a.safetensors", "named-otherwise.bin"):
        torch_files.save_safetensors(TENSORS, path)
    elif name == "a.pth":
        torch_files.save_torch(TENSORS, path)
    else:
        path.write_bytes(torch_bytes(TENSORS, _use_new_zipfile_serialization=False))
    assert same(torch_files.read_tensors(path), TENSORS)


def test_written_files_are_marked_for_other_libraries(tmp_path: Path) -> None:
    torch_files.save_safetensors({"a": torch.randn(4, 3).T}, tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_a_view_is_written_without_what_it_is_a_view_of(tmp_path: Path) -> None:
    torch_files.save_torch({"a": torch.zeros(1_000_000)[:3]}, tmp_path / "a.pth")
    assert (tmp_path / "a.pth").stat().st_size < 10_000


@pytest.mark.parametrize(
    "content",
    [
        {"state_dict": TENSORS, "epoch": 3},
        {"model": TENSORS, "optimizer": {"state": {}}},
        {"model_ema": TENSORS, "model": {"a.weight": torch.zeros(4, 3)}},
        {f"module.{key}": w for key, w in TENSORS.items()},
        {"model": {f"module._orig_mod.{key}": w for key, w in TENSORS.items()}},
        {"model": {f"_orig_mod.module.{key}": w for key, w in TENSORS.items()}},
    ],
)
def test_weights_inside_a_training_script_s_file(content: Any, tmp_path: Path) -> None:
    (tmp_path / "a.pth").write_bytes(torch_bytes(content))
    assert same(torch_files.read_tensors(tmp_path / "a.pth"), TENSORS)


def test_one_name_under_two_prefixes(tmp_path: Path) -> None:
    (tmp_path / "a.pth").write_bytes(torch_bytes({"module.a": torch.zeros(1), "_orig_mod.a": torch.ones(1)}))
    with pytest.raises(CheckpointError, match=r"two spellings of a name: module\.a; _orig_mod\.a"):
        torch_files.read_tensors(tmp_path / "a.pth")


class Trap:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


def test_advice_to_run_what_is_in_a_file_is_not_passed_on(tmp_path: Path) -> None:
    (tmp_path / "photo").write_bytes(b"\xff\xd8\xff\xe0")  # the head of a JPEG
    with pytest.raises(CheckpointError, match="is not a torch file of plain tensors") as caught:
        torch_files.read_tensors(tmp_path / "photo")
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_in_a_file_is_run(zipped: bool, tmp_path: Path) -> None:
    content = torch_bytes({"a": Trap(str(tmp_path / "sprung"))}, _use_new_zipfile_serialization=zipped)
    (tmp_path / "a.pth").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"it holds \S+, which would have to be executed") as caught:
        torch_files.read_tensors(tmp_path / "a.pth")
    assert "weights_only" not in str(caught.value)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "content",
    [
        {"a": TENSORS["a.bias"], "args": argparse.Namespace()},
        {"a": "text"},
        {"a": torch.zeros(3, dtype=torch.int64)},
        {"a": torch.zeros(3, 3).to_sparse()},
        {"a": torch.zeros(1).expand(1_000_000, 1_000_000)},
        {"a": torch.zeros(3, device="meta")},
        {1: torch.zeros(3)},
        {},
        [torch.zeros(3)],
        torch.zeros(3),
    ],
    ids=range(10),
)
def test_only_names_and_plain_tensors(content: Any, tmp_path: Path) -> None:
    (tmp_path / "a.pth").write_bytes(torch_bytes(content))
    with pytest.raises(CheckpointError, match=r"a\.pth"):
        torch_files.read_tensors(tmp_path / "a.pth")


def test_a_pickle_and_a_script_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pth").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(CheckpointError):
        torch_files.read_tensors(tmp_path / "a.pth")
    with zipfile.ZipFile(tmp_path / "b.pth", "w") as archive:
        archive.writestr("b/constants.pkl", b"")
    with pytest.raises(CheckpointError):
        torch_files.read_tensors(tmp_path / "b.pth")


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_files.save_torch(TENSORS, tmp_path / "a.pth")
    torch_files.save_safetensors(TENSORS, tmp_path / "a.safetensors")
    monkeypatch.setattr(torch_files, "MAX_BYTES", 10)
    for name in ("a.pth", "a.safetensors"):
        with pytest.raises(CheckpointError, match="more than"):
            torch_files.read_tensors(tmp_path / name)


@pytest.mark.parametrize("writer", [torch_files.save_safetensors, torch_files.save_torch])
def test_a_truncated_file(writer: Any, tmp_path: Path) -> None:
    writer(TENSORS, tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    for length in (0, 5, 9, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="cut"):
            torch_files.read_tensors(tmp_path / "cut")


WHOLE = {"zip": torch_bytes(TENSORS), "old": torch_bytes(TENSORS, _use_new_zipfile_serialization=False)}


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(kind="zip", where=0.98046875, byte=1)  # even asking whether it is a zip fails
@given(
    kind=st.sampled_from(["zip", "old"]), where=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255)
)
@pytest.mark.filterwarnings("ignore")
def test_damage_is_an_error_or_harmless(kind: str, where: float, byte: int, tmp_path: Path) -> None:
    content = bytearray(WHOLE[kind])
    content[int(where * len(content))] = byte
    (tmp_path / "a.pth").write_bytes(content)
    try:
        tensors = torch_files.read_tensors(tmp_path / "a.pth")
    except CheckpointError:
        return
    if kind == "zip":  # which has checksums
        assert same(tensors, TENSORS)
    assert all(isinstance(w, Tensor) and w.numel() <= 12 for w in tensors.values())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=st.sampled_from([b"", b"PK\x03\x04", b"\x80\x02", b"\x02\0\0\0\0\0\0\0{"]),
    rest=st.binary(max_size=80),
)
def test_any_bytes_are_refused_in_words(start: bytes, rest: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(start + rest)
    with pytest.raises(CheckpointError, match=r"a\.bin"):
        torch_files.read_tensors(tmp_path / "a.bin")


def test_a_folder_and_its_configs(tmp_path: Path) -> None:
    torch_files.save_torch({"old": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    torch_files.save_safetensors({"new": torch.ones(1, dtype=torch.float16)}, tmp_path / "model.safetensors")
    save_json({"a": 1}, tmp_path / "config.json")
    found = torch_files.find_weights(tmp_path)
    assert list(found.tensors) == ["new"]
    assert found.configs == {"config.json": {"a": 1}}
    assert found.origin == {"file": "model.safetensors", "dtype": "float16"}
    beside = torch_files.find_weights(tmp_path / "pytorch_model.bin")
    assert list(beside.tensors) == ["old"]
    assert beside.configs == {"config.json": {"a": 1}}


def test_a_folder_with_one_file_of_another_name(tmp_path: Path) -> None:
    torch_files.save_torch(TENSORS, tmp_path / "best.pth")
    assert same(torch_files.find_weights(tmp_path).tensors, TENSORS)
    torch_files.save_torch(TENSORS, tmp_path / "last.pth")
    with pytest.raises(CheckpointError, match=r"best\.pth, last\.pth: name one"):
        torch_files.find_weights(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="none cannot be read: No such file"):
        torch_files.find_weights(tmp_path / "none")
    with pytest.raises(CheckpointError, match="holds neither"):
        torch_files.find_weights(tmp_path)


def shards(folder: Path, places: Any) -> None:
    for key, w in TENSORS.items():
        save_file({key: w}, folder / f"{key}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_shards(tmp_path: Path) -> None:
    shards(tmp_path, {key: f"{key}.safetensors" for key in TENSORS})
    assert same(torch_files.find_weights(tmp_path).tensors, TENSORS)


@pytest.mark.parametrize(
    ("places", "problem"),
    [
        ({"a.weight": "../outside.safetensors"}, "not a file beside it"),
        ({"a.weight": "/etc/passwd"}, "not a file beside it"),
        (
            {"a.weight": "a.weight.safetensors", "b": "a.bias.safetensors"},
            "does not hold what it lists: a.bias; b",
        ),
        ({"a.weight": "a.bias.safetensors", "a.bias": "a.weight.safetensors"}, "does not hold what it lists"),
        ({"a.weight": "missing.safetensors"}, "cannot be read"),
        (None, "no weight_map"),
        ({"a.weight": 3}, "no weight_map"),
    ],
)
def test_an_index_points_only_beside_itself(places: Any, problem: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    save_file(TENSORS, tmp_path / "outside.safetensors")
    shards(folder, places)
    with pytest.raises(CheckpointError, match=problem):
        torch_files.find_weights(folder)


def test_a_folder_with_other_things_is_not_replaced(tmp_path: Path) -> None:
    torch_files.check_own_folder(tmp_path, ("a",), "timm")
    torch_files.check_own_folder(tmp_path / "new", ("a",), "timm")
    (tmp_path / "a").touch()
    torch_files.check_own_folder(tmp_path, ("a",), "timm")
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(CheckpointError, match=r"also holds thesis\.tex"):
        torch_files.check_own_folder(tmp_path, ("a",), "timm")
    with pytest.raises(CheckpointError, match="is a file"):
        torch_files.check_own_folder(tmp_path / "a", ("a",), "timm")


@pytest.mark.parametrize("read", [torch_files.read_safetensors, torch_files.read_tensors])
def test_a_pipe_is_not_waited_for(read: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*not a regular file"):
        read(tmp_path / "model.safetensors")


def test_numbers_of_four_bits(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(1))
    with pytest.raises(CheckpointError, match="plain floating-point tensors: a"):
        torch_files.read_safetensors(tmp_path / "a.safetensors")
