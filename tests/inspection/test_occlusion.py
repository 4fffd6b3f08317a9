"""Occlusion finds the one part of the image that the answer hangs on."""

import numpy as np
import pytest
import torch

import vitrail
from tests.inspection.looked_at import bit, made, pictures
from vitrail.inspection.occlusion import cell_size, hide, occlusion


@torch.no_grad()
def sees_brightness(size):
    """A model whose second class grows with the brightness of the picture, and with nothing else."""
    model = vitrail.create("mu/8", classes=2, image_size=size, pool="mean", positions="none", depth=1)
    for name, parameter in model.named_parameters():
        if not name.endswith("norm.weight"):
            parameter.zero_()
    model.encoder.norm = torch.nn.Identity()
    model.embedding.weight[0] = 1 / 64
    model.head.classifier.weight[1, 0] = 4
    return model.eval()


def test_hiding_the_bright_patch_matters_most():
    image = np.zeros((32, 32, 3), np.uint8)
    image[8:16, 16:24] = 255
    model = sees_brightness(32)
    model.preprocess = "resize(32)|uint8|to_range(0, 1)"
    falls = occlusion(model, image)
    assert falls.shape == (4, 4)
    assert np.unravel_index(falls.argmax(), falls.shape) == (1, 2)
    assert falls[1, 2] > 0
    others = np.delete(falls.ravel(), 6)
    assert (others < 0).all()  # hidden by the mean, which is brighter than the black there


@pytest.mark.parametrize("kind", ["token", "not square", "hybrid", "axial"])
def test_a_map_of_cells_for_every_model(kind):
    model = made(kind)
    falls = occlusion(model, pictures(1)[0])
    assert falls.shape == model.config.grid  # few enough patches that each is a cell
    probability = vitrail.predict(model, pictures(1), top=1)[0][0][1]
    assert (falls <= probability).all() and (falls >= probability - 1).all() and np.abs(falls).max() > 0


def test_cells_are_whole_patches_and_at_most_8_along_a_side():
    assert cell_size(vitrail.create("Ti/16", image_size=224).config) == 32
    assert cell_size(vitrail.create("Ti/8", image_size=64).config) == 8
    assert cell_size(vitrail.create("Ti/16", image_size=(224, 448)).config) == 64
    assert cell_size(bit().config) == 32


def test_resnets_and_models_without_a_classifier_have_one_too():
    assert occlusion(bit(), pictures(1)[0]).shape == (2, 2)
    falls = occlusion(made("token", classes=0), pictures(1)[0])
    assert (falls >= -1e-6).all() and (falls <= 2).all() and falls.max() > 1e-4


def test_hide_replaces_one_square_by_the_mean_colour():
    x = torch.rand(3, 16, 24)
    hidden = hide(x, [(0, 0), (8, 16)], 8)
    assert hidden.shape == (2, 3, 16, 24)
    mean = x.mean(dim=(1, 2))
    assert torch.allclose(hidden[1, :, 8:, 16:], mean[:, None, None].expand(3, 8, 8))
    assert torch.equal(hidden[1, :, :8], x[:, :8]) and torch.equal(hidden[1, :, :, :16], x[:, :, :16])
