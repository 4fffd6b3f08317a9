"""transformers' format without transformers: round trips, config files, refusals. (With it: tests/parity.)"""

from __future__ import annotations

import dataclasses
import json
import logging
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.randomise import randomise
from vitrail.checkpoints import formats, huggingface, torch_files
from vitrail.checkpoints.architecture import Hints
from vitrail.checkpoints.checkpoint import from_model
from vitrail.checkpoints.formats import create
from vitrail.data.preprocess import parse
from vitrail.errors import CheckpointError

TINY = {"width": 32, "depth": 2, "mlp_dim": 48, "heads": 4, "image_size": 32, "classes": 5}
MODELS = {
    "token": TINY,
    "exact GELU": TINY | {"activation": "gelu", "norm_eps": 1e-12},
    "not square": TINY | {"image_size": (32, 48)},
    "two channels": TINY | {"channels": 2},
    "no classifier": TINY | {"classes": 0},
    "pooler": TINY | {"classes": 0, "pre_logits": 24},
    "dropout": TINY | {"dropout": 0.1, "attention_dropout": 0.2},
}


def checkpoint(name, **overrides):
    return from_model(randomise(create("B/16", **(MODELS[name] | overrides))))


def written(name, tmp_path, **overrides):
    given = checkpoint(name, **overrides)
    huggingface.write(given, tmp_path / name)
    return given, tmp_path / name


def read(path, image_size=None, **asked):
    return formats.read(path, Hints(**asked), image_size=image_size)


def edit(folder, name="config.json", **entries):
    """Change a JSON file; a value of None takes the entry out."""
    card = json.loads((folder / name).read_text()) | entries
    (folder / name).write_text(json.dumps({key: value for key, value in card.items() if value is not None}))


def edit_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    tensors = change(dict(tensors)) or tensors
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_is_read_again(name, tmp_path):
    given, folder = written(name, tmp_path)
    assert huggingface.recognises(torch_files.find_weights(folder).tensors)
    again = read(folder)
    assert again.config == given.config
    assert again.weights.keys() == given.weights.keys()
    assert all(torch.equal(again.weights[key], w) for key, w in given.weights.items())


def test_names_stand_as_transformers_writes_them(tmp_path):
    _, folder = written("token", tmp_path)
    names = list(load_file(folder / "model.safetensors"))
    assert "vit.encoder.layer.1.attention.attention.query.weight" in names
    assert "classifier.weight" in names
    _, folder = written("pooler", tmp_path)
    assert {"encoder.layer.0.output.dense.bias", "pooler.dense.weight"} <= set(
        load_file(folder / "model.safetensors")
    )


IN_MEMORY = {
    r"encoder\.layer\.(\d+)\.attention\.attention\.(.)\w+\.": r"layers.\1.attention.\2_proj.",
    r"encoder\.layer\.(\d+)\.attention\.output\.dense\.": r"layers.\1.attention.o_proj.",
    r"encoder\.layer\.(\d+)\.intermediate\.dense\.": r"layers.\1.mlp.fc1.",
    r"encoder\.layer\.(\d+)\.output\.dense\.": r"layers.\1.mlp.fc2.",
    r"encoder\.layer\.": r"layers.",
}


def in_memory(name):
    for old, new in IN_MEMORY.items():
        name = re.sub(old, new, name)
    return name


def test_names_as_they_are_in_memory(tmp_path):
    given, folder = written("token", tmp_path)
    edit_tensors(folder, lambda t: {in_memory(name): w for name, w in t.items()})
    names = set(load_file(folder / "model.safetensors"))
    assert "vit.layers.0.attention.q_proj.weight" in names
    assert not any("encoder" in name for name in names)
    assert all(torch.equal(w, given.weights[key]) for key, w in read(folder).weights.items())


def test_both_spellings_at_once_are_refused(tmp_path):
    _, folder = written("token", tmp_path)
    edit_tensors(folder, lambda t: t | {"vit.layers.0.mlp.fc1.bias": torch.zeros(48)})
    with pytest.raises(CheckpointError, match=r"two spellings of a name: .*vit\.layers\.0\.mlp\.fc1\.bias"):
        read(folder)


def test_where_it_came_from(tmp_path):
    _, folder = written("token", tmp_path)
    origin = read(folder).provenance
    assert origin == {
        "format": "huggingface",
        "file": "model.safetensors",
        "dtype": "float32",
        "architecture": "ViTForImageClassification",
        "heads": "config file",
    }


def test_class_names_but_not_placeholders(tmp_path):
    given = dataclasses.replace(checkpoint("token"), class_names=["a", "crane", "crane", "d", "e"])
    huggingface.write(given, tmp_path / "h")
    assert read(tmp_path / "h").class_names == ["a", "crane", "crane", "d", "e"]
    edit(tmp_path / "h", id2label={str(i): f"LABEL_{i}" for i in range(5)})
    assert read(tmp_path / "h").class_names is None
    edit(tmp_path / "h", id2label={"0": "a"})
    with pytest.raises(CheckpointError, match="1 names in id2label for 5 classes"):
        read(tmp_path / "h")


