"""timm's format without timm: round trips, config files, refusals. (With timm itself: tests/parity.)"""

from __future__ import annotations

import dataclasses
import json
import logging
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.randomise import randomise
from vitrail.checkpoints import formats, timm, torch_files
from vitrail.checkpoints.architecture import Hints
from vitrail.checkpoints.checkpoint import from_model
from vitrail.checkpoints.formats import create
from vitrail.checkpoints.timm import crop_settings
from vitrail.checkpoints.timm_writing import mlp_ratio
from vitrail.checkpoints.transforms import Transform
from vitrail.data.preprocess import parse
from vitrail.errors import CheckpointError
from vitrail.models.vit import ViTConfig

TINY = {
    "width": 32,
    "depth": 2,
    "mlp_dim": 48,
    "heads": 4,
    "image_size": 32,
    "classes": 5,
    "activation": "gelu",
}
AS_TIMM = {"norm_eps": 1e-5, "standardisation": "sqrt_var", "standardisation_eps": 1e-8}
STEM = {"units": (1, 2), "width_factor": 0.5, **AS_TIMM}
MODELS = {
    "token": ("B/16", TINY),
    "tanh": ("B/16", TINY | {"activation": "gelu_tanh"}),
    "not square": ("B/16", TINY | {"image_size": (32, 48)}),
    "two channels": ("B/16", TINY | {"channels": 2}),
    "no classifier": ("B/16", TINY | {"classes": 0}),
    "mean": ("B/16", TINY | {"pool": "mean"}),
    "mean, class token": ("B/16", TINY | {"pool": "mean", "class_token": True}),
    "mean, norm after": ("B/16", TINY | {"pool": "mean", "norm_at": "pooled"}),
    "attention": ("B/16", TINY | {"pool": "attention"}),
    "attention, class token": ("B/16", TINY | {"pool": "attention", "class_token": True}),
    "attention, norm after": ("B/16", TINY | {"pool": "attention", "norm_at": "pooled"}),
    "no positions": ("B/16", TINY | {"positions": "none", "image_size": 48}),
    "dropout": ("B/16", TINY | {"dropout": 0.1, "attention_dropout": 0.2, "drop_path": 0.3}),
    "hybrid": ("R50+B/16", TINY | {"image_size": 64, "stem": STEM}),
    "root alone": ("R+Ti/16", TINY | {"image_size": 64, "stem": STEM | {"units": ()}}),
    "BiT": ("R50x1", {"units": (1, 2), "width_factor": 0.5, "standardisation_eps": 1e-8, "image_size": 64}),
}


def checkpoint(name, **overrides):
    base, fields = MODELS[name]
    return from_model(randomise(create(base, **(fields | overrides))))


def written(name, tmp_path, **overrides):
    given = checkpoint(name, **overrides)
    timm.write(given, tmp_path / name)
    return given, tmp_path / name


def read(path, image_size=None, **asked):
    return formats.read(path, Hints(**asked), image_size=image_size)


def edit(folder, **entries):
    """Change config.json; a value of None takes the entry out."""
    path = folder / "config.json"
    card = json.loads(path.read_text()) | entries
    path.write_text(json.dumps({key: value for key, value in card.items() if value is not None}))


def edit_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_is_read_again(name, tmp_path):
    given, folder = written(name, tmp_path)
    assert timm.recognises(torch_files.find_weights(folder).tensors)
    again = read(folder)
    assert again.config == given.config
    assert again.weights.keys() == given.weights.keys()
    assert all(torch.equal(again.weights[key], w) for key, w in given.weights.items())


def test_where_it_came_from(tmp_path):
    _, folder = written("token", tmp_path)
    origin = read(folder).provenance
    assert origin == {
        "format": "timm",
        "file": "model.safetensors",
        "dtype": "float32",
        "architecture": "vit_base_patch16_224",
        "heads": "config file",
    }
    assert str(tmp_path) not in json.dumps(origin)


def test_half_precision_is_read_as_single(tmp_path):
    given, folder = written("token", tmp_path)
    edit_tensors(folder, lambda t: t.update({key: w.half() for key, w in t.items()}))
    again = read(folder)
    assert again.provenance["dtype"] == "float16"
    assert all(w.dtype == torch.float32 for w in again.weights.values())
    assert torch.equal(again.weights["cls"], given.weights["cls"].half().float())


