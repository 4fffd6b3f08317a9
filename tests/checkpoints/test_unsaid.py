"""What files do not say: asked for, or assumed and said; never in silence."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from tests.checkpoints.google_files import filled, vit_shapes
from tests.randomise import randomise
from vitrail.checkpoints.formats import convert
from vitrail.checkpoints.unsaid import Asked, Choices
from vitrail.errors import CheckpointError, ConfigError

FIELDS = {
    "width": 24,
    "depth": 2,
    "mlp_dim": 40,
    "heads": 3,
    "image_size": 16,
    "classes": 5,
    "activation": "gelu",
}
ALL = {"heads": 3, "activation": "gelu", "norm_eps": 1e-6, "pool": "token"}


def bare(folder: Path, to: str, **fields: Any) -> Path:
    """A state dict in the names of another library, with no config file."""
    model = randomise(vitrail.create("B/8", **(FIELDS | fields)))
    path = folder / ("m.pth" if to == "torchvision" else "m")
    vitrail.save(model, path, to=to)
    for config in path.glob("*.json") if path.is_dir() else ():
        config.unlink()
    return path


def noted(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(
        record.getMessage() for record in caplog.records if "does not say" in record.getMessage()
    )


LIBRARIES = {"timm": 1e-6, "huggingface": 1e-12, "torchvision": 1e-6}  # and their epsilon


@pytest.mark.parametrize("to", LIBRARIES)
def test_what_is_assumed_is_said_and_kept(to: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = bare(tmp_path, to)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        model = vitrail.load(path, heads=3)
    assumed = model.provenance["assumed"]
    assert assumed["activation"] == model.config.activation == "gelu"
    assert assumed["norm_eps"] == model.config.norm_eps == LIBRARIES[to]
    assert assumed["preprocess"] == model.preprocess
    assert assumed.get("image_size") == (None if to == "torchvision" else "16x16")  # whose images are square
    assert all(f"{name}={value}" in noted(caplog) for name, value in assumed.items())
    assert noted(caplog).count("\n") == 0
    vitrail.save(model, tmp_path / "bundle")
    assert vitrail.load(tmp_path / "bundle").provenance["assumed"] == assumed


@pytest.mark.parametrize("to", LIBRARIES)
def test_what_is_said_is_not_assumed(to: str, tmp_path: Path) -> None:
    path = bare(tmp_path, to)
    said = {"activation": "gelu_tanh", "norm_eps": 1e-3}
    model = vitrail.load(path, heads=3, **said)
    assert (model.config.activation, model.config.norm_eps) == ("gelu_tanh", 1e-3)
    assert not {*said, "heads"} & model.provenance["assumed"].keys()


def test_four_patches_are_taken_for_a_square_unless_it_is_said(tmp_path: Path) -> None:
    path = bare(tmp_path, "timm")
    assert vitrail.load(path, heads=3).provenance["assumed"]["image_size"] == "16x16"
    assert "image_size" not in vitrail.load(path, heads=3, image_size=16).provenance["assumed"]
    assert vitrail.load(path, heads=3, image_size=32).provenance["assumed"]["image_size"] == "16x16"


def test_heads_of_a_known_variant_are_assumed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = bare(tmp_path, "timm", width=32, depth=1, mlp_dim=128, heads=2)
    with caplog.at_level(logging.WARNING):
        assert vitrail.load(path).provenance["assumed"]["heads"] == 2
    assert "heads=2" in noted(caplog)


@pytest.mark.parametrize("to", ["timm", "huggingface", "bundle"])
def test_a_file_that_says_it_all_is_read_in_silence(
    to: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = vitrail.create("B/8", **FIELDS)
    model.preprocess = "resize(16, pillow_bilinear)|uint8|normalize(0.5, 0.5)"
    vitrail.save(model, tmp_path / "m", to=to)
    with caplog.at_level(logging.WARNING):
        vitrail.load(tmp_path / "m")
        vitrail.load(tmp_path / "m", **ALL)
    assert not noted(caplog)
    contradictions = {"heads": 4, "activation": "gelu_tanh", "pool": "mean"}
    for name, value in contradictions.items():
        with pytest.raises(CheckpointError, match=f"{name}={value} was asked for"):
            vitrail.load(tmp_path / "m", **{name: value})


def test_an_architecture_of_timm_that_is_not_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A function of a later timm may have another activation, as SigLIP's have."""
    vitrail.save(vitrail.create("B/8", **FIELDS), tmp_path / "m", to="timm")
    card = json.loads((tmp_path / "m" / "config.json").read_text())
    card |= {"architecture": "vit_base_patch8_new_16"}
    del card["model_args"]["act_layer"]
    (tmp_path / "m" / "config.json").write_text(json.dumps(card))
    with caplog.at_level(logging.WARNING):
        assert vitrail.load(tmp_path / "m").provenance["assumed"].keys() == {"activation", "norm_eps"}
    assert "activation=gelu" in noted(caplog)


