"""What is recorded is what happened: the same outputs, rows that are shares, nothing left behind in the model."""

import numpy as np
import pytest
import torch

import vitrail
from tests.inspection.looked_at import MODELS, bit, made, pictures
from vitrail.errors import ConfigError, DataError
from vitrail.inspection import record as recording
from vitrail.inspection.record import in_parts, layer_names, record, reduce_layers, whole


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
    assert torch.allclose(whole("block0.row.attention", A, (rows, columns)) @ v, expected, atol=1e-6)
    A = torch.randn(2 * columns, 2, rows, rows).softmax(dim=-1)
    by_column = A @ v.unflatten(2, (rows, columns)).permute(0, 3, 1, 2, 4).flatten(0, 1)
    expected = by_column.unflatten(0, (2, columns)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    assert torch.allclose(whole("block0.column.attention", A, (rows, columns)) @ v, expected, atol=1e-6)


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
    monkeypatch.setattr(recording, "MAX_BYTES", 1)
    seen = []
    one_by_one = in_parts(model, images, lambda z: seen.append(len(z)) or z)
    assert seen == [1] * 5
    np.testing.assert_allclose(one_by_one, all_at_once, atol=1e-6)


def test_what_cannot_be_looked_at():
    with pytest.raises(ConfigError, match="only the filters and the occlusion map exist"):
        record(bit(), pictures(1))
    with pytest.raises(DataError, match="no image"):
        in_parts(made("token"), [], lambda z: z)
