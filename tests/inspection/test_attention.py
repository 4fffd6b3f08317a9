"""Distances worked out on paper; rollout and maps against their definitions, written out in numpy; records."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vitrail
from tests.inspection.looked_at import MODELS, bit, made, pictures
from vitrail.data.sources import open_source
from vitrail.errors import ConfigError, DataError
from vitrail.inspection import attention
from vitrail.inspection.attention import (
    attention_distances,
    attention_maps,
    distance,
    full_attention,
    in_parts,
    layer_names,
    mean_attention_distance,
    record,
    reduce_layers,
    rollout,
    rollout_matrix,
)

GRID, STRIDE, N = (14, 14), 16, 196


def brute(A, grid, stride):
    """The definition, one pair at a time."""
    places = [(i, j) for i in range(grid[0]) for j in range(grid[1])]
    total = 0.0
    for q, (i, j) in enumerate(places):
        seen = sum(A[q])
        total += sum(A[q][k] * math.hypot(i - a, j - b) * stride for k, (a, b) in enumerate(places)) / seen
    return total / len(places)


def test_uniform_attention_has_the_mean_distance_of_all_pairs():
    A = torch.full((2, 3, N + 1, N + 1), 1 / (N + 1))
    assert distance(A, GRID, STRIDE).numpy() == pytest.approx(116.4922, abs=1e-3)


def test_attention_to_itself_has_distance_0():
    assert float(distance(torch.eye(N)[None, None], GRID, STRIDE)) == 0


def test_attention_to_one_far_patch():
    far = torch.zeros(1, 1, N, N)
    far[..., 0] = 1  # everyone looks at the top left patch
    assert float(distance(far, GRID, STRIDE)) == pytest.approx(161.0302, abs=1e-3)
    corners = torch.eye(N)[None, None].clone()
    corners[..., 0, :] = 0
    corners[..., 0, N - 1] = 1  # the first alone looks at the last: the diagonal, divided among 196 queries
    assert float(distance(corners, GRID, STRIDE)) == pytest.approx(13 * math.sqrt(2) * 16 / 196, rel=1e-6)


def test_the_class_token_is_left_out_and_rows_are_renormalised():
    patches = torch.rand(1, 2, 6, 6).softmax(dim=-1)
    A = torch.zeros(1, 2, 7, 7)
    A[..., 0, :] = torch.tensor([0.0, 0, 0, 0, 0, 0, 1])  # the class token's own row
    A[..., 1:, 0] = 0.9
    A[..., 1:, 1:] = 0.1 * patches
    assert torch.allclose(distance(A, (2, 3), 8), distance(patches, (2, 3), 8))
    A[..., 1:, 1:] = 0  # all of it on the class token
    assert torch.isfinite(distance(A, (2, 3), 8)).all()


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 32), st.integers(0, 1000))
def test_distance_is_its_definition_on_any_grid(rows, columns, stride, seed):
    n = rows * columns
    A = torch.rand(1, 1, n, n, generator=torch.Generator().manual_seed(seed)) + 0.01
    made = float(distance(A, (rows, columns), stride))
    assert made == pytest.approx(brute(A[0, 0].tolist(), (rows, columns), stride), rel=1e-5, abs=1e-6)
    assert 0 <= made <= stride * math.hypot(rows - 1, columns - 1) + 1e-4


@pytest.mark.parametrize("kind", MODELS)
def test_distances_of_models(kind):
    model, images = made(kind), pictures(3)
    per_image = attention_distances(model, images)
    layers = model.config.depth * (2 if kind == "axial" else 1)
    assert per_image.shape == (3, layers, model.config.heads)
    np.testing.assert_allclose(mean_attention_distance(model, images), per_image.mean(axis=0), rtol=1e-6)
    A = record(model, images[:1])[f"block0.{'row.' * (kind == 'axial')}attention"]
    A = full_attention("block0.row.attention", A, model.config.grid) if kind == "axial" else A
    n = model.config.grid[0] * model.config.grid[1]
    expected = brute(A[0, 1, -n:, -n:].tolist(), model.config.grid, model.config.stride)
    assert per_image[0, 0, 1] == pytest.approx(expected, rel=1e-4)


def test_distances_of_a_source():
    source = open_source("shapes?n=20&image_size=32", "train[:4]")
    images = [source.read(i).image for i in range(len(source))]
    model = made("token")
    np.testing.assert_allclose(
        attention_distances(model, source), attention_distances(model, images), rtol=1e-6
    )


@pytest.mark.parametrize("kind", ["token", "mean", "not square", "mean with a token"])
def test_rollout_and_maps_by_their_definition(kind):
    model, images = made(kind), pictures(2)
    inside, (rows, columns), T = record(model, images), model.config.grid, model.config.tokens
    attention = [inside[f"block{i}.attention"].numpy() for i in range(model.config.depth)]
    R = np.eye(T)[None]
    for A in attention:
        R = (0.5 * A.mean(axis=1) + 0.5 * np.eye(T)) @ R
    # The class token's row for token pooling; the mean over the patches' rows for mean pooling.
    queries = slice(0, 1) if kind in ("token", "not square") else slice(T - rows * columns, T)
    expected = R[:, queries, T - rows * columns :].mean(axis=1)
    np.testing.assert_allclose(rollout(model, images).reshape(2, -1), expected, atol=1e-6)
    maps = attention_maps(model, images)
    assert maps.shape == (2, model.config.depth, model.config.heads, rows, columns)
    expected = attention[-1][:, :, queries, T - rows * columns :].mean(axis=2)
    np.testing.assert_allclose(maps[:, -1].reshape(2, model.config.heads, -1), expected, atol=1e-6)


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_has_maps_whose_weights_are_shares(kind):
    model, images = made(kind), pictures(2)
    assert (rollout(model, images).sum(axis=(1, 2)) < 1 + 1e-5).all()
    maps = attention_maps(model, images)
    assert (maps >= 0).all() and (maps.sum(axis=(3, 4)) < 1 + 1e-5).all() and maps.max() > 0
    inside = record(model, images)
    with torch.no_grad():
        R = rollout_matrix(model, inside["tokens"])
    assert torch.allclose(R.sum(dim=-1), torch.ones(()), atol=1e-5)


@torch.no_grad()
def test_pooling_weights_of_attention_pooling_are_those_that_pool():
    """With an identity in place of everything after it, the pooled vector is the weighted sum of the values."""
    model = made("attention")
    pool, D = model.attention_pool, model.config.width
    pool.heads = 1
    pool.kv.weight[D:] = torch.eye(D)
    pool.kv.bias[D:] = 0
    pool.out.weight.copy_(torch.eye(D))
    pool.out.bias.zero_()
    pool.mlp.fc2.weight.zero_()
    pool.mlp.fc2.bias.zero_()
    z = torch.randn(2, model.config.tokens, D)
    p = model.pooling_weights(z)
    assert torch.allclose(torch.einsum("bt,btd->bd", p, z), model.pool(z), atol=1e-5)


def test_a_resnet_is_refused_in_words():
    for figure in (mean_attention_distance, attention_maps, rollout):
        with pytest.raises(ConfigError, match="only the filters and the occlusion map exist"):
            figure(bit(), pictures(1))


@pytest.mark.parametrize("kind", MODELS)
def test_a_record_ends_where_the_fused_model_ends(kind):
    model, images = made(kind), pictures(3)
    inside = record(model, images)
    np.testing.assert_allclose(inside["pooled"], vitrail.features(model, images), atol=2e-5)
    c = model.config
    assert inside["patches"].shape == (3, c.grid[0] * c.grid[1], c.width)
    assert inside["tokens"].shape == inside["encoded"].shape == (3, c.tokens, c.width)
    assert inside["logits"].shape == (3, 5)
    for name, value in inside.items():
        if name.endswith(".attention"):
            assert torch.allclose(value.sum(dim=-1), torch.ones(()), atol=1e-5)


@pytest.mark.parametrize("kind", ["token", "axial", "hybrid"])
def test_looking_leaves_the_model_as_it_was(kind):
    model, images = made(kind).train(), pictures(2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    record(model, images)
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_axial_attention_written_out_is_what_the_layer_computes():
    """A block's output through the (N, N) of `whole` equals its output through rows and columns."""
    model = made("axial")
    rows, columns = model.config.grid
    A = torch.randn(2 * rows, 2, columns, columns).softmax(dim=-1)
    v = torch.randn(2, 2, rows * columns, 7)
    by_row = A @ v.unflatten(2, (rows, columns)).permute(0, 2, 1, 3, 4).flatten(
        0, 1
    )  # (2*rows, 2, columns, 7)
    expected = by_row.unflatten(0, (2, rows)).permute(0, 2, 1, 3, 4).flatten(2, 3)
    assert torch.allclose(full_attention("block0.row.attention", A, (rows, columns)) @ v, expected, atol=1e-6)
    A = torch.randn(2 * columns, 2, rows, rows).softmax(dim=-1)
    by_column = A @ v.unflatten(2, (rows, columns)).permute(0, 3, 1, 2, 4).flatten(0, 1)
    expected = by_column.unflatten(0, (2, columns)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    assert torch.allclose(
        full_attention("block0.column.attention", A, (rows, columns)) @ v, expected, atol=1e-6
    )


@pytest.mark.parametrize("kind", MODELS)
def test_layers_are_named_and_whole(kind):
    model = made(kind)
    T = model.config.tokens
    A = in_parts(model, pictures(2), lambda z: reduce_layers(model, z, lambda A: A))
    assert A.shape == (2, len(layer_names(model.config)), model.config.heads, T, T)
    np.testing.assert_allclose(A.sum(axis=-1), 1, atol=1e-5)


def test_a_part_at_a_time_is_the_same_as_all_at_once(monkeypatch):
    model, images = made("token"), pictures(5)
    all_at_once = in_parts(model, images, lambda z: z)
    monkeypatch.setattr(attention, "MAX_BYTES", 1)
    seen = []
    one_by_one = in_parts(model, images, lambda z: seen.append(len(z)) or z)
    assert seen == [1] * 5
    np.testing.assert_allclose(one_by_one, all_at_once, atol=1e-6)


def test_what_cannot_be_looked_at():
    with pytest.raises(ConfigError, match="only the filters and the occlusion map exist"):
        record(bit(), pictures(1))
    with pytest.raises(DataError, match="no image"):
        in_parts(made("token"), [], lambda z: z)
