"""transformers' own folders read by us, ours read by from_pretrained, and its whole pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.parity.comparing import agree, as_rgb, epsilons, inputs, probabilities, swap
from tests.peers import torchvision_or_skip
from tests.randomise import randomise
from vitrail.checkpoints.formats import create, load, save
from vitrail.data import preprocess as pp
from vitrail.models.vit import VARIANTS

torchvision_or_skip()
transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

CLASSES = 7
# name: variant, patch size, image size, what else ViTConfig is given
CASES: dict[str, tuple[str, int, Any, dict[str, Any]]] = {
    "B/16": ("B", 16, 64, {}),
    "B/32": ("B", 32, 96, {}),
    "L/16": ("L", 16, 48, {}),
    "H/14": ("H", 14, 42, {}),
    "Ti/16 at 224": ("Ti", 16, 224, {}),
    "not square": ("Ti", 16, (48, 80), {}),
    "tanh": ("Ti", 16, 48, {"hidden_act": "gelu_new", "layer_norm_eps": 1e-6}),
    "no qkv bias": ("Ti", 16, 48, {"qkv_bias": False}),
    "one channel": ("Ti", 16, 48, {"num_channels": 1}),
}


def config_of(case: str, **more: Any) -> Any:
    variant, patch_size, image_size, fields = CASES[case]
    width, _, mlp_dim, heads = VARIANTS[variant]
    return transformers.ViTConfig(
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=heads,
        intermediate_size=mlp_dim,
        image_size=image_size,
        patch_size=patch_size,
        num_labels=CLASSES,
        **fields,
        **more,
    )


def made(case: str) -> nn.Module:
    return randomise(transformers.ViTForImageClassification(config_of(case))).eval()


def theirs_of(folder: Path, kind: Any = transformers.ViTForImageClassification, **more: Any) -> nn.Module:
    """Loaded with nothing missing and nothing left over."""
    model, report = kind.from_pretrained(folder, output_loading_info=True, **more)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def logits(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).logits


@pytest.mark.parametrize("case", CASES)
def test_their_folder_gives_their_logits_and_goes_back(case: str, tmp_path: Path) -> None:
    theirs = made(case)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    x = inputs(ours.config.image_size, ours.config.channels)
    wanted = logits(theirs, x)
    with torch.no_grad():
        assert agree(ours(x), wanted)
    assert epsilons(ours, nn.LayerNorm) == epsilons(theirs, nn.LayerNorm)
    save(ours, tmp_path / "back", to="huggingface")
    assert agree(logits(theirs_of(tmp_path / "back"), x), wanted)
    if CASES[case][3].get("qkv_bias", True):
        on_disk, written = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
        assert on_disk.keys() == written.keys()
        assert all(torch.equal(on_disk[key], written[key]) for key in on_disk)


def test_names_in_memory_and_torch_files_are_read_too(tmp_path: Path) -> None:
    theirs = made("B/32")
    theirs.config.save_pretrained(tmp_path)
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    assert "vit.layers.0.attention.q_proj.weight" in theirs.state_dict()  # version 5 and later
    x = inputs((96, 96))
    with torch.no_grad():
        assert agree(load(tmp_path)(x), logits(theirs, x))


def test_shards(tmp_path: Path) -> None:
    theirs = made("not square")
    theirs.save_pretrained(tmp_path, max_shard_size="1MB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    x = inputs((48, 80))
    with torch.no_grad():
        assert agree(load(tmp_path)(x), logits(theirs, x))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "vit.encoder.layer.0.attention.attention.query.bias",
            "vit.encoder.layer.0.attention.attention.key.bias",
        ),
        ("vit.encoder.layer.0.layernorm_before.weight", "vit.encoder.layer.0.layernorm_after.weight"),
    ],
)
def test_a_swap_of_two_tensors_is_seen(one: str, other: str, tmp_path: Path) -> None:
    theirs = made("tanh")
    theirs.save_pretrained(tmp_path)
    swap(tmp_path / "model.safetensors", one, other)
    x = inputs((48, 48))
    with torch.no_grad():
        assert not agree(load(tmp_path)(x), logits(theirs, x))


@pytest.mark.parametrize("pooler", [True, False])
def test_a_model_without_a_classifier(pooler: bool, tmp_path: Path) -> None:
    """Its pooler, a tanh layer on the class token, is our pre_logits."""
    kind = transformers.ViTModel
    theirs = randomise(kind(config_of("tanh", pooler_output_size=40), add_pooling_layer=pooler)).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    x = inputs((48, 48))
    with torch.no_grad():
        out = theirs(x)
        wanted = out.pooler_output if pooler else out.last_hidden_state[:, 0]
        assert agree(ours(x), wanted)
    assert ours.config.pre_logits == (40 if pooler else 0)
    save(ours, tmp_path / "back", to="huggingface")
    with torch.no_grad():
        out = theirs_of(tmp_path / "back", kind, add_pooling_layer=pooler)(x)
    assert agree(out.pooler_output if pooler else out.last_hidden_state[:, 0], wanted)


def test_a_pooler_beside_a_classifier_is_not_used(tmp_path: Path) -> None:
    theirs = made("tanh")
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors |= {"vit.pooler.dense.weight": torch.ones(192, 192), "vit.pooler.dense.bias": torch.ones(192)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    x = inputs((48, 48))
    with torch.no_grad():
        assert agree(load(tmp_path)(x), logits(theirs, x))


def test_our_own_model_with_names(tmp_path: Path) -> None:
    names = [f"class {i}" for i in range(CLASSES)]
    ours = randomise(create("Ti/16", depth=2, classes=CLASSES, image_size=48, positions="none")).eval()
    ours.class_names = names
    save(ours, tmp_path / "huggingface", to="huggingface")
    theirs = theirs_of(tmp_path / "huggingface")
    x = inputs((48, 48))
    with torch.no_grad():
        assert agree(logits(theirs, x), ours(x))
    assert list(theirs.config.id2label.values()) == names
    assert load(tmp_path / "huggingface").class_names == names


PROCESSORS: dict[str, dict[str, Any]] = {
    "published": {},
    "bicubic, other means": {
        "resample": 3,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    },
    "short side and crop": {
        "size": {"shortest_edge": 256},
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
    },
    "only rescaled": {"do_normalize": False},
    "only normalised": {"do_rescale": False, "image_mean": [127.5] * 3, "image_std": [127.5] * 3},
}


@pytest.mark.parametrize("case", PROCESSORS)
def test_from_a_jpeg_to_probabilities(case: str, photos: list[bytes], tmp_path: Path) -> None:
    processor = transformers.ViTImageProcessor(**PROCESSORS[case])
    theirs = made("Ti/16 at 224")
    theirs.save_pretrained(tmp_path / "theirs")
    processor.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    save(ours, tmp_path / "back", to="huggingface")
    again = transformers.AutoImageProcessor.from_pretrained(tmp_path / "back")
    assert isinstance(again, transformers.ViTImageProcessor)
    with_pillow = transformers.ViTImageProcessorPil.from_pretrained(tmp_path / "back")
    black, white = pp.parse(ours.preprocess).value_op(
        torch.tensor([0.0, 255.0])[:, None, None, None].repeat(1, 3, 1, 1)
    )
    for photo in photos:
        pixels, p = probabilities(ours, photo)
        wanted, back, pillow = (
            prepare(as_rgb(photo), return_tensors="pt")["pixel_values"]
            for prepare in (processor, again, with_pillow)
        )
        levels = 255 * (pixels - torch.cat([pillow, wanted])).abs() / (white - black)  # (2, 3, H, W)
        assert float(levels[0].max()) < 1e-3
        # By default torchvision resizes, and rounds otherwise than Pillow: by a grey level in some places; and
        # where bicubic overshoots at an edge it is not clipped between the two directions.
        assert float(levels[1].max()) < (1.001 if processor.resample == 2 else 16)
        assert float(levels[1].mean()) < 0.1
        assert float((back - wanted).abs().max()) < 1e-5
        assert float((p - logits(theirs, wanted).softmax(dim=1)).abs().max()) < 1e-3


def test_a_processor_for_another_size_is_scaled(tmp_path: Path) -> None:
    theirs = made("tanh")
    theirs.save_pretrained(tmp_path)
    transformers.ViTImageProcessor().save_pretrained(tmp_path)
    assert json.loads((tmp_path / "preprocessor_config.json").read_text())["size"]["height"] == 224
    assert load(tmp_path).preprocess.startswith("resize(48,")
