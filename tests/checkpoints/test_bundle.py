import json
import os
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import vitrail
from tests.checkpoints.damage import damaged
from tests.randomise import randomise
from vitrail.checkpoints.bundle import cast_weights, seal_card
from vitrail.checkpoints.checkpoint import Checkpoint, config_from_json, config_to_json
from vitrail.checkpoints.formats import convert
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.calibration import Calibration
from vitrail.models.names import make_config

FIELDS = {"width": 24, "depth": 1, "mlp_dim": 40, "heads": 3}
MODELS = {
    "ViT": ("B/8", {**FIELDS, "image_size": (16, 24), "classes": 3}),
    "relative": ("B/8", {**FIELDS, "image_size": 16, "positions": "relative"}),
    "2d, every layer": ("B/8", {**FIELDS, "image_size": 16, "positions": "2d", "positions_at": "every"}),
    "sincos, attention": ("B/8", {**FIELDS, "image_size": 16, "positions": "sincos", "pool": "attention"}),
    "axial": ("B/8", {**FIELDS, "image_size": 16, "pool": "mean", "block": "axial", "norm_at": "pooled"}),
    "hybrid": ("R50+B/16", {**FIELDS, "image_size": 32, "stem": {"units": [1, 1], "width_factor": 0.5}}),
    "BiT": ("R50x1", {"units": (1, 1), "width_factor": 0.5, "image_size": 32, "classes": 3}),
}


@pytest.fixture(params=MODELS)
def model(request):
    name, fields = MODELS[request.param]
    return randomise(vitrail.create(name, **fields)).eval()


def test_comes_back_as_it_was(tmp_path, model):
    model.class_names = [f"class {i}" for i in range(model.config.classes)]
    model.metrics = {"top-1": 0.5}
    vitrail.save(model, tmp_path / "m")
    again = vitrail.load(tmp_path / "m")
    assert again.config == model.config
    assert (again.preprocess, again.class_names) == (model.preprocess, model.class_names)
    assert (again.metrics, again.provenance) == (model.metrics, model.provenance)
    for (name, a), (other, b) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(a, b)
    x = torch.randn(2, 3, *model.config.image_size)
    torch.testing.assert_close(again(x), model(x), rtol=1e-4, atol=1e-4)
    assert all(p.requires_grad for p in again.parameters())
    assert not again.training


def small(tmp_path):
    model = vitrail.create("mu/8", image_size=16, classes=3)
    vitrail.save(model, tmp_path / "m")
    return model, tmp_path / "m"


def write_card(folder, card):
    """As `vitrail.save` would: with the digests of what is in it."""
    (folder / "model.json").write_text(json.dumps(seal_card(card, folder / "model.safetensors")))


def test_the_card_can_be_read_by_a_person(tmp_path):
    _, folder = small(tmp_path)
    assert sorted(p.name for p in folder.iterdir()) == ["model.json", "model.safetensors"]
    card = json.loads((folder / "model.json").read_text())
    assert card["architecture"]["family"] == "vit"
    assert card["architecture"]["width"] == 32
    assert card["preprocess"].endswith("to_range(-1, 1)")


def test_written_again_over_itself(tmp_path):
    model, folder = small(tmp_path)
    with torch.no_grad():
        model.cls += 1
    vitrail.save(model, folder)
    assert torch.equal(vitrail.load(folder).cls, model.cls)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_a_folder_with_anything_else_is_not_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"also holds notes\.txt"):
        vitrail.save(vitrail.create("mu/8", image_size=16), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_nor_is_one_with_the_weights_of_something_else(tmp_path):
    (tmp_path / "model.safetensors").write_text("mine")
    with pytest.raises(CheckpointError, match=r"also holds model\.safetensors"):
        vitrail.save(vitrail.create("mu/8", image_size=16), tmp_path)
    assert (tmp_path / "model.safetensors").read_text() == "mine"


def test_written_again_through_a_link(tmp_path):
    model, folder = small(tmp_path)
    (tmp_path / "link").symlink_to(folder)
    with torch.no_grad():
        model.cls += 1
    vitrail.save(model, tmp_path / "link")
    assert torch.equal(vitrail.load(folder).cls, model.cls)
    assert (tmp_path / "link").is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "m"]


