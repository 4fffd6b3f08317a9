"""Every plain ViT of the installed timm, bare and with its config.json: read right, asked about, or refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.parity.comparing import RESNET_TOLERANCE, TOLERANCE, agree, inputs
from tests.peers import torchvision_or_skip
from tests.randomise import randomise
from vitrail.checkpoints.formats import load
from vitrail.errors import CheckpointError

torchvision_or_skip()
timm = pytest.importorskip("timm")

MODULES = ("vision_transformer", "vision_transformer_hybrid", "deit")
# Read as they are, asked about, and refused: some of each.
FEW = [
    "vit_tiny_patch16_224", "deit_small_patch16_224", "vit_base_patch16_224_miil", "flexivit_small",
    "vit_base_patch16_siglip_224", "vit_base_patch32_siglip_gap_256", "vit_base_patch16_gap_224",
    "vit_base_patch16_rpn_224", "deit_tiny_distilled_patch16_224", "vit_tiny_r_s16_p8_224", "test_vit3",
]  # fmt: skip
ALL = sorted({name for module in MODULES for name in timm.list_models(module=module)} - set(FEW))
EACH = [*FEW, *(pytest.param(name, marks=pytest.mark.long) for name in ALL)]


def made(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """With one layer, for images of 16 patches, every parameter random."""
    with torch.device("meta"):
        patch = timm.create_model(name).patch_embed.patch_size[0]
    arguments = {
        "depth": 1,
        "img_size": 128 if "hybrid" in timm.models.model_entrypoint(name).__module__ else 4 * patch,
    }
    theirs = timm.create_model(name, num_classes=7, **arguments)
    return randomise(theirs).eval(), arguments


def own(theirs: nn.Module) -> dict[str, Any]:
    """What its state dict does not say."""
    attention = getattr(theirs.blocks[0], "attn", None)  # blocks of other kinds have none of that name
    return {
        "heads": attention.num_heads if attention is not None else 1,
        "activation": "gelu_tanh" if "GELUTanh" in str(theirs.blocks) else "gelu",
    }


@pytest.mark.parametrize("name", EACH)
def test_bare_or_with_a_config_file(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs, arguments = made(name)
    torch.save(theirs.state_dict(), tmp_path / "bare.pth")
    folder = tmp_path / "folder"
    timm.models.save_for_hf(theirs, folder, model_args=arguments, safe_serialization=True)
    try:
        ours = load(folder)
    except CheckpointError as refused:
        assert "say " not in str(refused)  # nothing that is asked could make it right
        with pytest.raises(CheckpointError):
            load(tmp_path / "bare.pth", **own(theirs))
        return
    assert "does not say" not in caplog.text
    x = inputs(ours.config.image_size)
    tolerance = RESNET_TOLERANCE if "_r" in name else TOLERANCE
    with torch.no_grad():
        wanted = theirs(x)
        assert agree(ours(x), wanted, tolerance)
    with caplog.at_level(logging.WARNING):
        bare = bare_model(tmp_path / "bare.pth", theirs)
    assert "does not say" in caplog.text  # norm_eps at least
    assert "norm_eps" in bare.provenance["assumed"]
    with torch.no_grad():
        assert agree(bare(x), wanted, tolerance)


def bare_model(path: Path, theirs: nn.Module) -> Any:
    """With its heads alone, which one layer does not tell; else with what the error asks for."""
    asked = own(theirs)
    try:
        return load(path, heads=asked["heads"])
    except CheckpointError as error:
        assert "activation=" in str(error)
    return load(path, **asked)