def test_class_names(tmp_path):
    given = dataclasses.replace(checkpoint("token"), class_names=list("abcde"))
    timm.write(given, tmp_path / "t")
    assert read(tmp_path / "t").class_names == list("abcde")
    edit(tmp_path / "t", label_names={str(i): f"n{i}" for i in range(5)}, label_descriptions={"n3": "a bird"})
    assert read(tmp_path / "t").class_names == ["n0", "n1", "n2", "a bird", "n4"]
    edit(tmp_path / "t", label_names=["a", "b"])
    with pytest.raises(CheckpointError, match="2 names in label_names for 5 classes"):
        read(tmp_path / "t")


# --- what tensors do not tell ---------------------------------------------------------------------


def bare(name, tmp_path, **overrides):
    _, folder = written(name, tmp_path, **overrides)
    (folder / "config.json").unlink()
    return folder


def test_heads_of_a_bare_file(tmp_path):
    folder = bare("token", tmp_path)
    with pytest.raises(CheckpointError, match="pass heads="):
        read(folder)
    assert read(folder, heads=8).config.heads == 8
    _, with_config = written("tanh", tmp_path)
    with pytest.raises(CheckpointError, match="has heads=4, but heads=8 was passed"):
        read(with_config, heads=8)


def test_a_resnet_has_no_heads(tmp_path):
    _, folder = written("BiT", tmp_path)
    with pytest.raises(CheckpointError, match="has no heads, as a ResNet, but heads=4"):
        read(folder, heads=4)


def test_the_architecture_s_own_heads(tmp_path):
    _, folder = written("token", tmp_path)
    edit(folder, model_args=None)
    for architecture, heads in (
        ("vit_large_patch16_224.tag", 16),
        ("vit_base_patch16_gap_224", 16),
        ("test_vit", 2),
    ):
        edit(folder, architecture=architecture)
        assert read(folder).config.heads == heads


def test_a_bare_file_is_as_timm_has_it(tmp_path):
    folder = bare("tanh", tmp_path)
    again = read(folder, heads=4)
    assert (again.config.activation, again.config.norm_eps) == ("gelu", 1e-6)
    assert again.preprocess == (
        "resize_small(35, pillow_bicubic, down)|central_crop(32, nearest)|uint8|normalize(0.5, 0.5)"
    )
    assert again.provenance["architecture"] is None


def test_a_grid_that_is_not_square(tmp_path):
    folder = bare("not square", tmp_path)
    with pytest.raises(CheckpointError, match=r"6 patches of 16 pixels, which are not a square"):
        read(folder, heads=4)
    with pytest.raises(CheckpointError, match="pass image_size"):
        read(folder, heads=4, image_size=64)
    assert read(folder, heads=4, image_size=(32, 48)).config.image_size == (32, 48)
    assert read(folder, heads=4, image_size=(48, 32)).config.image_size == (48, 32)


def test_a_config_file_for_another_size(tmp_path):
    _, folder = written("token", tmp_path)
    settings = json.loads((folder / "config.json").read_text())["pretrained_cfg"]
    edit(folder, pretrained_cfg=settings | {"input_size": [3, 224, 224]})
    with pytest.raises(CheckpointError, match="4 patches"):
        read(folder)
    assert read(folder, image_size=32).config.image_size == (32, 32)


def test_pooling_is_inferred_or_said(tmp_path):
    assert read(bare("token", tmp_path), heads=4).config.pool == "token"
    assert read(bare("token", tmp_path), heads=4, pool="mean").config.pool == "mean"
    asked = {"heads": 4, "activation": "gelu"}  # timm's models without a class token differ in these
    assert read(bare("mean", tmp_path), **asked).config.pool == "mean"
    assert read(bare("attention", tmp_path), **asked).config.pool == "attention"
    with pytest.raises(CheckpointError, match="has pool=mean, but pool=attention was passed"):
        read(bare("mean", tmp_path), **asked, pool="attention")
    folder = bare("mean, norm after", tmp_path, class_token=True)
    assert (read(folder, heads=4).config.pool, read(folder, heads=4).config.norm_at) == ("mean", "pooled")
    with pytest.raises(CheckpointError, match="the probe attends to all tokens, or"):
        read(bare("attention, class token", tmp_path), heads=4)


def test_an_old_file_with_a_tanh_layer(tmp_path):
    """timm had `pre_logits` once."""
    folder = bare("token", tmp_path)
    w, b = torch.randn(24, 32), torch.randn(24)
    edit_tensors(
        folder,
        lambda t: t.update(
            {"pre_logits.fc.weight": w, "pre_logits.fc.bias": b, "head.weight": torch.randn(5, 24)}
        ),
    )
    again = read(folder, heads=4)
    assert again.config.pre_logits == 24
    assert torch.equal(again.weights["head.pre_logits.weight"], w)


