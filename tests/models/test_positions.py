"""Each kind of E_pos against its formula written out in loops."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.models.names import build, make_config
from vitrail.models.positions import (
    RESAMPLE,
    Learned1D,
    Learned2D,
    Relative1D,
    SinCos2D,
    resample,
    resample_axis,
)

GRID = (2, 3)


def test_1d_adds_one_row_to_each_token_in_raster_order():
    positions = Learned1D(GRID, width=8, prefix=1)
    torch.nn.init.normal_(positions.table)
    z = torch.randn(4, 7, 8)
    expected = torch.stack([z[:, t] + positions.table[0, t] for t in range(7)], dim=1)
    torch.testing.assert_close(z + positions(GRID), expected)


@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_2d_adds_x_and_y_halves_and_nothing_to_the_tokens_before_the_patches(prefix):
    positions = Learned2D(GRID, width=8, prefix=prefix)
    torch.nn.init.normal_(positions.x)
    torch.nn.init.normal_(positions.y)
    z = torch.randn(4, 6 + prefix, 8)
    expected = z.clone()
    for t, (row, column) in enumerate(itertools.product(range(2), range(3))):
        expected[:, t + prefix, :4] += positions.x[column]
        expected[:, t + prefix, 4:] += positions.y[row]
    torch.testing.assert_close(z + positions(GRID), expected)


def test_sincos_is_the_written_out_formula():
    D = 16
    positions = SinCos2D(GRID, width=D, prefix=1)
    table = positions(GRID)[0]
    assert table[0].abs().max() == 0
    for t, (y, x) in enumerate(itertools.product(range(2), range(3)), 1):
        for i in range(D // 4):
            w = 10_000 ** (-i / (D // 4 - 1))
            expected = [math.sin(x * w), math.cos(x * w), math.sin(y * w), math.cos(y * w)]
            assert table[t, i :: D // 4].tolist() == pytest.approx(expected, abs=1e-6)


def test_relative_logits_are_the_query_against_the_key_of_each_offset():
    T, heads, d = 5, 2, 4
    relative = Relative1D(T, width=heads * d, heads=heads)
    torch.nn.init.normal_(relative.table)
    q = torch.randn(3, heads, T, d)
    bias = relative(q)
    r = relative.table.reshape(2 * T - 1, heads, d)
    for b, h, p_q, p_k in itertools.product(range(3), range(heads), range(T), range(T)):
        expected = (q[b, h, p_q] @ r[p_q - p_k + T - 1, h]) / math.sqrt(d)
        torch.testing.assert_close(bias[b, h, p_q, p_k], expected)


def test_laid_out_for_loading_they_take_no_memory():
    with torch.device("meta"):
        assert all(w.is_meta for w in Relative1D(10**7, width=8, heads=2).state_dict().values())


def test_relative_attention_adds_its_logits_before_the_softmax():
    torch.manual_seed(0)
    model = build(make_config("mu/8", image_size=16, classes=3, positions="relative")).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    z, record = torch.randn(2, 5, 32), {}
    model.encode(z, record=record)
    block = model.encoder.blocks[0]
    q, k, _ = block.attention.qkv(block.norm1(z)).reshape(2, 5, 3, 2, 16).permute(2, 0, 3, 1, 4)
    r = model.encoder.positions[0].table.reshape(9, 2, 16)
    for b, h, i in itertools.product(range(2), range(2), range(5)):
        logits = torch.stack([q[b, h, i] @ (k[b, h, j] + r[i - j + 4, h]) / 4 for j in range(5)])
        torch.testing.assert_close(
            record["block0.attention"][b, h, i], logits.softmax(0), rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("kind", ["1d", "2d", "sincos"])
@pytest.mark.parametrize("at", ["stem", "every", "shared"])
def test_where_positions_are_added(kind, at):
    """With blocks that do nothing, z_L is z_0 plus E_pos as often as it is added."""
    model = build(
        make_config("mu/8", image_size=16, depth=3, pool="mean", positions=kind, positions_at=at)
    ).eval()
    for name, parameter in model.named_parameters():
        if "positions" in name:
            torch.nn.init.normal_(parameter)
        elif ".out." in name or ".fc2." in name:
            torch.nn.init.zeros_(parameter)
    model.encoder.norm = torch.nn.Identity()
    zero = torch.zeros(1, 4, 32)
    got = model.encode(model.tokens(zero))
    if at == "stem":
        assert len(model.encoder.positions) == 0
        expected = model.positions((2, 2))
    else:
        assert model.positions is None
        tables = list(model.encoder.positions)
        assert len(tables) == (3 if at == "every" else 1)
        expected = sum(table((2, 2)) for table in (tables if at == "every" else tables * 3))
    assert expected.abs().max() > 0
    torch.testing.assert_close(got, expected)


grids = st.tuples(st.integers(2, 9), st.integers(2, 9))


@given(grids, grids, st.sampled_from(sorted(RESAMPLE)), st.booleans())
def test_resampling_keeps_the_class_row_and_constant_tables(old, new, method, class_token):
    table = torch.full((1, class_token + old[0] * old[1], 4), 3.0)
    if class_token:
        table[:, 0] = torch.arange(4.0)
    got = resample(table, old, new, method)
    assert got.shape == (1, class_token + new[0] * new[1], 4)
    assert torch.equal(got[:, :class_token], table[:, :class_token])
    torch.testing.assert_close(got[:, class_token:], torch.full_like(got[:, class_token:], 3.0))


@given(grids, grids)
def test_official_resampling_is_linear_between_the_corners(old, new):
    """A table that is linear in y and x is linear on any other grid, and the corners stay where they were."""
    y, x = torch.meshgrid(*(torch.linspace(0, 1, n) for n in old), indexing="ij")
    y2, x2 = torch.meshgrid(*(torch.linspace(0, 1, n) for n in new), indexing="ij")
    table = torch.stack([y + 2 * x, x], dim=-1).reshape(1, -1, 2)
    expected = torch.stack([y2 + 2 * x2, x2], dim=-1).reshape(1, -1, 2)
    torch.testing.assert_close(resample(table, old, new), expected, rtol=1e-5, atol=1e-5)


def test_official_resampling_is_scipys_zoom():
    zoom = pytest.importorskip("scipy.ndimage").zoom
    table = torch.randn(1, 1 + 14 * 7, 5)
    expected = zoom(table[0, 1:].reshape(14, 7, 5).numpy(), (24 / 14, 9 / 7, 1), order=1)
    torch.testing.assert_close(
        resample(table, (14, 7), (24, 9))[0, 1:].reshape(24, 9, 5),
        torch.from_numpy(expected),
        rtol=0,
        atol=1e-5,
    )


def test_an_axis_table_is_resampled_along_its_length():
    table = torch.linspace(0, 1, 5)[:, None] * torch.tensor([1.0, 10.0])
    torch.testing.assert_close(
        resample_axis(table, 9), torch.linspace(0, 1, 9)[:, None] * torch.tensor([1.0, 10.0])
    )


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'nearest' is not one of official, bilinear"):
        resample(torch.zeros(1, 4, 2), (2, 2), (3, 3), "nearest")
