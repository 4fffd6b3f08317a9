"""Adapters apart from their base: what a run writes, what it amounts to, and what is refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrail
from tests.randomise import randomise
from tests.train.small import experiment
from vitrail.checkpoints import adapter
from vitrail.checkpoints.bundle import seal_card
from vitrail.checkpoints.formats import convert
from vitrail.errors import CheckpointError, ConfigError
from vitrail.train.run import run

SETTINGS = {"tune": "lora:2", "save_adapter": True, "dropout": None, "drop_path": None, "lr": 0.01}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = tmp_path_factory.mktemp("base") / "base"
    model = randomise(vitrail.create("mu/8", classes=7, image_size=16, depth=2))
    model.license = {"weights": "CC0-1.0"}
    vitrail.save(model, path)
    return path


@pytest.fixture(scope="module")
def tuned(base, tmp_path_factory):
    return run(
        experiment(model=str(base), image_size=24, **SETTINGS),
        tmp_path_factory.mktemp("run") / "run",
        device="cpu",
    )


@pytest.fixture
def copy(tuned, tmp_path):
    return shutil.copytree(tuned.folder / "adapter", tmp_path / "adapter")


def test_base_and_adapters_amount_to_the_bundle(tuned, base):
    """Also at another image size, and with averaged weights: bit by bit."""
    whole, applied = tuned.model(), vitrail.load(base, adapter=tuned.folder / "adapter")
    assert whole.state_dict().keys() == applied.state_dict().keys()
    assert all(torch.equal(w, applied.state_dict()[name]) for name, w in whole.state_dict().items())
    for field in ("config", "preprocess", "class_names", "metrics", "provenance", "license"):
        assert getattr(whole, field) == getattr(applied, field), field
    before = vitrail.load(base, classes=10, image_size=24).state_dict()
    changed = {name for name, w in whole.state_dict().items() if not torch.equal(w, before[name])}
    layers = ("attention.qkv", "attention.out", "mlp.fc1", "mlp.fc2")
    kernels = {f"encoder.blocks.{i}.{layer}.weight" for i in (0, 1) for layer in layers}
    assert changed == kernels | {"head.classifier.weight", "head.classifier.bias"}


def test_the_checkpoints_of_the_run_keep_base_and_adapters_apart(tuned, base):
    state = load_file(sorted(tuned.folder.glob("checkpoints/step-*/state.safetensors"))[-1])
    name = "model.encoder.blocks.0.attention.qkv"
    assert torch.equal(
        state[f"weights.{name}.base.weight"],
        vitrail.load(base).state_dict()["encoder.blocks.0.attention.qkv.weight"],
    )
    assert {
        f"weights.{name}.down.weight",
        f"ema.{name}.up.weight",
        f"optimizer.{name}.up.weight.exp_avg",
    } <= state.keys()
    assert not any(".base." in key for key in state if not key.startswith("weights."))


def test_it_is_small(tuned):
    own, whole = (
        (tuned.folder / name).stat().st_size
        for name in ("adapter/adapter.safetensors", "model/model.safetensors")
    )
    assert own < whole / 3


def test_convert_merges_them(tuned, base, tmp_path):
    convert(base, tmp_path / "merged", adapter=tuned.folder / "adapter")
    merged, whole = (
        vitrail.load(path).state_dict() for path in (tmp_path / "merged", tuned.folder / "model")
    )
    assert all(torch.equal(w, merged[name]) for name, w in whole.items())


def test_adapters_that_are_gone_are_written_again(tuned, base):
    before = (tuned.folder / "adapter/adapter.safetensors").read_bytes()
    shutil.rmtree(tuned.folder / "adapter")
    again = run(experiment(model=str(base), image_size=24, **SETTINGS), tuned.folder, device="cpu")
    assert again.results == tuned.results
    assert (tuned.folder / "adapter/adapter.safetensors").read_bytes() == before


def test_other_weights_are_refused(copy, base, tmp_path):
    other = vitrail.load(base)
    with torch.no_grad():
        other.encoder.norm.bias[0] += 1e-3
    vitrail.save(other, tmp_path / "other")
    with pytest.raises(CheckpointError, match="trained for other weights"):
        vitrail.load(tmp_path / "other", adapter=copy)
    # Of a base, the head does not count: it is never kept.
    vitrail.save(vitrail.load(base, classes=3), tmp_path / "headless")
    assert vitrail.load(tmp_path / "headless", adapter=copy).config.classes == 10


def rewrite(folder, change_card=lambda card: None, change_weights=lambda weights: None):
    card, weights = json.loads((folder / adapter.CARD).read_text()), load_file(folder / adapter.WEIGHTS)
    change_weights(weights)
    save_file(weights, folder / adapter.WEIGHTS)
    change_card(card)
    card.pop("sha256")
    (folder / adapter.CARD).write_text(json.dumps(seal_card(card, folder / adapter.WEIGHTS, adapter.CARD)))


QKV = "encoder.blocks.0.attention.qkv"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"change_card": lambda card: card.update(scale=8)}, "scale 8"),
        ({"change_card": lambda card: card.update(version=2)}, "reads up to 1"),
        ({"change_card": lambda card: card["architecture"].update(mlp_dim=64)}, "mlp_dim 64, not 128"),
        ({"change_card": lambda card: card.update(class_names=["a"])}, "1 class names for 10"),
        ({"change_card": lambda card: card.update(preprocess="shell(rm)")}, "adapter.json"),
        ({"change_weights": lambda w: w.pop(f"{QKV}.up.weight")}, "up.weight is missing"),
        ({"change_weights": lambda w: w.update({"cls": torch.zeros(1, 1, 32)})}, "cls is unknown"),
        ({"change_weights": lambda w: w.update({f"{QKV}.down.weight": torch.zeros(2, 31)})}, r"\(2, 31\)"),
        ({"change_weights": lambda w: w.update({"head.classifier.bias": torch.zeros(3)})}, r"bias is \(3,\)"),
        (
            {"change_weights": lambda w: w.update({f"x.{s}.weight": torch.zeros(2, 2) for s in ("down", "up")})},
            "x is no layer",
        ),
        ({"change_weights": lambda w: w.update({f"{QKV}.up.weight": torch.full((96, 2), torch.nan)})}, "not finite"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(copy, base, change, words):
    rewrite(copy)
    vitrail.load(base, adapter=copy)  # unchanged it fits
    rewrite(copy, **change)
    with pytest.raises(CheckpointError, match=words):
        vitrail.load(base, adapter=copy)


def test_damage_is_found(copy, base):
    file = copy / adapter.WEIGHTS
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        vitrail.load(base, adapter=copy)
    with pytest.raises(CheckpointError, match="cannot be read"):
        vitrail.load(base, adapter=copy / "none")


@pytest.mark.parametrize("settings", [{"tune": "head"}, {"model": "mu/8@16"}])
def test_only_adapters_to_weights_can_be_saved(base, tmp_path, settings):
    with pytest.raises(ConfigError, match="save_adapter is for"):
        run(experiment(**({"model": str(base), **SETTINGS} | settings)), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