def test_what_config_json_does_not_say(tmp_path):
    _, folder = written("token", tmp_path)
    (folder / "config.json").unlink()
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(CheckpointError, match="pass heads="):
        read(folder)
    again = read(folder, heads=4)
    assert (again.config.activation, again.config.norm_eps) == ("gelu", 1e-12)
    assert parse(again.preprocess) == parse("resize(32, pillow_bilinear)|uint8|normalize(0.5, 0.5)")


def test_no_qkv_bias_is_none_here(tmp_path):
    _, folder = written("token", tmp_path)
    wanted = re.compile(r".*(query|key|value)\.bias")
    edit_tensors(folder, lambda t: {name: w for name, w in t.items() if not wanted.fullmatch(name)})
    again = read(folder)
    assert again.config.qkv_bias == "none"
    assert "encoder.blocks.1.attention.qkv.bias" not in again.weights
    edit_tensors(folder, lambda t: t | {"vit.encoder.layer.0.attention.attention.key.bias": torch.ones(32)})
    with pytest.raises(CheckpointError, match=r"extra encoder\.layer\.0\.attention\.attention\.key\.bias"):
        read(folder)


def test_a_pooler_beside_a_classifier_is_left_out(tmp_path, caplog):
    given, folder = written("token", tmp_path)
    pooler = {"vit.pooler.dense.weight": torch.ones(32, 32), "vit.pooler.dense.bias": torch.ones(32)}
    edit_tensors(folder, lambda t: t | pooler)
    with caplog.at_level(logging.WARNING):
        assert read(folder).weights.keys() == given.weights.keys()
    assert "pooler.dense.weight" in caplog.text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.pop("classifier.bias"), r"missing classifier\.bias"),
        (lambda t: t.update({"vit.embeddings.mask_token": torch.zeros(1)}), r"extra embeddings\.mask_token"),
        (lambda t: t.update({"vit.layernorm.bias": torch.zeros(3)}), r"layernorm\.bias is \[3\]"),
        (lambda t: t.pop("vit.embeddings.position_embeddings"), r"missing embeddings\.position_embeddings"),
        (lambda t: t.update({"vit.embeddings.position_embeddings": torch.zeros(1, 7, 32)}), "6 patches"),
    ],
)
def test_tensors_that_do_not_fit(change, problem, tmp_path):
    _, folder = written("token", tmp_path)

    def changed(tensors):
        change(tensors)
        return tensors

    edit_tensors(folder, changed)
    with pytest.raises(CheckpointError, match=problem):
        read(folder)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({"model_type": None, "architecture": "vit_base_patch16_224"}, "is of timm's 'vit_base_patch16_224'"),
        ({"hidden_act": "relu"}, "hidden_act 'relu' has no counterpart here"),
        ({"pooler_act": "relu"}, "pooler_act 'relu' has no counterpart here"),
        ({"hidden_size": 64}, "says width 64, its tensors 32"),
        ({"num_hidden_layers": 12}, "says depth 12, its tensors 2"),
        ({"patch_size": [3, 5]}, r"says patch_size \[3, 5\], its tensors"),
        ({"image_size": 224}, r"says images of \(224, 224\)"),
        ({"num_attention_heads": 5}, "not divisible into 5 heads"),
        ({"num_attention_heads": "four"}, "num_attention_heads is 'four' .* expected int"),
        ({"id2label": ["a"]}, "id2label is .* expected"),
    ],
)
def test_config_files_that_do_not_fit(entries, problem, tmp_path):
    _, folder = written("token", tmp_path)
    edit(folder, **entries)
    with pytest.raises(CheckpointError, match=problem):
        read(folder)


def test_patches_with_two_sides(tmp_path):
    given, folder = written("token", tmp_path)
    edit(folder, patch_size=[given.config.patch_size] * 2)
    assert read(folder).config == given.config


def test_heads_conflict(tmp_path):
    _, folder = written("token", tmp_path)
    with pytest.raises(CheckpointError, match="has heads=4, but heads=8 was passed"):
        read(folder, heads=8)
    assert read(folder, heads=4).config.heads == 4


# --- preprocessing --------------------------------------------------------------------------------

LINES = {
    "squash": "resize(32, pillow_bilinear)|uint8|normalize(0.5, 0.25)",
    "short side": "resize_small(36, pillow_bicubic, down)|central_crop(32)|uint8|normalize((0.1, 0.2, 0.3), 0.5)",
}


@pytest.mark.parametrize("case", LINES)
def test_a_line_that_transformers_can_say(case, tmp_path):
    given = dataclasses.replace(checkpoint("token"), preprocess=LINES[case])
    assert huggingface.write(given, tmp_path / "h") == []
    assert parse(read(tmp_path / "h").preprocess) == parse(LINES[case])


