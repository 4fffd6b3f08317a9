"""Every plain ViT of the installed timm, bare and with its config.json: read right, asked about, or refused."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.parity.comparing import RESNET_TOLERANCE, TOLERANCE, agree, inputs
from tests.peers import torchvision_or_skip
from tests.randomise import randomise
from vitrail.checkpoints.formats import load, save
from vitrail.errors import CheckpointError

torchvision_or_skip()
timm = pytest.importorskip("timm")

MODULES = ("vision_transformer", "vision_transformer_hybrid", "deit", "eva", "beit", "naflexvit")
# Read as they are, asked about, and refused: some of each.
FEW = [
    "vit_tiny_patch16_224", "deit_small_patch16_224", "vit_base_patch16_224_miil", "flexivit_small",
    "vit_base_patch16_siglip_224", "vit_base_patch32_siglip_gap_256", "vit_base_patch16_gap_224",
    "vit_base_patch16_rpn_224", "deit_tiny_distilled_patch16_224", "vit_tiny_r_s16_p8_224", "test_vit3",
    "eva02_tiny_patch14_224", "vit_small_patch16_dinov3", "vit_small_patch16_rope_mixed_ape_224", "test_vit4",
    "beit_base_patch16_224", "naflexvit_base_patch16_siglip", "vit_dwee_patch16_reg1_gap_256",
    "vit_small_patch14_reg4_dinov2",
]  # fmt: skip
ALL = sorted({name for module in MODULES for name in timm.list_models(module=module)} - set(FEW))
EACH = [*FEW, *(pytest.param(name, marks=pytest.mark.long) for name in ALL)]


def made(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """With one narrow layer, for images of 16 patches, every parameter random."""
    with torch.device("meta"):
        whole = timm.create_model(name)
    if "hybrid" in timm.models.model_entrypoint(name).__module__:
        arguments: dict[str, Any] = {"depth": 1, "img_size": 128}
    else:
        arguments = {"depth": 1, "embed_dim": 16 * heads_of(whole)}
        if hasattr(whole, "patch_embed"):  # NaFlexVit's images have any size
            arguments["img_size"] = 4 * whole.patch_embed.patch_size[0]
        if (shared := getattr(whole.blocks[len(whole.blocks) // 2], "attn", None)) and "sapiens" in name:
            arguments["num_kv_heads"] = [shared.num_kv_heads]
    theirs = timm.create_model(name, num_classes=7, **arguments)
    return randomise(theirs).eval(), arguments


def heads_of(theirs: nn.Module) -> int:
    return next(module.num_heads for module in theirs.blocks.modules() if hasattr(module, "num_heads"))


def own(theirs: nn.Module) -> dict[str, Any]:
    """What its state dict does not say."""
    activation = "gelu_tanh" if "GELUTanh" in str(theirs.blocks) else "gelu"
    return {"heads": heads_of(theirs), "activation": "silu" if "SiLU" in str(theirs.blocks) else activation}


@pytest.mark.parametrize("name", EACH)
def test_bare_or_with_a_config_file(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A bare file is read like the folder, or refused; what is written from it is timm's own model again."""
    theirs, arguments = made(name)
    torch.save(theirs.state_dict(), tmp_path / "bare.pth")
    folder = tmp_path / "folder"
    timm.models.save_for_hf(theirs, folder, model_args=arguments, safe_serialization=True)
    if re.search(r"_(resnet\d+d|mci)_", name):  # stems of other kinds
        with pytest.raises(CheckpointError, match="num_batches_tracked"):
            load(folder)
        return
    if re.match(r"vit_d(wee|pwee|little)", name):
        for path, said in (
            (folder, "differential attention; their vit_little"),
            (tmp_path / "bare.pth", "differ"),
        ):
            with pytest.raises(CheckpointError, match=said):
                load(path)
        return
    ours = load(folder)
    assert "does not say" not in caplog.text or "naflex" in name
    x = inputs(ours.config.image_size)
    tolerance = RESNET_TOLERANCE if re.match(r"vit_[a-z]+_r\d*_s\d+", name) else TOLERANCE
    with torch.no_grad():
        wanted = theirs(x)
        assert agree(ours(x), wanted, tolerance)
    save(ours, tmp_path / "back", to="timm")
    back = timm.create_model(f"local-dir:{tmp_path / 'back'}", pretrained=True).eval()
    with torch.no_grad():
        assert agree(back(x), wanted, tolerance)
    with caplog.at_level(logging.WARNING):
        bare = bare_model(tmp_path / "bare.pth", theirs)
    if bare is None:
        return
    assert "does not say" in caplog.text  # norm_eps at least
    assert "norm_eps" in bare.provenance["assumed"]
    with torch.no_grad():
        assert agree(bare(x), wanted, tolerance)


def bare_model(path: Path, theirs: nn.Module) -> Any:
    """With its heads alone, which one layer does not tell; else with what the error asks for; None if it asks for
    the config file alone."""
    asked = own(theirs)
    try:
        return load(path, heads=asked["heads"])
    except CheckpointError as error:
        if "activation=" not in str(error):
            assert "put timm's config.json" in str(error)
            return None
    return load(path, **asked)
