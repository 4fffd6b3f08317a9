"""The own files of CLIP, MAE and I-JEPA, with the names that they have there, and whole numbers beside weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.parity.comparing import agree, inputs
from tests.parity.test_huggingface_families import made, output
from tests.peers import torchvision_or_skip
from tests.randomise import randomise
from vitrail.checkpoints.formats import load
from vitrail.errors import CheckpointError

torchvision_or_skip()
timm = pytest.importorskip("timm")
SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
TO_CLIP = {
    r"^patch_embed\.proj\.": "conv1.",
    r"^norm_pre\.": "ln_pre.",
    r"^norm\.": "ln_post.",
    r"^blocks\.": "transformer.resblocks.",
    r"\.norm(\d)\.": r".ln_\1.",
    r"\.attn\.qkv\.": ".attn.in_proj_",
    r"\.attn\.proj\.": ".attn.out_proj.",
    r"\.mlp\.fc1\.": ".mlp.c_fc.",
    r"\.mlp\.fc2\.": ".mlp.c_proj.",
}


def small(function: str, **more: Any) -> nn.Module:
    return randomise(timm.create_model(function, **{**SIZES, "num_classes": 7, **more})).eval()


def clip_names(theirs: nn.Module) -> dict[str, Tensor]:
    t = {}
    for name, w in theirs.state_dict().items():
        for old, new in TO_CLIP.items():
            name = re.sub(old, new, name)
        t[f"visual.{name}"] = w.clone()
    t["visual.class_embedding"] = t.pop("visual.cls_token")[0, 0]
    t["visual.positional_embedding"] = t.pop("visual.pos_embed")[0]
    t["visual.proj"] = t.pop("visual.head.weight").T.contiguous()
    del t["visual.head.bias"]
    return t | {
        "transformer.resblocks.0.ln_1.weight": torch.ones(8), "logit_scale": torch.ones(()),
        "positional_embedding": torch.ones(5, 8), "text_projection": torch.ones(8, 8),
    }  # fmt: skip


@pytest.mark.parametrize(("function", "activation"), [("clip_quickgelu", "quick_gelu"), ("clip", "gelu")])
def test_the_own_file_of_clip(function: str, activation: str, tmp_path: Path) -> None:
    theirs = small(f"vit_base_patch16_{function}_224")
    nn.init.zeros_(theirs.head.bias)
    torch.save(clip_names(theirs), tmp_path / "clip.pt")
    ours = load(tmp_path / "clip.pt", heads=2, activation=activation)
    x = inputs((32, 32))
    with torch.no_grad():
        assert agree(ours(x), theirs(x))
    assert "0.48145466" in ours.preprocess
    with pytest.raises(CheckpointError, match="activation=quick_gelu"):
        load(tmp_path / "clip.pt", heads=2)
    torch.save(clip_names(theirs) | {"visual.cones": torch.ones(3)}, tmp_path / "cones.pt")
    with pytest.raises(CheckpointError, match="extra cones"):
        load(tmp_path / "cones.pt", heads=2, activation=activation)


def test_the_own_file_of_mae(tmp_path: Path) -> None:
    theirs = small("vit_base_patch16_224", num_classes=0)
    decoder = {"decoder_embed.weight": torch.ones(4, 32), "decoder_blocks.0.norm1.weight": torch.ones(4)}
    weights = theirs.state_dict() | decoder | {"mask_token": torch.ones(1, 1, 4)}
    torch.save({"model": weights, "epoch": 3}, tmp_path / "mae.pth")
    x = inputs((32, 32))
    with torch.no_grad():
        assert agree(load(tmp_path / "mae.pth", heads=2)(x), theirs(x))


def test_the_own_file_of_ijepa(tmp_path: Path) -> None:
    theirs = small("vit_base_patch16_224", num_classes=0, class_token=False, global_pool="avg", fc_norm=False)
    other = small("vit_base_patch16_224", num_classes=0, class_token=False, global_pool="avg", fc_norm=False)
    encoders = {
        name: {f"module.{key}": w for key, w in one.state_dict().items()}
        for name, one in (("encoder", randomise(other, seed=1)), ("target_encoder", theirs))
    }
    torch.save({**encoders, "opt": {}, "epoch": 3}, tmp_path / "ijepa.pth.tar")
    x = inputs((32, 32))
    with torch.no_grad():
        assert agree(load(tmp_path / "ijepa.pth.tar", heads=2, activation="gelu")(x), theirs(x))


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("CLIPVisionModel", "vision_model.embeddings.position_ids"),
        (
            "BeitModel",
            "encoder.layer.0.attention.attention.relative_position_bias.relative_position_index",
        ),
    ],
)
def test_whole_numbers_in_older_files_of_transformers(name: str, numbers: str, tmp_path: Path) -> None:
    """openai/clip-vit-base-patch32 has them."""
    theirs = made(name, {"use_relative_position_bias": True} if "Beit" in name else {})
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {numbers: torch.arange(17)[None]}, path, metadata={"format": "pt"})
    x = inputs((32, 32))
    with torch.no_grad():
        assert agree(load(tmp_path)(x), output(theirs, x))
