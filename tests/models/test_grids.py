"""Tokens and grids as data: images of other sizes, patches that are kept, sequences that are padded or packed."""

import pytest
import torch

from tests.models.test_vit import TINY
from tests.randomise import randomise
from vitrail.checkpoints.checkpoint import change_image_size, from_model, to_model
from vitrail.errors import ConfigError
from vitrail.models.names import build, make_config

OTHER = [(24, 16), (8, 40), (32, 32), (16, 24)]
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def model_of(name="B/16", **overrides):
    return randomise(build(make_config(name, **{**TINY, **overrides}))).eval()


@pytest.mark.parametrize("size", OTHER, ids=str)
@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"pool": "mean"},
        {"pool": "attention", "positions": "2d"},
        {"positions": "sincos", "positions_at": "every"},
        {"positions": "1d", "positions_at": "shared"},
        {"pool": "mean", "positions": "2d", "positions_at": "every"},
        {"pool": "mean", "block": "axial"},
        {"positions": "none"},
    ],
    ids=str,
)
def test_another_size_is_as_if_loaded_at_that_size(overrides, size):
    model, x = model_of(**overrides), torch.randn(2, 3, *size)
    model.preprocess = "resize(16, 24)|uint8|to_range(-1, 1)"
    loaded = to_model(change_image_size(from_model(model), size))
    torch.testing.assert_close(model(x), loaded(x), **CLOSE)


@pytest.mark.parametrize("name", ["R50+B/16", "R50x1"])
def test_hybrids_and_resnets_take_other_sizes(name):
    model = randomise(
        build(make_config(name, classes=5, image_size=32, **({} if "x" in name else {"depth": 1})))
    ).eval()
    x = torch.randn(1, 3, 64, 32)
    assert model(x).shape == (1, 5)
    stride = 32 if name == "R50x1" else 16
    assert model.feature_map(x).shape == (1, model.config.width, 64 // stride, 32 // stride)


def test_relative_positions_have_no_other_grid():
    with pytest.raises(ConfigError, match="2x3 patches have no counterpart on 3x2"):
        model_of(positions="relative")(torch.randn(1, 3, 24, 16))


def test_a_grid_that_is_not_that_of_the_patches_is_refused():
    model = model_of()
    with pytest.raises(ConfigError, match="5 patches are not a grid of 2x3"):
        model.tokens(torch.randn(1, 5, 24))


@pytest.mark.parametrize("pool", ["token", "mean"])
def test_the_feature_map_has_the_patches_in_their_places(pool):
    model, x = model_of(pool=pool), torch.randn(2, 3, 16, 40)
    made = model.feature_map(x)
    assert made.shape == (2, 24, 2, 5)
    z = model.encode(model.tokens(model.patches(x), (2, 5)), (2, 5))
    torch.testing.assert_close(made[1, :, 1, 2], z[1, model.config.prefix + 7])
    if pool == "mean":
        torch.testing.assert_close(made.mean(dim=(2, 3)), model.features(x), **CLOSE)


POSITIONS = [
    {},
    {"pool": "mean", "positions": "2d"},
    {"positions": "sincos", "positions_at": "every"},
    {"positions": "1d", "positions_at": "shared"},
    {"positions": "relative"},
    {"positions": "relative", "positions_at": "shared", "pool": "mean"},
]


@pytest.mark.parametrize("overrides", POSITIONS, ids=str)
def test_all_patches_kept_in_order_change_nothing(overrides):
    model, x = model_of(**overrides), torch.randn(2, 3, 16, 24)
    keep = torch.arange(6).expand(2, -1)
    z = model.patches(x)
    torch.testing.assert_close(
        model.encode(model.tokens(z, keep=keep), keep=keep), model.encode(model.tokens(z)), **CLOSE
    )


@pytest.mark.parametrize("overrides", POSITIONS, ids=str)
def test_kept_patches_are_those_that_a_mask_leaves(overrides):
    """Dropping patches gives what attending to no other gives: values and positions stay with their patch."""
    model, x = model_of(**overrides), torch.randn(2, 3, 16, 24)
    prefix, keep = model.config.prefix, torch.tensor([[4, 0, 3], [5, 1, 2]])
    z = model.patches(x)
    few = model.encode(model.tokens(z, keep=keep), keep=keep)
    assert few.shape == (2, prefix + 3, 24)
    mask = torch.zeros(2, prefix + 6, dtype=torch.bool)
    mask[:, :prefix] = True
    mask.scatter_(1, keep + prefix, True)
    whole = model.encode(model.tokens(z), mask=mask)
    for b in range(2):
        at = [*range(prefix), *(keep[b] + prefix).tolist()]
        torch.testing.assert_close(few[b], whole[b, at], **CLOSE)


@pytest.mark.parametrize("overrides", [*POSITIONS, {"pool": "attention"}], ids=str)
@pytest.mark.parametrize("recorded", [False, True])
def test_padding_changes_nothing(overrides, recorded):
    model, x = model_of(**overrides), torch.randn(2, 3, 16, 24)
    prefix, n = model.config.prefix, 4
    keep = torch.arange(n).expand(2, -1)
    short = model.tokens(model.patches(x), keep=keep)
    padded = torch.cat([short, torch.full((2, 2, 24), 1e3)], dim=1)
    places = torch.cat([keep, torch.zeros(2, 2, dtype=torch.long)], dim=1)  # of padding: any
    mask = torch.arange(prefix + n + 2).expand(2, -1) < prefix + n
    expected = model.encode(short, keep=keep)
    got = model.encode(padded, keep=places, mask=mask, record={} if recorded else None)
    torch.testing.assert_close(got[:, : prefix + n], expected, **CLOSE)
    torch.testing.assert_close(model.pool(got, mask), model.pool(expected), **CLOSE)


def test_packed_sequences_do_not_see_each_other():
    model = model_of(pool="mean", positions="none")
    a, b = torch.randn(1, 2, 24), torch.randn(1, 4, 24)
    owner = torch.tensor([[0, 0, 1, 1, 1, 1]])
    mask = owner[:, :, None] == owner[:, None]  # (B, T, T)
    packed = model.encode(torch.cat([a, b], dim=1), mask=mask)
    torch.testing.assert_close(packed[:, :2], model.encode(a), **CLOSE)
    torch.testing.assert_close(packed[:, 2:], model.encode(b), **CLOSE)


def test_axial_attention_takes_whole_grids_only():
    model = model_of(pool="mean", block="axial")
    z = model.tokens(model.patches(torch.randn(1, 3, 16, 24)))
    with pytest.raises(ConfigError, match="neither keep nor mask"):
        model.encode(z, mask=torch.ones(1, 6, dtype=torch.bool))


def test_other_sizes_and_kept_patches_train_with_recomputation():
    model = model_of(positions="1d", positions_at="every", dropout=0.0).train()
    model.encoder.activation_checkpointing = True
    keep = torch.tensor([[0, 5, 7], [1, 2, 3]])
    z = model.tokens(model.patches(torch.randn(2, 3, 24, 24)), (3, 3), keep)
    model.pool(model.encode(z, (3, 3), keep)).sum().backward()
    assert all(table.table.grad.abs().sum() > 0 for table in model.encoder.positions)