def test_letters_may_be_escaped(tmp_path):
    _, folder = small(tmp_path)
    card = json.loads((folder / "model.json").read_text()) | {"class_names": ["\u00e9", "\U0001f99c", "c"]}
    write_card(folder, card)
    assert "\\ud83e\\udd9c" in (folder / "model.json").read_text()
    assert vitrail.load(folder).class_names == ["\u00e9", "\U0001f99c", "c"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda card: card.pop("architecture"), "architecture is missing"),
        (lambda card: card.update(version=99), "version 99; .* up to 2"),
        (lambda card: card.update(class_names=["one"]), "1 class names for 3 classes"),
        (lambda card: card.update(preprocess="blur(3)"), "blur"),
        (lambda card: card["architecture"].update(family="swin"), "'swin' is not one of vit, hybrid, bit"),
        (lambda card: card["architecture"].update(layers=3), "unknown fields layers"),
        (lambda card: card["architecture"].update(heads=5), "not divisible into 5 heads"),
        (lambda card: card["architecture"].update(depth=2), "missing encoder.blocks.1"),
        (lambda card: card["architecture"].update(classes=4), r"classifier.weight is \[3, 32\], .* \[4, 32\]"),
        (lambda card: card["architecture"].update(depth=10**9), r"model\.json: depth must be at most 1000, not 10"),
        (lambda card: card["architecture"].update(depth=900), r"model\.json: 900 layers, but only 20 tensors"),
        (lambda card: card["architecture"].update(width=2**62), r"model\.json: width must be at most 65536"),
        (lambda card: card["architecture"].update(mlp_dim=2**64), r"model\.json: mlp_dim must be at most"),
        (lambda card: card["architecture"].update(pre_logits=2**63), r"model\.json: pre_logits must be at most"),
        (lambda card: card["architecture"].update(image_size=2**62), r"model\.json: .* more than 65536 pixels"),
        (lambda card: card["architecture"].update(positions="sincos", image_size=32000),
         r"model\.json: positions 'sincos' of width 32 for images of \(32000, 32000\) are 512,000,032 numbers"),
        (lambda card: card["architecture"].update(positions="relative", positions_at="every", image_size=16000),
         "missing encoder.positions.0.table; extra positions.table"),
        (lambda card: card.update(class_names=["a", "\ud800", "c"]), "surrogates not allowed"),
        (lambda card: card.update(provenance={"by": "\udcff"}), "surrogates not allowed"),
    ],
)  # fmt: skip
def test_a_card_that_is_wrong(tmp_path, change, message):
    _, folder = small(tmp_path)
    card = json.loads((folder / "model.json").read_text())
    change(card)
    write_card(folder, card)
    with pytest.raises(CheckpointError, match=message):
        vitrail.load(folder)


def test_damaged_files(tmp_path):
    _, folder = small(tmp_path)
    (folder / "model.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        vitrail.load(folder)
    _, folder = small(tmp_path)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-10])
    with pytest.raises(CheckpointError, match=r"not a whole \.safetensors file"):
        vitrail.load(folder)


