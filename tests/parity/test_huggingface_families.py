"""Every kind of transformers' Vision Transformers that is read: theirs by us, ours by from_pretrained."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.parity.comparing import agree, as_rgb, inputs, probabilities, swap
from tests.peers import torchvision_or_skip
from tests.randomise import randomise
from vitrail.checkpoints.formats import create, load, save
from vitrail.errors import CheckpointError

torchvision_or_skip()
transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

CLASSES = 7
SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 56, "image_size": 32,
    "patch_size": 8, "num_labels": CLASSES,
}  # fmt: skip
# class: three configs that differ from its defaults
CASES: dict[str, list[dict[str, Any]]] = {
    "DeiTForImageClassification": [{}, {"image_size": (16, 32)}, {"hidden_act": "gelu_new", "qkv_bias": False}],
    "DeiTForImageClassificationWithTeacher": [{}, {"patch_size": 16}, {"layer_norm_eps": 1e-3}],
    "DeiTModel": [{}, {"num_channels": 1}, {"num_attention_heads": 4}],
    "Dinov2ForImageClassification": [{}, {"use_swiglu_ffn": True}, {"mlp_ratio": 2, "qkv_bias": False}],
    "Dinov2Model": [{}, {"use_swiglu_ffn": True, "mlp_ratio": 3}, {"patch_size": 16}],
    "Dinov2WithRegistersForImageClassification": [{}, {"num_register_tokens": 1}, {"use_swiglu_ffn": True}],
    "Dinov2WithRegistersModel": [{}, {"num_register_tokens": 7}, {"layer_norm_eps": 1e-3}],
    "DINOv3ViTModel": [
        {}, {"num_register_tokens": 4, "key_bias": True, "image_size": (16, 32)},
        {"use_gated_mlp": True, "hidden_act": "silu", "rope_theta": 50.0, "mlp_bias": False, "proj_bias": False},
    ],
    "SiglipVisionModel": [{}, {"hidden_act": "gelu"}, {"patch_size": 16, "layer_norm_eps": 1e-3}],
    "SiglipForImageClassification": [{}, {"hidden_act": "gelu"}, {"num_attention_heads": 4}],
    "Siglip2VisionModel": [{"num_patches": 16}, {"num_patches": 9}, {"num_patches": 4, "hidden_act": "gelu"}],
    "CLIPVisionModel": [{}, {"hidden_act": "gelu"}, {"num_channels": 1, "layer_norm_eps": 1e-3}],
    "CLIPVisionModelWithProjection": [{}, {"projection_dim": 24}, {"patch_size": 16}],
    "ViTMAEModel": [{}, {"layer_norm_eps": 1e-3}, {"num_attention_heads": 4}],
    "ViTMSNModel": [{}, {"layer_norm_eps": 1e-3}, {"qkv_bias": False}],
    "ViTMSNForImageClassification": [{}, {"patch_size": 16}, {"hidden_act": "gelu_new"}],
    "BeitForImageClassification": [
        {"use_relative_position_bias": True}, {"use_shared_relative_position_bias": True, "use_mean_pooling": False},
        {"use_absolute_position_embeddings": True, "layer_scale_init_value": 0.0},
    ],
    "BeitModel": [{"use_relative_position_bias": True}, {}, {"use_mean_pooling": False, "patch_size": 16}],
    "IJepaForImageClassification": [{}, {"image_size": (16, 32)}, {"qkv_bias": False}],
    "IJepaModel": [{}, {"hidden_act": "gelu_new"}, {"num_channels": 1}],
}  # fmt: skip
EACH = [(name, i) for name, configs in CASES.items() for i in range(len(configs))]


def made(name: str, fields: dict[str, Any]) -> nn.Module:
    kind = getattr(transformers, name)
    config_class = kind.config_class
    if "ForImage" in name and "Siglip" in name:  # which holds a config for images and one for texts
        sizes = {key: value for key, value in SIZES.items() if key != "num_labels"} | fields
        text = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        config = config_class(vision_config=sizes, text_config=text | {"vocab_size": 20}, num_labels=CLASSES)
    else:
        more = {"mask_ratio": 0.0} if "MAE" in name else {}
        more |= {"drop_path_rate": 0.0} if "Beit" in name else {}
        config = config_class(**SIZES | more | fields)
    return randomise(kind(config)).eval()


def output(model: nn.Module, x: Tensor) -> Tensor:
    """The logits; or what our model gives without a classifier."""
    name = type(model).__name__
    with torch.no_grad():
        if "Siglip2" in name:
            P = getattr(model.config, "vision_config", model.config).patch_size
            rows, columns = x.shape[2] // P, x.shape[3] // P
            flat = x.unflatten(3, (columns, P)).unflatten(2, (rows, P)).permute(0, 2, 4, 3, 5, 1)
            flat = flat.reshape(len(x), rows * columns, -1)
            shapes = torch.tensor([[rows, columns]] * len(x))
            out = model(flat, torch.ones(flat.shape[:2], dtype=torch.long), shapes)
            return out.logits if "logits" in out else out.pooler_output
        out = model(x)
    if "logits" in out:
        return out.logits
    if "image_embeds" in out:
        return out.image_embeds
    if "IJepa" in name:
        return out.last_hidden_state.mean(dim=1)
    if any(word in name for word in ("MAE", "MSN")):
        return out.last_hidden_state[:, 0]
    return out.pooler_output


def theirs_of(folder: Path, kind: Any) -> nn.Module:
    """Loaded with nothing missing and nothing left over."""
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


@pytest.mark.parametrize(("name", "i"), EACH)
def test_their_folder_gives_their_outputs_and_goes_back(name: str, i: int, tmp_path: Path) -> None:
    theirs = made(name, CASES[name][i])
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    x = inputs(ours.config.image_size, ours.config.channels)
    wanted = output(theirs, x)
    with torch.no_grad():
        assert agree(ours(x), wanted)
    save(ours, tmp_path / "back", to="huggingface")
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert written["architectures"] == [name]
    back = theirs_of(tmp_path / "back", type(theirs))
    if "MAE" in name:
        back.config.mask_ratio = 0.0
    assert agree(output(back, x), wanted)
    on_disk, again = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "back"))
    left_out = {key for key in on_disk if re.search("mask_token|vision_model.head", key)}
    assert {strip(key) for key in on_disk if "vision_model.head" not in key} == {strip(key) for key in again}
    same = {strip(key): w for key, w in again.items()}
    changed = ("classifier.bias",) if "Teacher" in name else ()
    for key in set(on_disk) - left_out:
        assert key.endswith(changed or "-") or torch.equal(on_disk[key], same[strip(key)]), key


def strip(key: str) -> str:
    """ViTMSNForImageClassification's own saver prefixes some of its names only."""
    return key.removeprefix("vit.")


