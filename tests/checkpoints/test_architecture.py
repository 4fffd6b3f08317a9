"""What files do not say: asked for, or assumed and said; never in silence."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vitrail
from tests.checkpoints.google_files import filled, vit_shapes
from tests.randomise import randomise
from vitrail.checkpoints.architecture import Hints, Inference, count_numbered, find_grid
from vitrail.checkpoints.formats import convert
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.vit import ViTConfig

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
        with pytest.raises(CheckpointError, match=f"{name}={value} was passed"):
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
    with pytest.raises(CheckpointError, match=r"pass heads= and activation=gelu or =gelu_tanh .*, or put"):
        vitrail.load(path)
    with pytest.raises(CheckpointError, match="pass activation="):
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
    with pytest.raises(CheckpointError, match="has pool=token, but pool=mean was passed"):
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
    with pytest.raises(CheckpointError, match="has no activation, as a ResNet, but activation=gelu"):
        vitrail.load(tmp_path / "m", activation="gelu")


def test_who_decides() -> None:
    inference = Inference("a.pth", Hints(activation="gelu_tanh"))
    assert inference.choose("activation", "gelu") == "gelu_tanh"
    assert inference.choose("pool", "token", sure=True) == "token"
    assert inference.assumed == {}
    assert inference.choose("norm_eps", 1e-6) == 1e-6
    assert inference.assumed == {"norm_eps": 1e-6}
    inference.stated = {"norm_eps": 0.0, "activation": None}
    assert inference.choose("norm_eps", 1e-6) == 0.0
    assert inference.choose("activation", "gelu") == "gelu_tanh"


def test_a_contradiction_is_an_error() -> None:
    Hints(heads=12, pool="token").check(ViTConfig(), "a.pth")
    with pytest.raises(CheckpointError, match=r"a\.pth has heads=12, but heads=8 was passed"):
        Hints(heads=8).check(ViTConfig(), "a.pth")


def test_on_the_command_line(tmp_path: Path, vitrail_command: Any) -> None:
    path = bare(tmp_path, "timm", pool="mean")
    assert "pass heads= and activation=" in vitrail_command("convert", path, tmp_path / "b")[2]
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


# --- heads, grids, layers ---

B = (768, 12, 3072)


def heads(
    sizes: tuple[int, int, int], asked: int | None = None, configured: int | None = None
) -> tuple[int, str]:
    inference = Inference("a.pth", Hints(heads=asked), stated={"heads": configured})
    return inference.choose_heads(*sizes), inference.heads_source


def test_the_argument_then_the_config_file_then_the_variant() -> None:
    assert heads(B, asked=8) == (8, "argument")
    assert heads(B, asked=8, configured=8) == (8, "argument")
    assert heads(B, configured=6) == (6, "config file")
    assert heads(B) == (12, "the known variant B")


def test_s_wins_over_the_half_of_b_and_it_is_said() -> None:
    assert heads((384, 12, 1536)) == (6, "the known variant S; B-half has 12: heads=12")


def test_unknown_sizes_ask() -> None:
    with pytest.raises(CheckpointError, match="width 768, depth 11 and mlp_dim 3072: pass heads="):
        heads((768, 11, 3072))


def test_a_square_needs_nothing() -> None:
    assert find_grid((9,), 16, None, None, "a") == (3, 3)
    assert find_grid((9, 10), 16, None, (32, 32), "a") == (3, 3)
    assert find_grid((8, 9), 16, None, None, "a") == (3, 3)  # the class token has no position


def test_another_grid_asks() -> None:
    with pytest.raises(
        CheckpointError, match=r"15 patches of 16 pixels, which are not a square: pass image_size="
    ):
        find_grid((15,), 16, None, None, "a")
    with pytest.raises(CheckpointError, match="pass image_size="):
        find_grid((15,), 16, None, (48, 48), "a")
    assert find_grid((15,), 16, None, (48, 80), "a") == (3, 5)
    assert find_grid((15,), 16, (80, 48), None, "a") == (5, 3)
    assert find_grid((14, 15), 16, None, (48, 80), "a") == (3, 5)
    assert find_grid((15, 16), 16, None, (48, 80), "a") == (3, 5)  # not a square that is less likely


def test_a_config_file_that_does_not_fit() -> None:
    with pytest.raises(CheckpointError, match=r"4 patches .* says images of \(224, 224\), which have 196"):
        find_grid((4,), 16, 224, None, "a")
    assert find_grid((4,), 16, 224, 32, "a") == (2, 2)  # what is asked for settles it


@given(rows=st.integers(1, 40), columns=st.integers(1, 40), stride=st.integers(1, 32))
def test_a_size_that_is_said_gives_its_grid(rows: int, columns: int, stride: int) -> None:
    size = (rows * stride, columns * stride)
    assert find_grid((rows * columns,), stride, size, None, "a") == (rows, columns)


def test_layers_are_counted_without_gaps() -> None:
    assert count_numbered(["blocks.0.a", "blocks.1.a", "blocks.1.b", "norm"], r"blocks\.(\d+)\.", "a") == 2
    with pytest.raises(CheckpointError, match=r"^its layers have gaps: counted from 0, there are \[0, 2\]$"):
        count_numbered(["blocks.0.a", "blocks.2.a"], r"blocks\.(\d+)\.", "its layers")
