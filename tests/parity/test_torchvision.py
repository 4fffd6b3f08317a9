"""torchvision's own files read by us, ours read by torchvision, and its whole pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.parity.comparing import agree, as_rgb, inputs, probabilities
from tests.peers import torchvision_or_skip
from tests.randomise import randomise
from vitrail.checkpoints.formats import create, load, save
from vitrail.checkpoints.torchvision import preprocessing
from vitrail.data.decode import decode
from vitrail.data.preprocess import parse
from vitrail.models.names import make_config
from vitrail.models.vit import VARIANTS

torchvision = torchvision_or_skip()

CLASSES = 7
# name: variant, patch size, depth, image size, what else is passed
CASES: dict[str, tuple[str, int, int, int, dict[str, Any]]] = {
    "B/16": ("B", 16, 2, 64, {}),
    "B/32": ("B", 32, 2, 96, {}),
    "L/16": ("L", 16, 2, 48, {}),
    "H/14": ("H", 14, 2, 42, {}),
    "pre_logits": ("Ti", 16, 2, 48, {"representation_size": 50}),
}


def made(case: str) -> nn.Module:
    variant, patch_size, depth, image_size, more = CASES[case]
    width, _, mlp_dim, heads = VARIANTS[variant]
    model = torchvision.models.VisionTransformer(
        image_size, patch_size, depth, heads, width, mlp_dim, num_classes=CLASSES, **more
    )
    return randomise(model).eval()


@pytest.mark.parametrize(("case", "suffix"), [*((case, ".pth") for case in CASES), ("B/16", ".safetensors")])
def test_their_file_gives_their_logits_and_goes_back(case: str, suffix: str, tmp_path: Path) -> None:
    theirs = made(case)
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    ours = load(tmp_path / "theirs.pth", heads=VARIANTS[CASES[case][0]][3])
    x = inputs(ours.config.image_size)
    with torch.no_grad():
        wanted = theirs(x)
        assert agree(ours(x), wanted)
    back = tmp_path / f"back{suffix}"
    save(ours, back, to="torchvision")
    tensors = load_file(back) if suffix == ".safetensors" else torch.load(back, weights_only=True)
    randomise(theirs, seed=1).load_state_dict(tensors, strict=True)
    with torch.no_grad():
        assert agree(theirs(x), wanted)


def test_a_known_function_needs_no_heads(tmp_path: Path) -> None:
    """All twelve layers, so that the sizes are those of a variant."""
    theirs = randomise(torchvision.models.vit_b_32(image_size=64, num_classes=CLASSES)).eval()
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    ours = load(tmp_path / "theirs.pth")
    x = inputs((64, 64))
    with torch.no_grad():
        assert agree(ours(x), theirs(x))
    assert ours.provenance["architecture"] == "vit_b_32"


def test_a_swap_of_two_tensors_is_seen(tmp_path: Path) -> None:
    theirs = made("B/16")
    tensors = theirs.state_dict()
    one, other = (f"encoder.layers.encoder_layer_{i}.self_attention.in_proj_bias" for i in (0, 1))
    torch.save({**tensors, one: tensors[other], other: tensors[one]}, tmp_path / "theirs.pth")
    x = inputs((64, 64))
    with torch.no_grad():
        assert not agree(load(tmp_path / "theirs.pth", heads=12)(x), theirs(x))


def test_the_notes_of_a_written_file_are_enough(tmp_path: Path) -> None:
    """tanh GELU, another epsilon, no classifier: set by hand as the notes say."""
    ours = create("Ti/16", depth=2, image_size=48, classes=0, norm_eps=1e-3)
    ours = randomise(ours).eval()
    save(ours, tmp_path / "ours.safetensors", to="torchvision")
    theirs = torchvision.models.VisionTransformer(
        48, 16, 2, 3, 192, 768, norm_layer=lambda width: nn.LayerNorm(width, eps=1e-3)
    )
    theirs.heads = nn.Identity()
    for module in theirs.modules():
        if isinstance(module, nn.GELU):
            module.approximate = "tanh"
    theirs.load_state_dict(load_file(tmp_path / "ours.safetensors"), strict=True)
    x = inputs((48, 48))
    with torch.no_grad():
        assert agree(theirs.eval()(x), ours(x))


# Published weights: their sizes.
PUBLISHED = {
    "ViT_B_16_Weights.IMAGENET1K_V1": ("B", 16, 224),
    "ViT_B_32_Weights.IMAGENET1K_V1": ("B", 32, 224),
    "ViT_L_16_Weights.IMAGENET1K_V1": ("L", 16, 224),
    "ViT_L_32_Weights.IMAGENET1K_V1": ("L", 32, 224),
    "ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1": ("B", 16, 384),
    "ViT_L_16_Weights.IMAGENET1K_SWAG_E2E_V1": ("L", 16, 512),
    "ViT_H_14_Weights.IMAGENET1K_SWAG_E2E_V1": ("H", 14, 518),
    "ViT_H_14_Weights.IMAGENET1K_SWAG_LINEAR_V1": ("H", 14, 224),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_pixels_of_published_weights(name: str, photos: list[bytes]) -> None:
    variant, patch_size, image_size = PUBLISHED[name]
    config = make_config(f"{variant}/{patch_size}", image_size=image_size)
    transform = torchvision.models.get_weight(name).transforms()
    for photo in photos:
        ours = parse(preprocessing(config))(decode(photo))
        torch.testing.assert_close(ours, transform(as_rgb(photo)), rtol=0, atol=1e-6)


def test_from_a_jpeg_to_probabilities(photos: list[bytes], tmp_path: Path) -> None:
    transform = torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1.transforms()
    theirs = torchvision.models.VisionTransformer(224, 16, 2, 12, 768, 3072, num_classes=CLASSES)
    randomise(theirs).eval()
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    ours = load(tmp_path / "theirs.pth", heads=12)
    for photo in photos:
        _, p = probabilities(ours, photo)
        with torch.no_grad():
            wanted = theirs(transform(as_rgb(photo))[None]).softmax(dim=1)
        assert float((p - wanted).abs().max()) < 1e-3