def test_without_a_class_token_it_is_asked_for(tmp_path: Path) -> None:
    path = bare(tmp_path, "timm", pool="mean")
    with pytest.raises(CheckpointError, match=r"say heads= and activation=gelu or =gelu_tanh .*, or put"):
        vitrail.load(path)
    with pytest.raises(CheckpointError, match="say activation="):
        vitrail.load(path, heads=3)
    assert vitrail.load(path, heads=3, activation="gelu_tanh").config.activation == "gelu_tanh"


def test_norms_after_the_layers_are_not_taken_for_norms_before(tmp_path: Path) -> None:
    """timm's ResPostBlock has the names and shapes of its Block; its model has no biases of q, k and v."""
    path = bare(tmp_path, "timm", pool="mean", norm_at="pooled") / "model.safetensors"
    tensors = {k: w for k, w in torch_tensors(path).items() if not k.endswith("qkv.bias")}
    torch.save(tensors, tmp_path / "rpn.pth")
    with pytest.raises(CheckpointError, match="vit_base_patch16_rpn_224"):
        vitrail.load(tmp_path / "rpn.pth", heads=3, activation="gelu")


def torch_tensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def test_an_npz_of_other_code(tmp_path: Path) -> None:
    """It is read as the published code's; what such a file cannot say can be said."""
    np.savez(tmp_path / "x.npz", **filled(vit_shapes()))
    config = vitrail.load(tmp_path / "x.npz").config
    assert (config.activation, config.norm_eps) == ("gelu_tanh", 1e-6)
    config = vitrail.load(tmp_path / "x.npz", activation="gelu", norm_eps=1e-5).config
    assert (config.activation, config.norm_eps) == ("gelu", 1e-5)
    with pytest.raises(CheckpointError, match="has pool=token, but pool=mean was asked for"):
        vitrail.load(tmp_path / "x.npz", pool="mean")


@pytest.mark.parametrize(
    "wrong",
    [{"activation": "relu"}, {"pool": "max"}, {"norm_eps": -1.0}, {"heads": 0}, {"heads": 1.5}],
)  # fmt: skip
def test_what_cannot_be_asked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        vitrail.load("ti8-64", **wrong)


def test_a_resnet_has_none_of_it(tmp_path: Path) -> None:
    vitrail.save(vitrail.create("R50x1", units=(1,), image_size=32, classes=3), tmp_path / "m")
    with pytest.raises(CheckpointError, match="has no activation, but activation=gelu was asked for"):
        vitrail.load(tmp_path / "m", activation="gelu")


def test_who_decides() -> None:
    choices = Choices(Asked(activation="gelu_tanh"), "a.pth")
    assert choices.of("activation", None, "gelu") == "gelu_tanh"
    assert choices.of("norm_eps", 0.0, 1e-6) == 0.0
    assert choices.of("pool", None, "token", sure=True) == "token"
    assert choices.assumed == {}
    assert choices.of("norm_eps", None, 1e-6) == 1e-6
    assert choices.assumed == {"norm_eps": 1e-6}
    with pytest.raises(CheckpointError, match=r"a\.pth: activation=gelu_tanh was asked for, but it has gelu"):
        choices.of("activation", "gelu", "gelu")


def test_on_the_command_line(tmp_path: Path, vitrail_command: Any) -> None:
    path = bare(tmp_path, "timm", pool="mean")
    assert "say heads= and activation=" in vitrail_command("convert", path, tmp_path / "b")[2]
    words = ["--heads", 3, "--activation", "gelu_tanh", "--norm-eps", 1e-5, "--pool", "mean"]
    code, _, err = vitrail_command("convert", path, tmp_path / "b", *words)
    assert code == 0, err
    config = vitrail.load(tmp_path / "b").config
    assert (config.heads, config.activation, config.norm_eps) == (3, "gelu_tanh", 1e-5)


def test_convert_in_python(tmp_path: Path) -> None:
    made = convert(
        bare(tmp_path, "torchvision"), tmp_path / "b", heads=3, activation="gelu_tanh", norm_eps=1e-5
    )
    assert (made.config.activation, made.config.norm_eps) == ("gelu_tanh", 1e-5)
