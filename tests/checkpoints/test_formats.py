import random

import numpy as np
import pytest
import torch

import vitrail
from tests.checkpoints.damage import damaged
from tests.checkpoints.google_files import filled, vit_shapes
from tests.randomise import randomise
from vitrail.checkpoints.checkpoint import check_finite_weights
from vitrail.checkpoints.formats import FORMATS, convert, has_weights
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.calibration import Calibration

FIELDS = {"width": 24, "depth": 2, "mlp_dim": 40, "heads": 3, "image_size": 16, "classes": 5}


@pytest.fixture
def model():
    return randomise(vitrail.create("B/8", **FIELDS)).eval()


@pytest.mark.parametrize("to", FORMATS)
def test_any_format_is_told_by_what_is_in_it(tmp_path, model, to):
    path = tmp_path / {"npz": "m.npz", "torchvision": "m.pth"}.get(to, "m")
    vitrail.save(model, path, to=to)
    again = vitrail.load(path, heads=3)
    for (name, a), (other, b) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(a, b)


def test_from_each_format_to_each_other(tmp_path, model):
    """A chain through all of them ends with the weights it began with."""
    path = tmp_path / "0"
    vitrail.save(model, path)
    for i, to in enumerate(["timm", "huggingface", "torchvision", "npz", "bundle"], 1):
        new = tmp_path / (f"{i}.pth" if to == "torchvision" else f"{i}.npz" if to == "npz" else str(i))
        convert(path, new, to=to, heads=3)
        path = new
    x = torch.randn(2, 3, 16, 16)
    again = vitrail.load(path).state_dict()
    assert all(torch.equal(w, again[name]) for name, w in model.state_dict().items())
    assert model(x).shape == (2, 5)


@pytest.mark.parametrize("to", [to for to in FORMATS if to != "bundle"])
def test_the_temperature_is_in_the_head_where_a_format_has_no_place_for_it(tmp_path, model, to, caplog):
    model.calibration = Calibration(2.5, (0.5,) * 5)
    path = tmp_path / {"npz": "m.npz", "torchvision": "m.pth"}.get(to, "m")
    vitrail.save(model, path, to=to)
    notes = caplog.text
    assert "2.5, is written into the classifier's weights" in notes and "thresholds" in notes
    again, x = vitrail.load(path, heads=3), torch.randn(2, 3, 16, 16)
    assert again.calibration == Calibration()
    expected = model.calibration.probabilities(model(x))
    torch.testing.assert_close(again.calibration.probabilities(again(x)), expected, rtol=1e-4, atol=1e-5)


def test_an_npz_by_another_name(tmp_path):
    np.savez(tmp_path / "x.npz", **filled(vit_shapes()))
    (tmp_path / "x.npz").rename(tmp_path / "checkpoint")
    assert vitrail.load(tmp_path / "checkpoint").config.width == 24


def test_create_knows_how_to_feed_itself():
    model = vitrail.create("Ti/16", classes=10, image_size=32)
    assert model.config.classes == 10
    assert model.preprocess.endswith("to_range(-1, 1)")
    assert vitrail.features(model, np.zeros((50, 60, 3), np.uint8)).shape == (1, 192)


def test_a_name_is_not_a_file():
    with pytest.raises(
        CheckpointError, match=r"B/16 is the name of an architecture.*vitrail.create\('B/16'\)"
    ):
        vitrail.load("B/16")
    with pytest.raises(CheckpointError, match="no such file or folder: nowhere"):
        vitrail.load("nowhere")


def test_weights_or_an_architecture(tmp_path):
    assert has_weights(str(tmp_path)) and has_weights("ti8-64")
    for name in ("B/16", "R50+ViT-B/16", "google/vit-base-patch16-224", "vit_base_patch16_224.augreg"):
        assert not has_weights(name)


@pytest.mark.parametrize("path", ["runs/x/model", "./model", "B_17.npz", "a.safetensors", "google/vit-new"])
def test_what_looks_like_a_path_is_said_not_to_be_there(path):
    with pytest.raises(CheckpointError, match=f"no such file or folder: {path} "):
        has_weights(path)


@pytest.mark.parametrize("name", ["Q/16", "ViT-Q/16@384", "bee"])
def test_what_looks_like_an_architecture_is_said_to_be_unknown(name):
    with pytest.raises(ConfigError, match=f"unknown model '{name}'"):
        has_weights(name)


@pytest.mark.parametrize("given", [None, 3])
def test_a_path_or_a_name_is_loaded(given):
    with pytest.raises(ConfigError, match="a path or a name"):
        vitrail.load(given)


@pytest.mark.parametrize("name", ["photo.jpg", "photo.HEIC"])
def test_a_picture_is_called_one(tmp_path, name):
    (tmp_path / name).write_bytes(b"\xff\xd8\xff\xe0")
    with pytest.raises(CheckpointError, match=f"{name} is a picture, not a model; .* the model comes first"):
        vitrail.load(tmp_path / name)


def test_unknown_formats(tmp_path, model):
    with pytest.raises(ConfigError, match="'jax' is not one of bundle, npz, timm"):
        vitrail.save(model, tmp_path / "m", to="jax")
    torch.save({"weight": torch.zeros(3)}, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match="timm, transformers or torchvision"):
        vitrail.load(tmp_path / "w.pth")
    (tmp_path / "t.npz").write_text("not a checkpoint")
    with pytest.raises(CheckpointError, match=r"not a whole \.npz file"):
        vitrail.load(tmp_path / "t.npz")