@pytest.mark.parametrize("tries", [80, pytest.param(2000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_damage_is_found(name, tries, tmp_path):
    model, folder = small(tmp_path)
    model.class_names, model.metrics = ["a", "b", "c"], {"test": {"top1": 0.5}}
    vitrail.save(model, folder)
    whole, rng = (folder / name).read_bytes(), random.Random(0)
    content = json.loads(whole) if name == "model.json" else None
    for _ in range(tries):
        (folder / name).write_bytes(changed := damaged(whole, rng))
        try:
            vitrail.load(folder)
        except CheckpointError as error:
            assert "model." in str(error)
        else:  # other spaces between the same words
            assert content is not None and json.loads(changed) == content


@pytest.mark.parametrize(
    "change",
    [
        lambda card: card["class_names"].reverse(),
        lambda card: card.update(preprocess=card["preprocess"].replace("-1", "-2")),
        lambda card: card["architecture"].update(heads=4),
        lambda card: card["metrics"].update(top1=1.0),
        lambda card: card.pop("sha256"),
        lambda card: card["sha256"].pop("model.json"),
        lambda card: card["sha256"].pop("model.safetensors"),
        lambda card: card["sha256"].update({"model.safetensors": None}),
    ],
)
def test_a_card_edited_by_hand_is_refused(change, tmp_path):
    model, folder = small(tmp_path)
    model.class_names = ["a", "b", "c"]
    vitrail.save(model, folder)
    card = json.loads((folder / "model.json").read_text())
    change(card)
    (folder / "model.json").write_text(json.dumps(card))
    with pytest.raises(CheckpointError, match=r"model\.(json|safetensors)"):
        vitrail.load(folder)


def test_a_bundle_from_before_there_were_digests(tmp_path):
    model, folder = small(tmp_path)
    card = json.loads((folder / "model.json").read_text()) | {"version": 1}
    del card["sha256"]
    (folder / "model.json").write_text(json.dumps(card))
    assert torch.equal(vitrail.load(folder).cls, model.cls)


def test_names_that_json_turns_into_text(tmp_path):
    model, folder = small(tmp_path)
    model.metrics = {10: 0.5, 9: (1, 2), "nothing": float("nan")}
    vitrail.save(model, folder)
    assert vitrail.load(folder).metrics["9"] == [1, 2]


def test_a_file_that_is_cut_while_the_model_is_in_use(tmp_path):
    model, folder = small(tmp_path)
    again = vitrail.load(folder)
    os.truncate(folder / "model.safetensors", 0)
    assert torch.equal(again.cls, model.cls)  # a mapped file would end the process: SIGBUS


def test_half_precision_on_disk_is_single_in_use(tmp_path, model):
    vitrail.save(model, tmp_path / "single")
    convert(tmp_path / "single", tmp_path / "half", precision="float16")
    single, half = (tmp_path / name / "model.safetensors" for name in ("single", "half"))
    assert {w.dtype for w in load_file(half).values()} == {torch.float16}
    assert {w.dtype for w in load_file(single).values()} == {torch.float32}
    again = vitrail.load(tmp_path / "half").eval()
    assert all(p.dtype == torch.float32 for p in again.parameters())
    assert again.config == model.config and again.preprocess == model.preprocess
    x = torch.randn(2, 3, *model.config.image_size)
    y = model(x)
    assert (again(x) - y).abs().max() < 0.003 * y.abs().max()


@given(st.lists(st.floats(-60_000, 60_000, width=32), min_size=1))
def test_half_precision_rounds_to_11_bits(values):
    config = make_config("mu/8", image_size=16)
    w = torch.tensor(values)
    stored = cast_weights(Checkpoint(config, {"w": w}, ""), "float16").weights["w"]
    # Half a unit of the last place: of 11 bits, and below 2^-14 of the smallest step, 2^-24.
    assert ((stored.float() - w).abs() <= torch.maximum(w.abs() * 2**-11, torch.tensor(2.0**-25))).all()


def test_weights_that_half_precision_cannot_hold(tmp_path):
    model, folder = small(tmp_path)
    with torch.no_grad():
        model.cls[0, 0, 0] = 70_000.0
    vitrail.save(model, folder)
    with pytest.raises(CheckpointError, match=r"65,504, .* float16: cls"):
        convert(folder, tmp_path / "half", precision="float16")
    assert not (tmp_path / "half").exists()


def test_unknown_precisions(tmp_path):
    _, folder = small(tmp_path)
    with pytest.raises(ConfigError, match="'float8' is not one of float32, float16"):
        convert(folder, tmp_path / "f8", precision="float8")
    with pytest.raises(ConfigError, match=r"'float16' .* for a bundle, not for timm"):
        convert(folder, tmp_path / "t", to="timm", precision="float16")


def test_a_card_names_only_the_parts_of_later_models_that_a_model_has():
    plain, later = (make_config("mu/8", image_size=16, **parts) for parts in ({}, {"registers": 2}))
    assert config_to_json(later) == config_to_json(plain) | {"registers": 2}
    for config in (plain, later):
        assert config_from_json(config_to_json(config), "card") == config


CALIBRATION = Calibration(1.7, (0.2, 0.5, 0.9), fitted={"data": "photos:validation", "n": 40})


def test_a_calibration_comes_back(tmp_path):
    model, place = small(tmp_path)
    assert "calibration" not in json.loads((place / "model.json").read_text())
    model.calibration = CALIBRATION
    vitrail.save(model, place)
    assert vitrail.load(place).calibration == CALIBRATION
    assert vitrail.load(place, image_size=24).calibration == Calibration()
    assert vitrail.load(place, classes=4).calibration == Calibration()
    model.calibration = Calibration(thresholds=(0.5,))
    with pytest.raises(ConfigError, match="1 thresholds for 3 classes"):
        vitrail.save(model, place)


@pytest.mark.parametrize("entry", [{"temperature": -1}, {"thresholds": [0.5]}, {"other": 1}])
def test_a_wrong_calibration_is_refused(tmp_path, entry):
    _, place = small(tmp_path)
    card = json.loads((place / "model.json").read_text()) | {"calibration": entry}
    (place / "model.json").write_text(json.dumps(seal_card(card, place / "model.safetensors")))
    with pytest.raises(CheckpointError, match=r"calibration|threshold|temperature"):
        vitrail.load(place)
