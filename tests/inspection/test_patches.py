"""Features of patches: colours that find a planted object, and patches that correspond."""

import numpy as np
import pytest
import torch

from tests.inspection.looked_at import MODELS, bit, made, pictures
from vitrail.errors import ConfigError
from vitrail.inspection.patches import (
    components,
    correspondences,
    patch_features,
    principal_colours,
    reduced,
    unit,
)

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("kind", ["token", "mean", "not square", "axial", "hybrid"])
def test_the_features_of_patches_are_the_encoded_tokens(kind):
    model = made(kind)
    f = patch_features(model, pictures(3))
    assert f.shape == (3, *model.config.grid, model.config.width) and kind in MODELS
    assert not np.allclose(f[0], f[1])


def test_a_resnet_has_none():
    with pytest.raises(ConfigError, match="ResNet"):
        patch_features(bit(), pictures(1))
    with pytest.raises(ConfigError, match="need images"):
        patch_features(made("token"), [])


def planted(n=3, side=10, width=32):
    """An object in the middle of each image, its left half different from its right; background elsewhere."""
    ground, left, right = RNG.normal(size=(3, width)) * 3
    f = ground + 0.3 * RNG.normal(size=(n, side, side, width))
    f[:, 3:7, 3:5] += left - ground
    f[:, 3:7, 5:7] += right - ground
    inside = np.zeros((n, side, side), bool)
    inside[:, 3:7, 3:7] = True
    return f.astype(np.float32), inside


@pytest.mark.parametrize("sign", [1, -1])
def test_the_background_is_removed_and_parts_have_colours_of_their_own(sign):
    f, inside = planted()
    colours, objects, variance = principal_colours(sign * f)
    assert (objects == inside).mean() > 0.99
    assert not colours[~objects].any()
    left, right = colours[:, 3:7, 3:5].reshape(-1, 3), colours[:, 3:7, 5:7].reshape(-1, 3)
    # One component tells the halves apart, in all images in the same way.
    assert np.abs(left.mean(axis=0) - right.mean(axis=0)).max() > 200
    assert 0 < variance[0] <= 1 and (np.diff(variance) <= 0).all()


def test_an_image_unlike_the_others_is_no_object():
    f, inside = planted()
    f[1] += 50 * RNG.normal(size=f.shape[-1]).astype(np.float32)
    _, objects, _ = principal_colours(f)
    assert (objects == inside).mean() > 0.99


def test_images_without_any_object_keep_all_patches():
    colours, objects, _ = principal_colours(np.ones((2, 4, 4, 8), np.float32))
    assert objects.all() and colours.shape == (2, 4, 4, 3)


def test_components_are_those_of_a_singular_value_decomposition():
    X = RNG.normal(size=(40, 6)) * np.arange(1, 7)
    scores, share = components(X, 3)
    u, s, _ = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.abs(scores), np.abs(u * s)[:, :3], atol=1e-8)
    np.testing.assert_allclose(share, (s**2 / (s**2).sum())[:3])
    assert components(X[:, :2], 3)[0].shape == (40, 3)


def test_patches_that_moved_are_found():
    a = RNG.normal(size=(4, 5, 16)).astype(np.float32)
    order = RNG.permutation(20)
    b = a.reshape(20, 16)[order].reshape(5, 4, 16) * 7  # a length is no matter
    pairs = correspondences(a, b)
    assert len(pairs.first) == 20
    np.testing.assert_allclose(pairs.cosine, 1, atol=1e-5)
    for (row, column), (to_row, to_column) in zip(pairs.first, pairs.second, strict=True):
        np.testing.assert_allclose(a[row, column] * 7, b[to_row, to_column], rtol=1e-6)


def test_only_pairs_that_choose_each_other_count_the_most_alike_first():
    a = np.array([[[1.0, 0.0], [1.0, 0.2]]])  # both are nearest to the first of b
    b = np.array([[[1.0, 0.3], [-1.0, 0.5]]])
    pairs = correspondences(a, b)
    assert pairs.first.tolist() == [[0, 1]] and pairs.second.tolist() == [[0, 0]]
    several = correspondences(*RNG.normal(size=(2, 6, 6, 4)))
    assert (np.diff(several.cosine) <= 0).all()


def test_fewer_dimensions_have_most_of_the_cosines():
    low = RNG.normal(size=(3, 50, 4)) @ RNG.normal(size=(4, 64))
    exact = unit(low) @ unit(low).transpose(0, 2, 1)
    few = reduced(low, 4)
    assert few.shape == (3, 50, 4)
    np.testing.assert_allclose(few @ few.transpose(0, 2, 1), exact, atol=1e-8)
    assert reduced(low, 100).shape == (3, 50, 64)


def test_looking_at_patches_changes_nothing():
    model = made("token")
    before, x = {name: w.clone() for name, w in model.state_dict().items()}, torch.randn(1, 3, 32, 32)
    y = model(x)
    patch_features(model, pictures(1))
    assert torch.equal(model(x), y) and all(torch.equal(w, before[n]) for n, w in model.state_dict().items())
