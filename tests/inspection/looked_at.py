"""Small models and pictures that the tests of inspection look at."""

import numpy as np
import torch

import vitrail
from tests.randomise import randomise

# Every shape of model that has attention: name, overrides.
MODELS = {
    "token": ("mu/8", {"image_size": 32}),
    "mean": ("mu/8", {"image_size": 32, "pool": "mean"}),
    "mean with a token": ("mu/8", {"image_size": 32, "pool": "mean", "class_token": True}),
    "attention": ("mu/8", {"image_size": 32, "pool": "attention"}),
    "not square": ("mu/8", {"image_size": (16, 40), "depth": 3}),
    "relative": ("mu/8", {"image_size": 32, "positions": "relative"}),
    "axial": ("mu/8", {"image_size": (16, 24), "block": "axial", "pool": "mean", "depth": 2}),
    "hybrid": ("R+Ti/16", {"image_size": 64, "width": 32, "depth": 2, "mlp_dim": 64, "heads": 2}),
}


def made(kind, classes=5):
    name, overrides = MODELS[kind]
    return randomise(vitrail.create(name, classes=classes, **overrides)).eval()


def bit(classes=5):
    return randomise(
        vitrail.create("R50x1", classes=classes, image_size=64, units=(1, 1), width_factor=0.5)
    ).eval()


@torch.no_grad()
def answering(source):
    """A model for the classes of a source that always says the first example's: sometimes right, sometimes wrong."""
    model = made("token", classes=len(source.class_names))
    model.class_names = source.class_names
    model.head.classifier.bias[int(source.labels[0])] = 100
    return model


def pictures(n, size=(48, 40), seed=0):
    return list(np.random.default_rng(seed).integers(0, 256, (n, *size, 3), np.uint8))
