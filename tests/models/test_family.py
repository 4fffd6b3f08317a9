"""Parts of later ViTs, by their equations and properties; tests/parity/ compares whole models with others'."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.randomise import randomise
from vitrail.errors import ConfigError
from vitrail.inference.fp8 import convertible_layers
from vitrail.inference.packed import can_pack
from vitrail.models.names import build, make_config
from vitrail.models.positions import RelativeBias2D, resample_bias
from vitrail.models.rotary import Rotary, RotaryConfig


def model(**fields):
    return randomise(
        build(make_config("mu/8", **{"image_size": 32, "depth": 2, "classes": 5} | fields))
    ).eval()


def turned(kind, q, places, pairs="adjacent", **fields):
    """q (d) at each of the places of a 5 x 4 grid."""
    config = make_config("mu/8", image_size=(40, 32), rotary=RotaryConfig(kind, pairs=pairs, **fields))
    rotary = Rotary(config)
    if kind == "learned":
        torch.nn.init.normal_(rotary.frequencies, std=0.3)
    turn = rotary(config.grid, None, q.device)[:, 0]  # (2, 1, 1 or h, T, d)
    z = q.expand(1, config.heads, config.tokens, -1)
    return rotary.rotate(z, turn)[0, 0, [config.prefix + y * 4 + x for y, x in places]]


@pytest.mark.parametrize("kind", ["grid", "unit", "learned"])
@pytest.mark.parametrize("pairs", ["adjacent", "halves"])
def test_rotary_products_depend_on_the_difference_of_places(kind, pairs):
    q, k = torch.randn(2, 16, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    a = turned(kind, q, [(0, 0), (2, 1)], pairs).detach()
    torch.manual_seed(1)
    b = turned(kind, k, [(1, 2), (3, 3), (4, 0)], pairs).detach()
    first, second = (a @ b.T).tolist()
    assert first[0] == pytest.approx(second[1], abs=1e-5)  # (1, 2) apart
    assert abs(first[0] - second[2]) > 1e-2


def test_rotary_angles_are_those_of_the_formula():
    q = torch.zeros(16)
    q[[0, 8]] = 1.0  # pairs 0 and 4: base^0, of the row and of the column
    by_patch = turned("grid", q, [(2, 3)], offset=1.0, reference=(10, 4))[0]
    y, x = 3 / 5 * 10, 4 / 4 * 4
    assert torch.allclose(
        by_patch[[0, 1, 8, 9]], torch.tensor([math.cos(y), math.sin(y), math.cos(x), math.sin(x)]), atol=1e-5
    )
    unit = turned("unit", q, [(2, 3)], base=100.0)[0]
    y, x = 2 * math.pi * (2 * 2.5 / 5 - 1), 2 * math.pi * (2 * 3.5 / 4 - 1)
    wanted = torch.tensor([math.cos(y), math.sin(y), math.cos(x), math.sin(x)])
    assert torch.allclose(unit[[0, 1, 8, 9]], wanted, atol=1e-5)


def test_rotary_positions_are_moved_in_training_only():
    config = make_config(
        "mu/8", image_size=32, rotary=RotaryConfig("unit", shift=0.1, jitter=2.0, rescale=2.0)
    )
    rotary, device = Rotary(config), torch.device("cpu")
    fixed = rotary.eval()(config.grid, None, device)
    assert torch.equal(fixed, rotary(config.grid, None, device))
    assert not torch.equal(rotary.train()(config.grid, None, device), rotary(config.grid, None, device))
    assert (rotary(config.grid, None, device)[:, :, :, :, 0] == fixed[:, :, :, :, 0]).all()  # the class token


@pytest.mark.parametrize("kind", ["grid", "unit", "learned"])
def test_rotary_positions_of_kept_patches_are_their_own(kind):
    vit = model(rotary=kind, registers=2, positions="none")
    x = torch.randn(2, 3, 32, 32)
    keep = torch.stack([torch.randperm(16) for _ in range(2)])
    with torch.no_grad():
        all_of_them = vit.encode(vit.tokens(vit.patches(x)))[:, :3]
        shuffled = vit.encode(vit.tokens(vit.patches(x), keep=keep), keep=keep)[:, :3]
    assert torch.allclose(all_of_them, shuffled, atol=1e-5)


def test_relative_bias_by_hand():
    bias = RelativeBias2D((2, 3), heads=2, prefix=1)
    with torch.no_grad():
        bias.table.copy_(torch.arange(bias.table.numel()).view_as(bias.table))
    logits = bias(torch.zeros(1, 2, 7, 4))[0]
    last = len(bias.table)
    for q in range(7):
        for k in range(7):
            (y, x), (v, u) = divmod(q - 1, 3), divmod(k - 1, 3)
            row = (y - v + 1) * 5 + x - u + 2
            if 0 in (q, k):
                row = last - 1 if q == k else last - 3 if q == 0 else last - 2
            assert torch.equal(logits[:, q, k], bias.table[row])
    places = torch.tensor([[0, 4, 2]])
    assert torch.equal(bias(torch.zeros(1, 2, 3, 4), places)[0], logits[:, [0, 4, 2]][:, :, [0, 4, 2]])
    assert torch.equal(resample_bias(bias.table, (2, 3), (2, 3)), bias.table)
    assert resample_bias(bias.table, (2, 3), (4, 4)).shape == (7 * 7 + 3, 2)


def test_gated_mlp_is_its_formula():
    mlp = model(mlp="gated", activation="silu").encoder.blocks[0].mlp
    z = torch.randn(2, 3, 32)
    g, x = F.linear(z, mlp.gated.weight, mlp.gated.bias).chunk(2, -1)
    assert torch.allclose(mlp(z), mlp.fc2(g * torch.sigmoid(g) * x), atol=1e-6)


def test_a_stride_of_its_own_is_that_of_a_convolution():
    vit = model(patch_stride=4, image_size=(32, 40))
    x = torch.randn(2, 3, 32, 40)
    assert vit.config.grid == (7, 9)
    wanted = F.conv2d(x, vit.embedding.weight, vit.embedding.bias, stride=4).flatten(2).mT
    assert torch.allclose(vit.patches(x), wanted, atol=1e-6)
    assert vit(x).shape == (2, 5)
    with pytest.raises(ConfigError, match="4 more"):
        vit(torch.randn(2, 3, 34, 40))


@pytest.mark.parametrize(
    "fields",
    [
        {"block": "post_norm"}, {"block": "parallel", "layer_scale": 0.3}, {"block": "twin"}, {"mlp": "gated"},
        {"norm": "rms", "registers": 2}, {"qkv_bias": "qv"}, {"qkv_bias": "none"}, {"rotary": "grid"},
        {"qk_norm": True}, {"attention_norm": True}, {"mlp_norm": True}, {"positions": "relative_bias"},
        {"layer_scale": 0.5, "pool": "token_and_mean"}, {"activation": "quick_gelu"},
    ],
    ids=str,
)  # fmt: skip
def test_written_out_attention_and_fast_paths_agree(fields):
    """The class token alone from the last layer, or all tokens; fused attention, or written out; in training too."""
    vit = model(**fields)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        logits = vit(x)
        record = {}
        encoded = vit.encode(vit.tokens(vit.patches(x)), record=record)
        assert torch.allclose(vit.head(vit.pool(encoded)), logits, atol=1e-5)
        assert sum(name.endswith(".attention") for name in record) == (4 if vit.config.block == "twin" else 2)
        padded = F.pad(vit.tokens(vit.patches(x)), (0, 0, 0, 3), value=7.0)
        if not fields.keys() & {"rotary", "positions"}:  # whose places are those of a whole grid
            mask = torch.ones(2, padded.shape[1], dtype=torch.bool)
            mask[:, -3:] = False
            assert torch.allclose(vit.pool(vit.encode(padded, mask=mask), mask), vit.pool(encoded), atol=1e-5)
    vit.train()(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in vit.parameters())


@pytest.mark.parametrize(
    "fields", [{"layer_scale": 0.1}, {"norm": "rms"}, {"mlp": "gated"}, {"qk_norm": True}]
)
def test_fast_paths_leave_layers_that_they_do_not_know(fields):
    assert not can_pack(model(**fields))


def test_fp8_leaves_layers_with_other_biases():
    assert not any("qkv" in name for name in convertible_layers(model(qkv_bias="qv")))
    assert any("qkv" in name for name in convertible_layers(model(pool="mean", layer_scale=0.1)))


@pytest.mark.parametrize(
    "fields",
    [
        {"rotary": "axial"}, {"rotary": {"kind": "unit", "speed": 1}}, {"rotary": {"kind": "grid", "jitter": 2.0}},
        {"activation": "swish"}, {"pool": "token_and_distillation"}, {"positions": "relative_bias", "registers": 1},
        {"block": "axial", "pool": "mean", "rotary": "grid"}, {"pool": "token_and_mean", "class_token": False},
        {"pool_heads": 5}, {"norm": "batch"}, {"registers": -1}, {"qk_norm": 1}, {"heads": 16, "rotary": "grid"},
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_exist_is_refused(fields):
    with pytest.raises(ConfigError):
        make_config("mu/8", image_size=32, **fields)