def test_lines_that_it_cannot(tmp_path):
    assert "antialiasing" in huggingface.write(checkpoint("token"), tmp_path / "a")[0]
    given = dataclasses.replace(checkpoint("token"), preprocess="crop(0, 0, 32, 32)|to_range(-1, 1)")
    assert "prepare images as" in huggingface.write(given, tmp_path / "b")[0]
    assert not (tmp_path / "b" / "preprocessor_config.json").exists()


@pytest.mark.parametrize(
    ("entries", "line"),
    [
        ({"size": 32}, "resize(32, pillow_bilinear)|uint8|normalize(0.5, 0.5)"),
        ({"resample": 1}, "resize(32, pillow_lanczos)|uint8|normalize(0.5, 0.5)"),
        ({"do_normalize": False}, "resize(32, pillow_bilinear)|uint8|normalize(0, 1)"),
        ({"do_rescale": False, "image_mean": 255, "image_std": [51, 51, 51]}, None),
        ({"rescale_factor": 2 / 255}, "resize(32, pillow_bilinear)|uint8|normalize(0.25, 0.25)"),
        ({"size": {"height": 64, "width": 64}}, "resize(32, pillow_bilinear)|uint8|normalize(0.5, 0.5)"),
        ({"resample": 0}, ""),
        ({"do_resize": False}, ""),
        ({"do_pad": True}, ""),
        ({"size": {"longest_edge": 32}}, ""),
        ({"do_center_crop": True}, ""),
        ({"size": {"height": 10**9, "width": 3}}, ""),
        ({"image_mean": [0.5, 0.5]}, ""),
        ({"image_std": [0, 0, 0]}, ""),
        ({"rescale_factor": 0}, ""),
    ],
    ids=str,
)
def test_preprocessor_configs(entries, line, tmp_path, caplog):
    folder = written("token", tmp_path)[1]
    edit(
        folder,
        "preprocessor_config.json",
        **({"do_center_crop": False, "crop_size": None, "size": 32} | entries),
    )
    with caplog.at_level(logging.WARNING):
        made = read(folder).preprocess
    if line is None:  # (bytes - 255) / 51
        op = parse(made).value_op
        assert torch.allclose(
            op(torch.tensor([0.0, 102.0]).view(2, 1, 1, 1))[:, 0, 0, 0], torch.tensor([-5.0, -3.0])
        )
    elif line:
        assert parse(made) == parse(line)
    else:
        assert made == ""
        assert "has no counterpart here" in caplog.text


def test_a_preprocessor_config_of_other_types(tmp_path):
    folder = written("token", tmp_path)[1]
    edit(folder, "preprocessor_config.json", image_mean="grey")
    with pytest.raises(CheckpointError, match="image_mean is 'grey'"):
        read(folder)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"layer_norm_eps": 10**400}, "401 digits"),
        ({"id2label": {"0": "a", "1": "\ud800", "2": "c", "3": "d", "4": "e"}}, "surrogates not allowed"),
    ],
)
def test_entries_that_are_out_of_all_bounds(entries, message, tmp_path):
    folder = written("token", tmp_path)[1]
    edit(folder, **entries)
    with pytest.raises(CheckpointError, match=message):
        read(folder)


def test_patches_of_no_pixels(tmp_path):
    folder = written("token", tmp_path)[1]
    edit_tensors(
        folder, lambda t: {**t, "vit.embeddings.patch_embeddings.projection.weight": torch.zeros(32, 3, 0, 0)}
    )
    with pytest.raises(CheckpointError, match="says patch_size 16, its tensors 0"):
        read(folder)


# --- refusals and notes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "overrides", "problem"),
    [
        ("B/16", {"pre_logits": 24}, "no counterpart for a tanh layer before the classifier"),
        ("B/16", {"pool": "mean", "norm_at": "pooled"}, "no counterpart for pool='mean'"),
        ("B/16", {"registers": 2, "qk_norm": True}, "has registers=2, qk_norm=True together"),
        ("B/16", {"positions_at": "every"}, "no counterpart for positions='1d'"),
        ("R50+B/16", {"image_size": 64, "stem": {"units": (1,), "width_factor": 0.5}}, "holds a plain ViT"),
    ],
)
def test_what_has_no_counterpart_is_not_written(model, overrides, problem, tmp_path):
    given = from_model(create(model, **(TINY | overrides)))
    with pytest.raises(CheckpointError, match=problem):
        huggingface.write(given, tmp_path / "h")
    assert not list(tmp_path.iterdir())


def test_what_the_reader_must_set(tmp_path):
    given = dataclasses.replace(checkpoint("no classifier", drop_path=0.1), preprocess=LINES["squash"])
    notes = huggingface.write(given, tmp_path / "h")
    assert "drop_path=0.1" in notes[0]
    assert "add_pooling_layer=False" in notes[1]
