import itertools

import pytest
import torch

from tests.models.test_vit import TINY
from tests.randomise import randomise
from vitrail.models.encoder import Layout, attention_weights
from vitrail.models.names import build, make_config

LAYOUT = Layout((2, 3))


def test_attention_weights_are_a_softmax_over_keys():
    q, k = torch.randn(2, 2, 3, 4), torch.randn(2, 2, 3, 4)
    A = attention_weights(q, k)
    torch.testing.assert_close(A.sum(-1), torch.ones(2, 2, 3))
    logits = torch.tensor([[(q[0, 0, i] * k[0, 0, j]).sum() / 2 for j in range(3)] for i in range(3)])
    torch.testing.assert_close(A[0, 0], logits.exp() / logits.exp().sum(-1, keepdim=True))


@pytest.mark.parametrize("positions", ["1d", "relative"])
@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize("block", ["standard", "axial"])
def test_recorded_and_fused_paths_agree(positions, pool, block):
    if block == "axial" and (pool == "token" or positions == "relative"):
        pytest.skip("refused by the config")
    model = randomise(build(make_config("B/16", **TINY, positions=positions, pool=pool, block=block))).eval()
    x, record = torch.randn(2, 3, 16, 24), {}
    z = model.tokens(model.patches(x))
    torch.testing.assert_close(model.encode(z, record=record), model.encode(z), rtol=1e-4, atol=1e-5)
    rows = [
        f"block{i}{part}.attention"
        for i in range(2)
        for part in (("",) if block == "standard" else (".row", ".column"))
    ]
    assert [key for key in record if key.endswith("attention")] == rows
    for key in rows:
        torch.testing.assert_close(record[key].sum(-1), torch.ones(record[key].shape[:-1]))


def test_a_block_is_equations_2_and_3():
    model = randomise(build(make_config("B/16", **TINY))).eval()
    z = torch.randn(2, 7, 24)
    block = model.encoder.blocks[0]
    middle = z + block.attention(block.norm1(z), LAYOUT)
    torch.testing.assert_close(block(z, LAYOUT), middle + block.mlp(block.norm2(middle)))


def test_axial_attention_mixes_rows_then_columns():
    """After the row half, a token depends on its row only; after the whole block on everything."""
    model = randomise(build(make_config("B/16", **TINY, pool="mean", block="axial"))).eval().double()
    block, z = model.encoder.blocks[0], torch.randn(1, 6, 24, dtype=torch.float64)
    moved = z.clone()
    moved[0, 1] = torch.randn(24)  # row 0, column 1 of a 2 x 3 grid
    records = [{}, {}]
    for record, input in zip(records, (z, moved), strict=True):
        block(input, LAYOUT, record, "b")
    rows_changed = (records[0]["b.row.z"] - records[1]["b.row.z"]).abs().amax(dim=(1, 2)) > 1e-12  # rows
    assert rows_changed.tolist() == [True, False]
    all_changed = (records[0]["b.z"] - records[1]["b.z"]).abs().amax(dim=2) > 1e-12
    assert all_changed.all()


def test_axial_halves_are_plain_blocks_along_each_axis():
    model = randomise(build(make_config("B/16", **TINY, pool="mean", block="axial"))).eval()
    block, z = model.encoder.blocks[0], torch.randn(2, 6, 24)
    expected = z.reshape(2, 2, 3, 24).clone()
    for b, row in itertools.product(range(2), range(2)):
        expected[b, row] = block.row(expected[b, row][None], LAYOUT)[0]
    for b, column in itertools.product(range(2), range(3)):
        expected[b, :, column] = block.column(expected[b, :, column][None], LAYOUT)[0]
    torch.testing.assert_close(block(z, LAYOUT), expected.reshape(2, 6, 24), rtol=1e-4, atol=1e-5)


def test_dropout_and_stochastic_depth_act_in_training_only():
    config = make_config("B/16", **TINY, dropout=0.5, attention_dropout=0.5, drop_path=0.5)
    model, x = randomise(build(config)), torch.randn(2, 3, 16, 24)
    assert torch.equal(model.eval()(x), model(x))
    assert not torch.equal(model.train()(x), model(x))


@pytest.mark.parametrize("field", ["dropout", "attention_dropout"])
def test_each_rate_alone_has_an_effect(field):
    model, x = (
        randomise(build(make_config("B/16", **TINY, **{field: 0.5}))).train(),
        torch.randn(2, 3, 16, 24),
    )
    assert not torch.equal(model(x), model(x))