def test_a_flat_config_of_old_files(tmp_path):
    _, folder = written("tanh", tmp_path)
    card = {"architecture": "vit_large_patch16_224", "input_size": [3, 32, 32], "mean": [0.1, 0.2, 0.3]}
    (folder / "config.json").write_text(json.dumps(card))
    assert read(folder).preprocess.endswith("normalize((0.1, 0.2, 0.3), (0.229, 0.224, 0.225))")


# --- preprocessing --------------------------------------------------------------------------------

LINES = {
    "center": "resize_small(36, pillow_bicubic, down)|central_crop(32, nearest)|uint8|normalize(0.5, 0.5)",
    "squash": "resize(36, pillow_lanczos)|central_crop(32, nearest)|uint8|normalize((0.1, 0.2, 0.3), 0.5)",
    "whole": "resize(32, pillow_bilinear)|uint8|normalize(0.5, 0.25)",
}


@pytest.mark.parametrize("case", LINES)
def test_a_line_that_timm_can_say(case, tmp_path):
    given = dataclasses.replace(checkpoint("token"), preprocess=LINES[case])
    assert timm.write(given, tmp_path / "t") == []
    again = read(tmp_path / "t")
    assert parse(again.preprocess) == parse(LINES[case])


def test_a_line_that_it_cannot(tmp_path):
    given = checkpoint("token")
    assert "antialiasing" in timm.write(given, tmp_path / "a")[0]
    given = dataclasses.replace(given, preprocess="crop(0, 0, 32, 32)|to_range(-1, 1)")
    assert "prepare images as" in timm.write(given, tmp_path / "b")[0]
    given = dataclasses.replace(
        given, preprocess="resize_small(36, pillow_bilinear)|central_crop(24)|to_range(-1, 1)"
    )
    assert "prepare images as" in timm.write(given, tmp_path / "c")[0]


def test_what_has_no_line(tmp_path, caplog):
    _, folder = written("token", tmp_path)
    settings = json.loads((folder / "config.json").read_text())["pretrained_cfg"]
    for strange, said in (({"crop_mode": "border"}, "border"), ({"interpolation": "hamming"}, "hamming")):
        edit(folder, pretrained_cfg=settings | strange)
        with caplog.at_level(logging.WARNING):
            assert read(folder).preprocess == ""
        assert said in caplog.text


@given(side=st.integers(16, 600), extra=st.integers(0, 200))
def test_crop_pct_gives_the_size_again(side, extra):
    config = ViTConfig(**(TINY | {"patch_size": 1, "image_size": side}))
    for resize in (side + extra, (side + extra, side + extra)):
        kept = crop_settings(Transform(resize, (side, side)), config)["crop_pct"]
        assert math.floor(side / kept) == side + extra


@given(width=st.integers(1, 2000), mlp_dim=st.integers(1, 20_000))
def test_mlp_ratio_gives_the_mlp_again(width, mlp_dim):
    assert int(width * mlp_ratio(width, mlp_dim)) == mlp_dim


