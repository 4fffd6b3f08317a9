"""Planted filters are found again; position similarity has the symmetries that theory gives it."""

import numpy as np
import pytest
import torch

import vitrail
from tests.inspection.looked_at import bit, made
from tests.randomise import randomise
from vitrail.errors import CheckpointError, ConfigError
from vitrail.inspection.embeddings import filters, position_similarity


@torch.no_grad()
def test_a_planted_low_rank_bank_is_recovered():
    model = vitrail.create("mu/8", image_size=16, width=64, heads=2)
    rng = np.random.default_rng(0)
    planted = np.linalg.qr(rng.normal(size=(8 * 8 * 3, 3)))[0].T.reshape(3, 8, 8, 3)  # orthonormal
    strength = np.array([5.0, 3.0, 1.0])
    amounts = np.linalg.qr(rng.normal(size=(64, 4)) - rng.normal(size=(64, 4)).mean(axis=0))[0]
    amounts = (
        np.linalg.qr(amounts - amounts.mean(axis=0))[0][:, :3] * strength
    )  # (64, 3), means 0, orthogonal
    bank = np.einsum("dk,kyxc->dcyx", amounts, planted) + rng.normal(
        size=(1, 3, 8, 8)
    )  # a mean filter on top
    model.embedding.weight.copy_(torch.from_numpy(bank))
    found = filters(model, 5)
    assert found.components.shape == (5, 8, 8, 3)
    for k in range(3):
        assert abs((found.components[k] * planted[k]).sum()) == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose(found.variance, [25 / 35, 9 / 35, 1 / 35, 0, 0], atol=1e-5)


@pytest.mark.parametrize("model", [made("token"), made("hybrid"), bit()], ids=["vit", "hybrid", "resnet"])
def test_components_are_orthonormal_pictures(model):
    found = filters(model)
    k, P = found.components.shape[:2]
    assert (8 if found.layer == "the patch embedding E" else 7) == P
    flat = found.components.reshape(k, -1)
    np.testing.assert_allclose(flat @ flat.T, np.eye(k), atol=1e-5)
    assert (np.diff(found.variance) <= 1e-7).all() and found.variance.sum() <= 1 + 1e-5


@torch.no_grad()
def test_filters_that_are_all_alike_have_no_variance():
    model = vitrail.create("mu/8", image_size=16)
    model.embedding.weight.fill_(0.5)
    assert np.allclose(filters(model).variance, 0)


def test_sincos_similarity_is_symmetric_as_theory_says():
    """sum_i cos(w_i dx) + cos(w_i dy) over D/2: it depends on |dx| and |dy| alone, and alike on both."""
    model = vitrail.create("mu/8", image_size=(40, 40), width=64, heads=2, positions="sincos")
    S = position_similarity(model)
    assert S.shape == (5, 5, 5, 5)
    w = 1 / 10_000 ** (np.arange(16) / 15)
    for q in np.ndindex(5, 5):
        for k in np.ndindex(5, 5):
            dy, dx = q[0] - k[0], q[1] - k[1]
            assert S[q][k] == pytest.approx((np.cos(w * dx).sum() + np.cos(w * dy).sum()) / 32, abs=1e-5)
    np.testing.assert_allclose(S, S.transpose(2, 3, 0, 1), atol=1e-6)
    np.testing.assert_allclose(S, S.transpose(1, 0, 3, 2), atol=1e-6)  # rows and columns are alike
    np.testing.assert_allclose(S, S[::-1, ::-1, ::-1, ::-1], atol=1e-6)


@pytest.mark.parametrize("overrides", [{}, {"pool": "mean"}, {"positions": "2d"}, {"positions_at": "every"},
                                       {"positions_at": "shared"}])  # fmt: skip
def test_similarity_of_learned_positions(overrides):
    model = randomise(vitrail.create("mu/8", image_size=(16, 24), depth=2, **overrides))
    S = position_similarity(model)
    assert S.shape == (2, 3, 2, 3)
    np.testing.assert_allclose(np.einsum("ijij->ij", S), 1, atol=1e-5)
    assert np.abs(S).max() <= 1 + 1e-5
    if not overrides:
        E_pos = model.positions.table[0, 1:].detach().numpy()  # without the class token's row
        expected = E_pos[1] @ E_pos[5] / np.linalg.norm(E_pos[1]) / np.linalg.norm(E_pos[5])
        assert S[0, 1, 1, 2] == pytest.approx(expected, abs=1e-5)
    if overrides.get("positions_at") == "every":
        assert not np.allclose(S, position_similarity(model, layer=1))


@pytest.mark.parametrize(
    ("at", "last", "allowed"),
    [("stem", 0, "layer 0 alone"), ("every", 1, "layers 0 to 1"), ("shared", 1, "layers 0 to 1")],
)
def test_a_layer_that_is_not_there_is_refused(at, last, allowed):
    model = vitrail.create("mu/8", image_size=16, depth=2, positions_at=at)
    assert position_similarity(model, layer=last).shape == (2, 2, 2, 2)
    for layer in (-1, last + 1, 99):
        with pytest.raises(ConfigError, match=f"layer={layer} adds no position embeddings.*{allowed}"):
            position_similarity(model, layer=layer)


@pytest.mark.parametrize(("positions", "why"), [("none", "none at all"), ("relative", "part of attention")])
def test_models_without_added_positions_are_refused(positions, why):
    with pytest.raises(ConfigError, match=why):
        position_similarity(vitrail.create("mu/8", image_size=16, positions=positions))
    with pytest.raises(ConfigError, match="only the filters and the occlusion map exist"):
        position_similarity(bit())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(value):
    model = made("token")
    with torch.no_grad():
        model.embedding.weight[0, 0, 0, 0] = value
        model.positions.table.view(-1)[-1] = value
    for look in (filters, position_similarity):
        with pytest.raises(CheckpointError, match="not finite in 1 of"):
            look(model)
