"""A fresh B/16 against the table of the published code: mean, spread and bound of every kind of parameter."""

import math

import pytest
import torch

from vitrail.models.initialisation import TRUNCATED_STD
from vitrail.models.names import build, make_config
from vitrail.models.resnet import BiTConfig, StemConfig

D, M = 768, 3072


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(0)
    model = build(make_config("B/16", depth=2, pre_logits=D, head_bias=-10.0))
    return {name: w.detach() for name, w in model.named_parameters()}


def xavier(fan_in, fan_out):
    return math.sqrt(6 / (fan_in + fan_out))


def lecun(fan_in):
    return 2 * fan_in**-0.5 / TRUNCATED_STD  # cut at two standard deviations of the parent normal


# ending of the name: (standard deviation, bound or None)
SPREAD = {
    "embedding.weight": ((16 * 16 * 3) ** -0.5, lecun(16 * 16 * 3)),
    "positions.table": (0.02, None),
    "attention.qkv.weight": (xavier(D, D) / 3**0.5, xavier(D, D)),
    "attention.out.weight": (xavier(D, D) / 3**0.5, xavier(D, D)),
    "mlp.fc1.weight": (xavier(D, M) / 3**0.5, xavier(D, M)),
    "mlp.fc2.weight": (xavier(D, M) / 3**0.5, xavier(D, M)),
    "mlp.fc1.bias": (1e-6, None),
    "mlp.fc2.bias": (1e-6, None),
    "head.pre_logits.weight": (D**-0.5, lecun(D)),
}
CONSTANT = {
    "embedding.bias": 0, "cls": 0, "qkv.bias": 0, "out.bias": 0, "head.pre_logits.bias": 0,
    "head.classifier.weight": 0, "head.classifier.bias": -10,
    "norm1.weight": 1, "norm1.bias": 0, "norm2.weight": 1, "norm2.bias": 0, "norm.weight": 1, "norm.bias": 0,
}  # fmt: skip


def kind(name, table):
    return next((row for row in table if name.endswith(row)), None)


def test_every_parameter_is_in_one_of_the_two_lists(weights):
    for name in weights:
        assert (kind(name, SPREAD) is None) != (kind(name, CONSTANT) is None), name


@pytest.mark.parametrize("row", SPREAD)
def test_random_kinds(weights, row):
    std, bound = SPREAD[row]
    rows = [w for name, w in weights.items() if kind(name, SPREAD) == row]
    assert rows
    for w in rows:
        assert w.mean().item() == pytest.approx(0, abs=5 * std / w.numel() ** 0.5)
        assert w.std().item() == pytest.approx(std, rel=6 / w.numel() ** 0.5 + 1e-3)
        if bound is not None:
            assert w.abs().max().item() <= bound
            assert w.abs().max().item() > 0.98 * bound


def test_each_third_of_qkv_has_the_bound_of_a_square_matrix(weights):
    for part in weights["encoder.blocks.0.attention.qkv.weight"].chunk(3):
        assert 0.99 * xavier(D, D) < part.abs().max().item() <= xavier(D, D)


@pytest.mark.parametrize("row", CONSTANT)
def test_constant_kinds(weights, row):
    rows = [w for name, w in weights.items() if kind(name, CONSTANT) == row]
    assert rows
    assert all((w == CONSTANT[row]).all() for w in rows)


def test_residual_branches_of_the_stem_start_at_zero_and_those_of_bit_do_not():
    hybrid = build(
        make_config("R50+B/16", depth=1, width=24, heads=2, image_size=32, stem=StemConfig((1, 1), 0.5))
    )
    assert (hybrid.stem.stages[0][0].norm3.weight == 0).all()
    assert (hybrid.stem.stages[0][0].norm2.weight == 1).all()
    bit = build(BiTConfig((1, 1), 0.5, 32))
    assert (bit.stages[0][0].norm3.weight == 1).all()
    w = bit.stages[1][0].conv2.weight
    assert w.std().item() == pytest.approx(w[0].numel() ** -0.5, rel=0.05)


def test_attention_pooling_as_published():
    torch.manual_seed(0)
    pool = build(make_config("B/16", depth=1, pool="attention")).attention_pool
    assert pool.probe.abs().max().item() == pytest.approx(xavier(1, D), rel=0.02)
    assert pool.kv.weight.abs().max().item() == pytest.approx(xavier(D, D), rel=0.01)
    assert pool.kv.weight.abs().max().item() <= xavier(D, D)