SWAPS = {
    "Dinov2Model": ("encoder.layer.0.layer_scale1.lambda1", "encoder.layer.0.layer_scale2.lambda1"),
    "DINOv3ViTModel": ("layer.0.attention.q_proj.bias", "layer.0.attention.v_proj.bias"),
    "CLIPVisionModel": ("pre_layrnorm.weight", "post_layernorm.weight"),
    "SiglipVisionModel": ("head.layernorm.bias", "post_layernorm.bias"),
    "BeitModel": (
        "encoder.layer.0.attention.attention.relative_position_bias.relative_position_bias_table",
        "encoder.layer.1.attention.attention.relative_position_bias.relative_position_bias_table",
    ),
    "DeiTForImageClassificationWithTeacher": ("cls_classifier.weight", "distillation_classifier.weight"),
}


@pytest.mark.parametrize("name", SWAPS)
def test_a_swap_of_two_tensors_is_seen(name: str, tmp_path: Path) -> None:
    theirs = made(name, CASES[name][0] | ({"num_register_tokens": 2} if "v3" in name else {}))
    theirs.save_pretrained(tmp_path)
    swap(tmp_path / "model.safetensors", *SWAPS[name])
    ours = load(tmp_path)
    x = inputs(ours.config.image_size)
    with torch.no_grad():
        assert not agree(ours(x), output(theirs, x))


