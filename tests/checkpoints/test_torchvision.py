"""torchvision's format without torchvision: round trips, refusals, notes. (With it: tests/parity.)"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.randomise import randomise
from vitrail.checkpoints import formats, torch_files, torchvision
from vitrail.checkpoints.architecture import Hints
from vitrail.checkpoints.checkpoint import from_model
from vitrail.checkpoints.formats import create
from vitrail.data.preprocess import PRESETS, parse
from vitrail.errors import CheckpointError
from vitrail.models.vit import ViTConfig

TINY = {
    "width": 32, "depth": 2, "mlp_dim": 48, "heads": 4, "image_size": 32, "classes": 5, "activation": "gelu",
}  # fmt: skip
MODELS = {
    "token": TINY,
    "pre_logits": TINY | {"pre_logits": 24},
    "no classifier": TINY | {"classes": 0},
    "no classifier, pre_logits": TINY | {"classes": 0, "pre_logits": 24},
}


def checkpoint(name, **overrides):
    return from_model(randomise(create("B/16", **(MODELS[name] | overrides))))


def read(path, image_size=None, **asked):
    return formats.read(path, Hints(**asked), image_size=image_size)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_is_read_again(name, suffix, tmp_path):
    given, path = checkpoint(name), tmp_path / f"model{suffix}"
    torchvision.write(given, path)
    assert torchvision.recognises(torch_files.find_weights(path).tensors)
    again = read(path, heads=4)
    assert again.config == given.config
    assert again.weights.keys() == given.weights.keys()
    assert all(torch.equal(again.weights[key], w) for key, w in given.weights.items())
    assert again.provenance["heads"] == "argument"


def test_old_names_of_the_mlp(tmp_path):
    given = checkpoint("token")
    torchvision.write(given, tmp_path / "new.safetensors")
    old = {
        key.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): w
        for key, w in load_file(tmp_path / "new.safetensors").items()
    }
    save_file(old, tmp_path / "old.safetensors")
    assert any("linear_1" in key for key in old)
    assert all(
        torch.equal(w, given.weights[key])
        for key, w in read(tmp_path / "old.safetensors", heads=4).weights.items()
    )
    save_file(old | load_file(tmp_path / "new.safetensors"), tmp_path / "both.safetensors")
    with pytest.raises(CheckpointError, match="two spellings"):
        read(tmp_path / "both.safetensors", heads=4)


def test_heads_are_asked_for_or_known(tmp_path):
    torchvision.write(checkpoint("token"), tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match="pass heads="):
        read(tmp_path / "a.pth")
    torchvision.write(from_model(create("Ti/16", classes=1, image_size=32)), tmp_path / "t.pth")
    again = read(tmp_path / "t.pth")
    assert (again.config.heads, again.provenance["heads"]) == (3, "the known variant Ti")
    assert read(tmp_path / "t.pth", heads=6).config.heads == 6


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ({"image_size": 224}, PRESETS["torchvision_eval"]),
        ({"width": 1024, "image_size": 224, "heads": 16}, PRESETS["torchvision_eval"].replace("256", "242")),
        (
            {"image_size": 384},
            PRESETS["torchvision_eval"]
            .replace("256", "384")
            .replace("224", "384", 1)
            .replace("bilinear", "bicubic"),
        ),
        ({"image_size": 64}, PRESETS["torchvision_eval"].replace("256", "73").replace("crop(224", "crop(64")),
    ],
)
def test_preprocessing_of_published_weights(sizes, line):
    assert parse(torchvision.preprocessing(ViTConfig(**sizes))) == parse(line)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.pop("heads.head.bias"), r"missing heads\.head\.bias"),
        (lambda t: t.update({"extra": torch.zeros(1)}), "extra extra"),
        (lambda t: t.update({"encoder.ln.bias": torch.zeros(3)}), r"encoder\.ln\.bias is \[3\]"),
        (lambda t: t.pop("encoder.pos_embedding"), r"missing encoder\.pos_embedding"),
        (lambda t: t.update({"encoder.pos_embedding": torch.zeros(1, 7, 32)}), "not a square"),
    ],
)
def test_tensors_that_do_not_fit(change, problem, tmp_path):
    torchvision.write(checkpoint("token"), tmp_path / "a.safetensors")
    tensors = load_file(tmp_path / "a.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match=problem):
        read(tmp_path / "a.safetensors", heads=4)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"pool": "mean"}, "no counterpart for pool='mean'"),
        ({"image_size": (32, 48)}, "take square images of 3 channels"),
        ({"channels": 1}, "take square images of 3 channels"),
        ({"positions": "relative"}, "no counterpart for positions='relative'"),
    ],
)
def test_what_has_no_counterpart_is_not_written(overrides, problem, tmp_path):
    with pytest.raises(CheckpointError, match=problem):
        torchvision.write(checkpoint("token", **overrides), tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match="holds a plain ViT"):
        torchvision.write(
            from_model(create("R50x1", units=(1,), width_factor=0.5, classes=1)), tmp_path / "a.pth"
        )
    assert not list(tmp_path.iterdir())


def test_only_files_of_known_suffixes(tmp_path):
    with pytest.raises(CheckpointError, match=r"\.safetensors, \.pth or \.pt"):
        torchvision.write(checkpoint("token"), tmp_path / "folder")


def test_what_the_reader_must_set(tmp_path):
    given = checkpoint("no classifier", activation="gelu_tanh", norm_eps=1e-12)
    notes = "\n".join(torchvision.write(given, tmp_path / "a.pth"))
    assert "num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=48" in notes
    assert "eps=1e-12" in notes
    assert "approximate='tanh'" in notes
    assert "model.heads = torch.nn.Identity()" in notes
    assert given.preprocess in notes


def test_class_names_are_said(tmp_path):
    given = dataclasses.replace(checkpoint("token", classes=2), class_names=["cat", "dog"])
    assert "class names are not written: cat; dog" in torchvision.write(given, tmp_path / "a.pth")


def test_a_known_function_is_named():
    config = ViTConfig(patch_size=32, classes=3, image_size=32, activation="gelu")
    assert torchvision.reader_notes(config, "") == [
        "the reader builds the model with torchvision.models.vit_b_32(image_size=32, num_classes=3)"
    ]