def test_heads_that_contradict_the_file(tmp_path):
    np.savez(tmp_path / "x.npz", **filled(vit_shapes()))
    with pytest.raises(CheckpointError, match="has heads=3, but heads=4"):
        vitrail.load(tmp_path / "x.npz", heads=4)


def test_convert_with_another_line(tmp_path, model):
    """A line, or a preset at the model's size; scores that were measured with the old line are dropped."""
    model.metrics = {"test": {"top1": 0.5}}
    vitrail.save(model, tmp_path / "m")
    lines = {
        "big_vision_fewshot": "resize(18)|central_crop(16)|uint8(down)|to_range(-1, 1)",
        "resize( 16 )|uint8|to_range(-1,1)": "resize(16)|uint8|to_range(-1, 1)",
    }
    for i, (given, line) in enumerate(lines.items()):
        convert(tmp_path / "m", tmp_path / str(i), preprocess=given)
        made = vitrail.load(tmp_path / str(i))
        assert (made.preprocess, made.metrics) == (line, {})
    for wrong, said in (
        (
            "resize(32)|uint8|to_range(-1, 1)",
            r"\(32, 32\), and the model .* \(16, 16\)",
        ),
        ("resize(16)|uint8", "to_range"),
        ("inception_crop(16)|uint8|to_range(-1, 1)", "random.*big_vision_eval"),
    ):
        with pytest.raises(ConfigError, match=said):
            convert(tmp_path / "m", tmp_path / "no", preprocess=wrong)
        assert not (tmp_path / "no").exists()


def test_convert_overwrites_nothing(tmp_path, model):
    vitrail.save(model, tmp_path / "m")
    (tmp_path / "there").write_text("mine")
    with pytest.raises(CheckpointError, match="exists"):
        convert(tmp_path / "m", tmp_path / "there")
    assert (tmp_path / "there").read_text() == "mine"


@pytest.mark.parametrize("to", [to for to in FORMATS if to != "bundle"])
def test_nor_does_saving_but_a_bundle_over_a_bundle(tmp_path, model, to):
    path = tmp_path / {"npz": "m.npz", "torchvision": "m.pth"}.get(to, "m")
    vitrail.save(model, path, to=to)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with torch.no_grad():
        model.cls += 1
    with pytest.raises(CheckpointError, match=r"m\S* exists"):
        vitrail.save(model, path, to=to)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="link exists"):
        vitrail.save(model, tmp_path / "link", to=to)


def test_a_bundle_whose_writer_was_killed_between_two_moves_is_there_again(tmp_path, model, monkeypatch):
    """Where the system cannot exchange two folders, the old one stands aside for a moment."""
    monkeypatch.setattr("vitrail.runtime.files.MOMENT", 0.01)
    vitrail.save(model, tmp_path / "m")
    (tmp_path / "m").rename(tmp_path / ".m.old.a1b2c3d4")
    assert has_weights(str(tmp_path / "m"))
    again = vitrail.load(tmp_path / "m").state_dict()
    assert all(torch.equal(w, again[name]) for name, w in model.state_dict().items())
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


BAD = {"NaN": float("nan"), "infinity": float("inf"), "minus infinity": -float("inf")}


@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
@pytest.mark.parametrize("to", FORMATS)
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, model, to, value):
    """In the weights of queries they would still give finite probabilities."""
    with torch.no_grad():
        model.encoder.blocks[1].attention.qkv.weight[0, 3] = value
        model.head.classifier.bias[:2] = value
    path = tmp_path / {"npz": "m.npz", "torchvision": "m.pth"}.get(to, "m")
    vitrail.save(model, path, to=to)
    names = r"encoder\.blocks\.1\.attention\.qkv\.weight \(1 of 1,728\); head\.classifier\.bias \(2 of 5\)"
    with pytest.raises(CheckpointError, match=f"not finite: {names}"):
        vitrail.load(path, heads=3)
    with pytest.raises(CheckpointError, match="not finite"):  # also where that part would be left out
        vitrail.load(path, heads=3, classes=2)


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_one_value_anywhere_is_found(size):
    for at in range(0, size, max(1, size // 50)):
        w = torch.randn(size)
        check_finite_weights({"w": w}, "here")
        for value in BAD.values():
            w[at] = value
            with pytest.raises(CheckpointError, match=r"here: .* w \(1 of"):
                check_finite_weights({"w": w}, "here")


def test_numbers_that_single_precision_cannot_hold(tmp_path):
    arrays = filled(vit_shapes())
    arrays["head/bias"] = arrays["head/bias"].astype(np.float64) + 1e300
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(CheckpointError, match=r"not finite: head\.classifier\.bias"):
        vitrail.load(tmp_path / "x.npz")


# format: the file that is damaged, and whether it carries checksums
DAMAGED = {
    "npz": ("m.npz", True),
    "torchvision": ("m.pth", True),
    "old": ("m.pth", False),
    "timm": ("m/model.safetensors", False),
    "huggingface": ("m/model.safetensors", False),
}


@pytest.mark.parametrize("tries", [30, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("to", DAMAGED)
def test_damage_is_an_error_or_where_there_are_checksums_harmless(tmp_path, model, to, tries):
    name, has_sums = DAMAGED[to]
    path = tmp_path / name
    vitrail.save(model, tmp_path / name.split("/")[0], to="torchvision" if to == "old" else to)
    if to == "old":
        torch.save(torch.load(path), path, _use_new_zipfile_serialization=False)
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(tries):
        path.write_bytes(damaged(whole, rng))
        try:
            read = vitrail.load(path, heads=3).state_dict()
        except CheckpointError as error:
            assert path.name in str(error)
        else:
            assert not has_sums or all(torch.equal(w, read[n]) for n, w in model.state_dict().items())
