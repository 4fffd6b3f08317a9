from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from vitrail.checkpoints.huggingface import OTHER_MODELS
from vitrail.errors import CheckpointError


def folder(path: Path, card: Any, names: list[str]) -> Path:
    torch.save({name: torch.zeros(3) for name in names}, path / "pytorch_model.bin")
    (path / "config.json").write_text(json.dumps(card))
    return path


@pytest.mark.parametrize("kind", OTHER_MODELS)
def test_a_kind_is_refused_by_its_name_and_with_the_reason(kind: str, tmp_path: Path) -> None:
    folder(tmp_path, {"model_type": kind}, ["a.weight"])
    with pytest.raises(CheckpointError, match=f"'{kind}' of transformers") as caught:
        vitrail.load(tmp_path)
    assert OTHER_MODELS[kind] in str(caught.value)


@pytest.mark.parametrize("names", [["x.weight"], ["vit.embeddings.patch_embeddings.projection.weight"]])
def test_an_unknown_kind_is_said_to_be_unknown(names: list[str], tmp_path: Path) -> None:
    folder(tmp_path, {"model_type": "vit_of_tomorrow"}, names)
    with pytest.raises(CheckpointError, match=r"'vit_of_tomorrow' of transformers.* not known here"):
        vitrail.load(tmp_path)


@pytest.mark.parametrize("kind", [None, 3, [], {}, True])
def test_a_kind_that_is_no_text(kind: Any, tmp_path: Path) -> None:
    folder(tmp_path, {"model_type": kind}, ["a.weight"])
    with pytest.raises(CheckpointError):
        vitrail.load(tmp_path)


def test_without_a_config_file_names_may_tell(tmp_path: Path) -> None:
    names = ["deit.embeddings.cls_token", "deit.layernorm.bias", "classifier.bias"]
    torch.save({name: torch.zeros(3) for name in names}, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=r"'deit' of transformers.* put its config.json beside"):
        vitrail.load(tmp_path / "a.pth")
    torch.save({"deit.a": torch.zeros(3), "other.b": torch.zeros(3)}, tmp_path / "b.pth")
    with pytest.raises(CheckpointError, match="timm, transformers or torchvision"):
        vitrail.load(tmp_path / "b.pth")
