import pytest
import torch

import vitrail
from tests.randomise import randomise
from vitrail.errors import CheckpointError, ConfigError
from vitrail.inference.fp8 import (
    LARGEST,
    Dense8,
    calibrate,
    convertible_layers,
    dense_layers_in_fp8,
    measure_scales,
)


def model(**overrides):
    torch.manual_seed(0)
    fields = {"classes": 5, "image_size": 16, "depth": 2, **overrides}
    return randomise(vitrail.create("mu/8", **fields)).eval()


def calibrated(vit, x):
    vit.fp8 = measure_scales(vit, lambda: vit(x))
    return vit


def test_a_layer_by_hand():
    """Rounded to four significant bits, at the scale that makes the largest 448."""
    linear = torch.nn.Linear(16, 16)
    with torch.no_grad():
        linear.weight.zero_()
        linear.weight[0, 0], linear.weight[1, 0] = 1.0, 0.3
        linear.bias.fill_(0.5)
    x = torch.zeros(1, 16)
    x[0, 0] = 2.0
    y = Dense8(linear, largest=2.0)(x)[0]
    step = 0.3 * LARGEST  # 134.4, between 128 and 256, where the numbers are 16 apart: 128
    assert step == pytest.approx(134.4)
    torch.testing.assert_close(y[:3], torch.tensor([2.0 + 0.5, 2 * 128 / 448 + 0.5, 0.5]))


def test_inputs_above_the_largest_are_cut_off():
    linear = torch.nn.Linear(16, 16, bias=True)
    torch.nn.init.eye_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    y = Dense8(linear, largest=1.0)(torch.full((1, 16), 1e6))
    torch.testing.assert_close(y, torch.ones(1, 16))


def test_the_largest_inputs_are_measured():
    vit, x = model(), torch.randn(4, 3, 16, 16)
    largest = calibrate(vit, lambda: vit(x))
    first = vit.encoder.blocks[0]
    z = vit.tokens(vit.patches(x))
    assert largest["encoder.blocks.0.attention.qkv"] == pytest.approx(first.norm1(z).abs().max().item())
    assert not any(part._forward_pre_hooks for part in vit.modules())


@pytest.mark.parametrize(("pool", "count"), [("token", 7), ("mean", 8)])
def test_layers_that_are_converted(pool, count):
    """All dense layers of the encoder, but q, k, v of a last layer that computes only the class token."""
    layers = convertible_layers(model(pool=pool))
    assert len(layers) == count
    assert ("encoder.blocks.1.attention.qkv" in layers) == (pool == "mean")
    assert not any("head" in name for name in layers)


def test_a_model_in_fp8_is_close_and_comes_back_as_it_was():
    x = torch.randn(8, 3, 16, 16)
    vit = calibrated(model(), x)
    before, parts = vit(x), dict(vit.named_modules())
    with dense_layers_in_fp8(vit):
        rounded = vit(x)
    assert 0 < (rounded - before).norm() / before.norm() < 0.2
    assert torch.equal(vit(x), before)
    assert dict(vit.named_modules()) == parts


def test_without_scales_it_says_how_to_get_them():
    with pytest.raises(ConfigError, match="vitrail calibrate"), dense_layers_in_fp8(model()):
        pass


def test_scales_of_other_weights_are_refused():
    vit = calibrated(model(), torch.randn(2, 3, 16, 16))
    with torch.no_grad():
        vit.head.classifier.bias += 1
    with pytest.raises(ConfigError, match="other weights"), dense_layers_in_fp8(vit):
        pass


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "1"])
def test_scales_that_are_no_positive_numbers_are_refused(value):
    vit = calibrated(model(), torch.randn(2, 3, 16, 16))
    vit.fp8["largest"]["encoder.blocks.0.mlp.fc1"] = value
    with pytest.raises(CheckpointError, match="positive"), dense_layers_in_fp8(vit):
        pass


def test_models_that_have_no_such_layers_are_refused():
    with pytest.raises(ConfigError, match="ViTs"):
        calibrate(vitrail.create("R50x1", classes=3, image_size=32), lambda: None)
    with pytest.raises(ConfigError, match="multiples of 16"):
        calibrate(model(width=24, heads=3, mlp_dim=40), lambda: None)


def test_scales_are_stored_with_the_model(tmp_path):
    x = torch.randn(2, 3, 16, 16)
    vit = calibrated(model(), x)
    vitrail.save(vit, tmp_path / "bundle")
    loaded = vitrail.load(tmp_path / "bundle")
    assert loaded.fp8 == vit.fp8
    with dense_layers_in_fp8(vit), dense_layers_in_fp8(loaded):
        torch.testing.assert_close(loaded(x), vit(x))