# --- refusals and notes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.pop("blocks.1.mlp.fc2.bias"), r"missing blocks\.1\.mlp\.fc2\.bias"),
        (lambda t: t.pop("head.bias"), r"missing head\.bias"),
        (lambda t: t.update({"extra.weight": torch.zeros(1)}), r"extra extra\.weight"),
        (
            lambda t: t.update({"norm.weight": torch.zeros(3)}),
            r"norm\.weight is \[3\], which does not give \[32\]",
        ),
        (lambda t: t.update({"cls_token": torch.zeros(32)}), r"cls_token is \[32\]"),
        (
            lambda t: t.update({"blocks.0.ls1.gamma": torch.zeros(32)}),
            r"missing blocks\.0\.ls2\.gamma",
        ),
        (
            lambda t: t.update({"blocks.0.attn.lambda_q1": torch.zeros(4)}),
            "has differential attention, for which",
        ),
        (lambda t: t.pop("blocks.0.mlp.fc1.weight"), r"missing blocks\.0\.mlp\.fc1\.weight$"),
        (lambda t: t.pop("blocks.0.mlp.fc2.weight"), r"inferred without blocks\.0\.mlp\.fc2\.weight$"),
        (
            lambda t: [t.pop(k) for k in list(t) if k.startswith("blocks.0.")],
            r"its layers have gaps: .* \[1\]",
        ),
        (
            lambda t: t.update({"patch_embed.proj.weight": torch.zeros(32, 3)}),
            "architecture cannot be inferred",
        ),
        (lambda t: t.update({"pos_embed": torch.zeros(1)}), "architecture cannot be inferred"),
    ],
)
def test_tensors_that_do_not_fit(change, problem, tmp_path):
    _, folder = written("token", tmp_path)
    edit_tensors(folder, change)
    with pytest.raises(CheckpointError, match=problem) as error:
        read(folder)
    assert "model.safetensors" in str(error.value)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({"architecture": None, "model_type": "vit"}, "is not timm's: it names no architecture"),
        ({"model_args": {"block_fn": "Strange"}}, "with block_fn has no counterpart"),
        ({"model_args": {"num_heads": 4, "act_layer": "relu"}}, "'relu' has no counterpart here"),
        ({"model_args": {"num_heads": 4, "norm_layer": "batchnorm"}}, "'batchnorm' has no counterpart here"),
        ({"model_args": {"num_heads": 4, "norm_layer": "rmsnorm"}}, r"extra blocks\.0\.norm1\.bias"),
        ({"model_args": {"num_heads": 4, "attn_layer": "diff"}}, "with attn_layer has no counterpart"),
        (
            {"model_args": {"num_heads": 4, "use_rot_pos_emb": True, "rope_type": "mrope"}},
            "'mrope' is not one of",
        ),
        ({"architecture": "vit_dwee_patch16_reg1_gap_256"}, "differential attention; their vit_little"),
        ({"model_args": {"num_heads": 4, "global_pool": "max"}}, "'max' has no counterpart here"),
        ({"model_args": {"num_heads": "many"}}, "num_heads is 'many' .* expected int"),
        ({"model_args": {"num_heads": 5}}, "not divisible into 5 heads"),
        ({"pretrained_cfg": {"input_size": 3}}, "input_size is 3 .* expected"),
    ],
)
def test_config_files_that_do_not_fit(entries, problem, tmp_path):
    _, folder = written("token", tmp_path)
    edit(folder, **entries)
    with pytest.raises(CheckpointError, match=problem):
        read(folder)


@pytest.mark.parametrize(
    ("name", "overrides", "problem"),
    [
        ("token", {"pre_logits": 24}, "tanh layer before the classifier"),
        ("token", {"positions": "relative"}, "no counterpart for positions='relative'"),
        ("mean", {"block": "axial"}, "no counterpart for block=axial"),
    ],
)
def test_what_has_no_counterpart_is_not_written(name, overrides, problem, tmp_path):
    with pytest.raises(CheckpointError, match=problem):
        timm.write(checkpoint(name, **overrides), tmp_path / "t")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "overrides", "said"),
    [
        ("token", {"norm_eps": 1e-12}, "eps=1e-12"),
        ("hybrid", {"stem": STEM | {"norm_eps": 1e-6}}, "norm_eps 1e-05"),
        ("hybrid", {}, r"no function for a stem of units (1, 2)"),
        ("BiT", {"standardisation_eps": 1e-10}, "standardisation_eps 1e-08"),
        ("BiT", {}, "no function for a BiT of units (1, 2)"),
    ],
)
def test_what_the_reader_must_set(name, overrides, said, tmp_path):
    given = dataclasses.replace(checkpoint(name, **overrides), preprocess="")
    assert any(said in note for note in timm.write(given, tmp_path / "t"))
    assert (tmp_path / "t" / "model.safetensors").is_file()


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match="exists, and nothing is overwritten"):
        formats.write(checkpoint("token"), tmp_path, "timm")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("name", ["token", "no positions"])
def test_patches_of_no_pixels(name, tmp_path):
    folder = written(name, tmp_path)[1]
    edit_tensors(folder, lambda t: t.update({"patch_embed.proj.weight": torch.zeros(32, 3, 0, 0)}))
    with pytest.raises(CheckpointError, match="patches of 0 pixels"):
        read(folder)


@pytest.mark.parametrize("crop_pct", [1e-308, -1])
def test_a_crop_that_leaves_nothing_is_noted(crop_pct, tmp_path, caplog):
    folder = written("token", tmp_path)[1]
    card = json.loads((folder / "config.json").read_text())
    edit(folder, pretrained_cfg=card["pretrained_cfg"] | {"crop_pct": crop_pct})
    with caplog.at_level(logging.WARNING):
        assert read(folder).preprocess == ""
    assert f"crop_pct {crop_pct} is not at least 0.01" in caplog.text
