"""timm's own files read by us, ours read by timm, and its whole pipeline from a JPEG to probabilities."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.parity.comparing import (
    RESNET_TOLERANCE,
    TOLERANCE,
    agree,
    as_rgb,
    epsilons,
    inputs,
    probabilities,
    swap,
)
from tests.peers import torchvision_or_skip
from tests.randomise import randomise
from vitrail.checkpoints.formats import create, load, save
from vitrail.checkpoints.timm_writing import BITS, PLAIN, STEMS

torchvision_or_skip()
timm = pytest.importorskip("timm")

CLASSES = 7
HALF = {"channels": [128, 256, 512, 1024], "stem_chs": 32}
TINY = {"depth": 2, "img_size": 48}
# name: timm's function, what is passed to it
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "B/16": ("vit_base_patch16_224", {"depth": 2, "img_size": 64}),
    "B/32": ("vit_base_patch32_224", {"depth": 2, "img_size": 96}),
    "L/16": ("vit_large_patch16_224", {"depth": 2, "img_size": 48}),
    "H/14": ("vit_huge_patch14_224", {"depth": 2, "img_size": 42}),
    "not square": ("vit_small_patch16_224", {"depth": 2, "img_size": [48, 80]}),
    "one channel": ("vit_tiny_patch16_224", {**TINY, "in_chans": 1}),
    "four channels": ("vit_tiny_patch16_224", {**TINY, "in_chans": 4}),
    "tanh": ("vit_tiny_patch16_224", {**TINY, "act_layer": "gelu_tanh"}),
    "another MLP": ("vit_small_patch16_224", {**TINY, "mlp_ratio": 2.5, "num_heads": 4}),
    "no qkv bias": ("vit_tiny_patch16_224", {**TINY, "qkv_bias": False}),
    "no positions": ("vit_tiny_patch16_224", {**TINY, "pos_embed": "none"}),
    "no class position": ("flexivit_small", {"depth": 2, "img_size": 64}),
    "mean, norm after": ("vit_tiny_patch16_224", {**TINY, "global_pool": "avg"}),
    "mean, norm before": ("vit_tiny_patch16_224", {**TINY, "global_pool": "avg", "fc_norm": False}),
    "token, norm after": ("vit_tiny_patch16_224", {**TINY, "fc_norm": True}),
    "mean, 16 heads": ("vit_base_patch16_gap_224", {"depth": 1, "img_size": 48}),
    "attention pooling": ("vit_base_patch16_siglip_224", {"depth": 1, "img_size": 48}),
    "attention pooling, tanh": ("vit_base_patch32_siglip_256", {"depth": 1, "img_size": 64}),
    "R+Ti/16": ("vit_tiny_r_s16_p8_224", {"depth": 2, "img_size": 64}),
    "R26+S/32": ("vit_small_r26_s32_224", {"depth": 1, "img_size": 96}),
    "R50+B/16": ("vit_base_r50_s16_224", {"depth": 1, "img_size": 64}),
    "BiT": ("resnetv2_50x1_bit", {}),
    "BiT, half as wide": ("resnetv2_50x1_bit", HALF),
}


def made(function: str, arguments: dict[str, Any], **more: Any) -> nn.Module:
    return randomise(timm.create_model(function, num_classes=CLASSES, **arguments, **more)).eval()


def saved(model: nn.Module, arguments: dict[str, Any], folder: Path) -> Path:
    timm.models.save_for_hf(model, folder, model_args=arguments or None, safe_serialization=True)
    return folder


def theirs_of(folder: Path) -> nn.Module:
    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


@pytest.mark.parametrize("case", CASES)
def test_their_file_gives_their_logits_and_goes_back(case: str, tmp_path: Path) -> None:
    function, arguments = CASES[case]
    theirs = made(function, arguments)
    ours = load(saved(theirs, arguments, tmp_path / "theirs"))
    x = inputs(ours.config.image_size if "img_size" in arguments else (64, 96), ours.config.channels)
    tolerance = RESNET_TOLERANCE if epsilons(theirs, nn.GroupNorm) else TOLERANCE
    with torch.no_grad():
        wanted = theirs(x)
        assert agree(ours(x), wanted, tolerance)
    save(ours, tmp_path / "back", to="timm")
    with torch.no_grad():
        assert agree(theirs_of(tmp_path / "back")(x), wanted, tolerance)
    for kind in (nn.LayerNorm, nn.GroupNorm, nn.Conv2d):  # too small to be seen in every output
        assert epsilons(ours, kind) == epsilons(theirs, kind)


SWAPS = {
    "norms of a block": ("B/16", "blocks.0.norm1.weight", "blocks.0.norm2.weight"),
    "biases of two blocks": ("B/16", "blocks.0.attn.qkv.bias", "blocks.1.attn.qkv.bias"),
    "last norms of two units": (
        "R26+S/32",
        "patch_embed.backbone.stages.0.blocks.0.norm3.bias",
        "patch_embed.backbone.stages.0.blocks.1.norm3.bias",
    ),
    "norms of a BiT": (
        "BiT, half as wide",
        "stages.0.blocks.1.norm2.weight",
        "stages.0.blocks.1.norm3.weight",
    ),
}


@pytest.mark.parametrize("case", SWAPS)
def test_a_swap_of_two_tensors_is_seen(case: str, tmp_path: Path) -> None:
    name, one, other = SWAPS[case]
    function, arguments = CASES[name]
    theirs = made(function, arguments)
    saved(theirs, arguments, tmp_path)
    swap(tmp_path / "model.safetensors", one, other)
    ours = load(tmp_path)
    x = inputs(ours.config.image_size)
    with torch.no_grad():
        assert not agree(ours(x), theirs(x))


def test_a_bare_state_dict_of_a_known_variant(tmp_path: Path) -> None:
    theirs = made("vit_tiny_patch16_224", {"img_size": 32})
    torch.save({"state_dict": theirs.state_dict(), "epoch": 3}, tmp_path / "checkpoint.pth.tar")
    ours = load(tmp_path / "checkpoint.pth.tar")
    x = inputs((32, 32))
    with torch.no_grad():
        assert agree(ours(x), theirs(x))
    assert ours.provenance["heads"] == "the known variant Ti"


# What timm has published: crop_pct 0.9 and 1.0, squash, other methods and means.
PIPELINES: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": ("vit_tiny_patch16_224", {}),
    "384": ("vit_tiny_patch16_224", {"input_size": (3, 384, 384), "crop_pct": 1.0}),
    "DeiT": (
        "vit_tiny_patch16_224",
        {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "crop_pct": 0.875},
    ),
    "squash": ("vit_tiny_patch16_224", {"crop_mode": "squash", "interpolation": "lanczos", "crop_pct": 0.95}),
    "hybrid": ("vit_tiny_r_s16_p8_224", {}),
    "BiT": ("resnetv2_50x1_bit", {}),
    "EVA-02": ("eva02_tiny_patch14_224", {}),
    "DINOv3": ("vit_small_patch16_dinov3", {}),
    "CLIP": ("vit_medium_patch32_clip_224", {}),
}


@pytest.mark.parametrize("case", PIPELINES)
def test_from_a_jpeg_to_probabilities(case: str, photos: list[bytes], tmp_path: Path) -> None:
    function, settings = PIPELINES[case]
    arguments = HALF if "resnetv2" in function else {"depth": 2}
    theirs = made(function, arguments, pretrained_cfg_overlay=settings)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(theirs))
    ours = load(saved(theirs, arguments, tmp_path / "theirs"))
    save(ours, tmp_path / "back", to="timm")
    back = theirs_of(tmp_path / "back")
    again = timm.data.create_transform(**timm.data.resolve_model_data_config(back))
    for photo in photos[:2]:
        pixels, p = probabilities(ours, photo)
        image = as_rgb(photo)
        with torch.no_grad():
            wanted = theirs(transform(image)[None]).softmax(dim=1)
        torch.testing.assert_close(pixels, transform(image), rtol=0, atol=1e-6)
        torch.testing.assert_close(pixels, again(image), rtol=0, atol=1e-6)
        assert float((p - wanted).abs().max()) < 1e-3


def test_class_names_survive(tmp_path: Path) -> None:
    arguments = {"depth": 1, "img_size": 32}
    names = [f"name {i}" for i in range(CLASSES)]
    theirs = made("vit_tiny_patch16_224", arguments)
    timm.models.save_for_hf(
        theirs, tmp_path / "theirs", {"label_names": names}, model_args=arguments, safe_serialization=True
    )
    ours = load(tmp_path / "theirs")
    assert ours.class_names == names
    save(ours, tmp_path / "back", to="timm")
    assert theirs_of(tmp_path / "back").pretrained_cfg["label_names"] == names


def test_the_functions_that_are_named_exist() -> None:
    for name in (*PLAIN.values(), *STEMS.values(), *(name for name, _ in BITS.values())):
        assert timm.is_model(name), name


def test_a_bit_of_another_width_is_written_as_other_channels(tmp_path: Path) -> None:
    ours = create("R50x1", width_factor=0.5, classes=CLASSES, image_size=64, standardisation_eps=1e-8)
    ours = randomise(ours).eval()
    save(ours, tmp_path / "timm", to="timm")
    x = inputs((64, 64))
    with torch.no_grad():
        assert agree(theirs_of(tmp_path / "timm")(x), ours(x), RESNET_TOLERANCE)


@pytest.mark.parametrize("positions", ["2d", "sincos"])
def test_other_positions_are_written_as_a_table(positions: str, tmp_path: Path) -> None:
    ours = create("Ti/16", depth=1, classes=CLASSES, image_size=(32, 48), positions=positions)
    ours = randomise(ours).eval()
    save(ours, tmp_path / "timm", to="timm")
    x = inputs((32, 48))
    with torch.no_grad():
        assert agree(theirs_of(tmp_path / "timm")(x), ours(x))


def test_a_class_token_beside_attention_pooling(tmp_path: Path) -> None:
    ours = create("Ti/16", depth=1, classes=CLASSES, image_size=32, pool="attention", class_token=True)
    ours = randomise(ours).eval()
    save(ours, tmp_path / "timm", to="timm")
    x = inputs((32, 32))
    with torch.no_grad():
        wanted = ours(x)
        assert agree(theirs_of(tmp_path / "timm")(x), wanted)
        assert agree(load(tmp_path / "timm")(x), wanted)


def test_another_epsilon_is_set_as_the_note_says(tmp_path: Path) -> None:
    ours = randomise(create("Ti/16", depth=2, classes=CLASSES, image_size=32, norm_eps=1e-3)).eval()
    save(ours, tmp_path / "timm", to="timm")
    norm_layer = functools.partial(nn.LayerNorm, eps=1e-3)
    theirs = timm.create_model(
        f"local-dir:{tmp_path / 'timm'}", pretrained=True, norm_layer=norm_layer
    ).eval()
    x = inputs((32, 32))
    with torch.no_grad():
        assert agree(theirs(x), ours(x))


def original_names(tensors: dict[str, torch.Tensor], function: str) -> dict[str, torch.Tensor]:
    """As DINOv2's and DINOv3's own files have them, which timm reads too."""
    third = "dinov3" in function
    new = {"mask_token": torch.zeros(1, tensors["cls_token"].shape[-1])}
    for name, w in tensors.items():
        name = name.replace("reg_token", "storage_tokens" if third else "register_tokens")
        name = name.replace("gamma_1", "ls1.gamma").replace("gamma_2", "ls2.gamma")
        if "fc1_g" in name or "fc1_x" in name:
            name = name.replace("fc1_g", "w1").replace("fc1_x", "w2")
        elif function == "vit_giant_patch14_dinov2":
            name = name.replace("mlp.fc1", "mlp.w12")
        if ("dinov3" in function and "huge_plus" in function) or function == "vit_giant_patch14_dinov2":
            name = name.replace("mlp.fc2", "mlp.w3")
        new[name] = w
    if third:
        D, d = tensors["cls_token"].shape[-1], 16
        new["rope_embed.periods"] = 100.0 ** (torch.arange(d // 4) / (d // 4))
        for i in range(2):
            new[f"blocks.{i}.attn.qkv.bias_mask"] = torch.cat([torch.ones(D), torch.zeros(D), torch.ones(D)])
            if f"blocks.{i}.attn.qkv.bias" not in new:
                new[f"blocks.{i}.attn.qkv.bias"] = torch.zeros(3 * D)
    return new


ORIGINALS = [
    "vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "vit_giant_patch14_dinov2",
    "vit_small_patch16_dinov3", "vit_huge_plus_patch16_dinov3",
]  # fmt: skip


@pytest.mark.parametrize("function", ORIGINALS)
def test_the_own_files_of_dinov2_and_dinov3(function: str, tmp_path: Path) -> None:
    patch = 14 if "dinov2" in function else 16
    heads = {"giant": 24, "huge": 20}.get(function.split("_")[1], 6)
    arguments = {"depth": 2, "embed_dim": 16 * heads, "img_size": 4 * patch, "num_classes": 0}
    arguments["global_pool"] = "token"
    theirs = randomise(timm.create_model(function, **arguments)).eval()
    weights = {name: w.clone() for name, w in theirs.state_dict().items()}
    original = original_names(weights, function)
    if "reg4_dinov2" in function:
        row = torch.randn(1, 1, 16 * heads)
        original["pos_embed"] = torch.cat([row, original["pos_embed"]], dim=1)
        with torch.no_grad():
            theirs.cls_token += row
    torch.save(original, tmp_path / "original.pth")
    ours = load(tmp_path / "original.pth", heads=heads, image_size=4 * patch)
    x = inputs((4 * patch, 4 * patch))
    with torch.no_grad():
        assert agree(ours(x), theirs(x))
