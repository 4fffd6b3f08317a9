"""Small models whose parameters are all random and distinct, of every kind that can be exported."""

import numpy as np

import vitrail
from tests.randomise import randomise

FIELDS = {"width": 32, "depth": 2, "mlp_dim": 48, "heads": 4, "classes": 7}
KINDS = {
    "ViT": ("S/8", {**FIELDS, "image_size": 32}),
    "attention pool, sincos": (
        "S/8",
        {**FIELDS, "image_size": (32, 48), "pool": "attention", "positions": "sincos"},
    ),
    "mean pool, 2d, hidden layer": (
        "S/8",
        {**FIELDS, "image_size": 32, "pool": "mean", "positions": "2d", "pre_logits": 24},
    ),
    "relative": ("S/8", {**FIELDS, "image_size": 32, "positions": "relative", "activation": "gelu"}),
    "axial": ("S/8", {**FIELDS, "image_size": 32, "pool": "mean", "block": "axial"}),
    "no classes": ("S/8", {**FIELDS, "image_size": 32, "classes": 0}),
    "hybrid": ("R50+S/8", {**FIELDS, "image_size": 64}),
    "BiT": ("R50x1", {"units": (1, 1), "classes": 7, "image_size": 64}),
}


def small_model(kind="ViT"):
    name, fields = KINDS[kind]
    model = randomise(vitrail.create(name, **fields))
    if model.head.classifier is not None:
        model.head.classifier.weight.data *= 8  # logits that differ between images
        model.class_names = [f"class {k}" for k in range(model.config.classes)]
    model.license = {"weights": "MIT"}
    return model


def photographs(n=3):
    """Smooth pictures of several sizes, as decoded."""
    rng = np.random.default_rng(0)
    images = []
    for i in range(n):
        H, W = 90 + 37 * i, 130 - 23 * (i % 4)
        y, x = np.mgrid[:H, :W].astype(np.float32)
        waves = [
            np.sin(x / rng.uniform(5, 30) + y / rng.uniform(5, 30) + rng.uniform(0, 6)) for _ in range(3)
        ]
        image = 127 + 100 * np.stack(waves, axis=2) + rng.normal(0, 12, (H, W, 3))
        images.append(image.clip(0, 255).astype(np.uint8))
    return images