SQUARE = {"height": 32, "width": 32}
PROCESSORS: dict[str, dict[str, Any]] = {
    "Dinov2Model": {"processor": "BitImageProcessor", "size": {"shortest_edge": 40}, "crop_size": SQUARE},
    "CLIPVisionModel": {
        "processor": "CLIPImageProcessor",
        "size": {"shortest_edge": 32},
        "crop_size": SQUARE,
    },
    "SiglipVisionModel": {"processor": "SiglipImageProcessor", "size": SQUARE},
    "DINOv3ViTModel": {"processor": "DINOv3ViTImageProcessor", "size": SQUARE},
    "BeitForImageClassification": {
        "processor": "BeitImageProcessor",
        "size": SQUARE,
        "do_center_crop": False,
    },
    "Dinov2WithRegistersModel": {
        "processor": "BitImageProcessor",
        "size": {"shortest_edge": 40},
        "crop_size": SQUARE,
    },
    "ViTMAEModel": {"processor": "ViTImageProcessor", "size": SQUARE},
    "ViTMSNModel": {"processor": "ViTImageProcessor", "size": SQUARE},
    "IJepaModel": {"processor": "ViTImageProcessor", "size": SQUARE},
    "DeiTModel": {
        "processor": "DeiTImageProcessor",
        "size": {"height": 40, "width": 40},
        "crop_size": SQUARE,
    },
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_from_a_jpeg_to_outputs(name: str, photos: list[bytes], tmp_path: Path) -> None:
    fields = dict(PROCESSORS[name])
    processor = getattr(transformers, fields.pop("processor"))(**fields)
    theirs = made(name, CASES[name][0])
    theirs.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert ours.preprocess
    save(ours, tmp_path / "back", to="huggingface")
    again = transformers.AutoImageProcessor.from_pretrained(tmp_path / "back")
    for photo in photos[:2]:
        x, back = (each(as_rgb(photo), return_tensors="pt")["pixel_values"] for each in (processor, again))
        pixels, _ = probabilities(ours, photo)
        with torch.no_grad():
            assert float((ours(pixels[None]) - output(theirs, x)).abs().max()) < 1e-3
        if "v3" in name:  # whose pixels are fractions of grey levels
            assert float((pixels - x[0]).abs().max()) < 1e-5
        assert float((back - x).abs().max()) < 1e-5


@pytest.mark.parametrize("undivided", [36, 39])
def test_patches_that_leave_a_rest(undivided: int, photos: list[bytes], tmp_path: Path) -> None:
    """As google/siglip-so400m-patch14-384: the convolution leaves out what is right and below."""
    square = {"height": undivided, "width": undivided}
    processor = transformers.SiglipImageProcessor(size=square)
    theirs = made("SiglipVisionModel", {"image_size": undivided})
    theirs.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert ours.config.image_size == (32, 32)
    assert ours.preprocess.startswith(f"resize({undivided}, pillow_bicubic)|crop(0, 0, 32, 32)|")
    for photo in photos[:2]:
        x = processor(as_rgb(photo), return_tensors="pt")["pixel_values"]
        pixels, _ = probabilities(ours, photo)
        with torch.no_grad():
            assert float((ours(pixels[None]) - output(theirs, x)).abs().max()) < 1e-3
    assert load(tmp_path, image_size=64).preprocess.startswith(f"resize({2 * undivided}, ")


def test_the_tower_of_a_model_with_texts(tmp_path: Path) -> None:
    vision = {key: value for key, value in SIZES.items() if key != "num_labels"}
    text = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 20,
    }
    config = transformers.CLIPConfig(vision_config=vision, text_config=text, projection_dim=24)
    theirs = randomise(transformers.CLIPModel(config)).eval()
    theirs.save_pretrained(tmp_path)
    ours, x = load(tmp_path), inputs((32, 32))
    with torch.no_grad():
        wanted = theirs.visual_projection(theirs.vision_model(x).pooler_output)
        assert agree(ours(x), wanted)


def test_entries_that_are_not_known_are_refused_or_ignored(tmp_path: Path) -> None:
    made("Dinov2Model", {}).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"use_cones": True}))
    with pytest.raises(CheckpointError, match=r"use_cones, which dinov2 has not.*--ignore-field"):
        load(tmp_path)
    assert load(tmp_path, ignore_fields=("use_cones",)).provenance["ignored_fields"] == ["use_cones"]


BEIT = {
    "positions": "relative_bias",
    "qkv_bias": "qv",
    "pool": "mean",
    "class_token": True,
    "norm_at": "pooled",
}


@pytest.mark.parametrize(
    ("overrides", "written"),
    [
        ({"registers": 2, "layer_scale": 0.1, "classes": 0}, "dinov2_with_registers"),
        ({"layer_scale": 0.1, "pool": "token_and_mean"}, "dinov2"),
        (
            {"rotary": "unit", "positions": "none", "registers": 2, "layer_scale": 0.1, "classes": 0},
            "dinov3_vit",
        ),
        ({"pool": "attention", "classes": 0}, "siglip_vision_model"),
        ({"pool": "mean"}, "siglip"),
        ({"pre_norm": True, "embedding_bias": False}, "clip_vision_model"),
        (
            {
                "positions": "relative_bias",
                "qkv_bias": "qv",
                "pool": "mean",
                "class_token": True,
                "norm_at": "pooled",
            },
            "beit",
        ),
    ],
)
def test_our_own_models_are_written_as_the_kind_that_has_their_parts(
    overrides: dict[str, Any], written: str, tmp_path: Path
) -> None:
    ours = create(
        "mu/8", **{"depth": 2, "classes": CLASSES, "image_size": 32, "activation": "gelu"} | overrides
    )
    randomise(ours).eval()
    if ours.config.pre_norm:
        torch.nn.init.zeros_(ours.head.classifier.bias)  # CLIP has none
    save(ours, tmp_path / "h", to="huggingface")
    card = json.loads((tmp_path / "h" / "config.json").read_text())
    assert card["model_type"] == written
    x = inputs((32, 32))
    with torch.no_grad():
        wanted = ours(x)
        assert agree(load(tmp_path / "h")(x), wanted)
    theirs = theirs_of(tmp_path / "h", getattr(transformers, card["architectures"][0]))
    assert agree(output(theirs, x), wanted)