def dropped_out(module, *inputs, kept):
    """Whether training zeroes about half of what evaluation gives, and keeps the others times `kept`."""
    whole, dropped = module.eval()(*inputs), module.train()(*inputs)
    zeros = dropped == 0
    torch.testing.assert_close(dropped, torch.where(zeros, 0.0, kept * whole))
    return zeros.float().mean().item()


def test_dropout_after_the_projection_of_the_heads():
    attention = randomise(build(make_config("B/16", **TINY, dropout=0.5))).encoder.blocks[0].attention
    assert dropped_out(attention, torch.randn(20, 7, 24), LAYOUT, kept=2) == pytest.approx(0.5, abs=0.05)


def test_dropout_after_each_of_the_two_layers_of_the_mlp():
    mlp = randomise(build(make_config("B/16", **TINY, dropout=0.5))).encoder.blocks[0].mlp
    z = torch.randn(20, 7, 24)
    with torch.no_grad():
        mlp.fc2.weight.copy_(torch.eye(24, 40))  # hands on what the first dropout left
        mlp.fc2.bias.zero_()
        assert dropped_out(mlp, z, kept=4) == pytest.approx(0.75, abs=0.05)
        mlp.fc2.weight.zero_()  # nothing of the first layer is left
        mlp.fc2.bias.fill_(1.0)
        assert dropped_out(mlp, z, kept=2) == pytest.approx(0.5, abs=0.05)


def test_stochastic_depth_drops_whole_branches_and_rises_linearly():
    model = randomise(build(make_config("B/16", **{**TINY, "depth": 3}, drop_path=0.8)))
    assert [block.drop_path for block in model.encoder.blocks] == pytest.approx([0, 0.4, 0.8])
    y = torch.ones(2000, 1, 1)
    dropped = model.train().encoder.blocks[2].branch(y)
    assert dropped.unique().tolist() == pytest.approx([0.0, 5.0])
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.2)


def test_gelu_is_tanh_or_exact_as_the_config_says():
    z = torch.linspace(-3, 3, 24).expand(1, 1, 24)
    outputs = {}
    for activation in ("gelu_tanh", "gelu"):
        mlp = randomise(build(make_config("B/16", **TINY, activation=activation))).encoder.blocks[0].mlp
        h = mlp.fc1(z)
        tanh = 0.5 * h * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (h + 0.044715 * h**3)))
        exact = 0.5 * h * (1 + torch.erf(h / 2**0.5))
        outputs[activation] = mlp(z)
        torch.testing.assert_close(mlp(z), mlp.fc2(tanh if activation == "gelu_tanh" else exact))
    assert not torch.equal(outputs["gelu"], outputs["gelu_tanh"])


def test_stochastic_depth_of_an_axial_block_drops_for_a_whole_example():
    model = randomise(build(make_config("B/16", **TINY, pool="mean", block="axial", drop_path=0.5))).train()
    half = model.encoder.blocks[1].row  # 2 rows of 3 patches
    dropped = half.branch(torch.ones(100 * 2, 3, 24), group=2).unflatten(0, (100, 2))[:, :, 0, 0]
    assert torch.equal(dropped[:, 0], dropped[:, 1])
    assert set(dropped.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("activation_checkpointing", [False, True])
def test_the_first_tokens_alone_are_those_of_the_whole(activation_checkpointing):
    """In value and in all gradients: the last layer leaves out what nobody reads."""
    model = randomise(build(make_config("mu/8", image_size=32, depth=2, classes=3)))
    model.encoder.activation_checkpointing = activation_checkpointing
    z = model.tokens(torch.randn(2, 16, 32))
    whole, first = model.encode(z), model.encode(z, first=1)
    assert first.shape == (2, 1, 32)
    torch.testing.assert_close(first, whole[:, :1])
    parameters = list(model.encoder.parameters())
    wanted = torch.autograd.grad(whole[:, 0].pow(2).sum(), parameters, retain_graph=True)
    got = torch.autograd.grad(first[:, 0].pow(2).sum(), parameters)
    for a, b in zip(wanted, got, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "overrides", [{"positions": "relative"}, {"pool": "mean", "block": "axial"}], ids=["relative", "axial"]
)
def test_layers_that_need_all_tokens_return_them(overrides):
    model = randomise(build(make_config("mu/8", image_size=32, depth=2, **overrides))).eval()
    z = model.tokens(torch.randn(2, 16, 32))
    assert torch.equal(model.encode(z, first=1), model.encode(z))
    assert torch.equal(model.encode(z, record={}, first=1), model.encode(z, record={}))
