from __future__ import annotations

import numpy as np
import pytest
import torch

import vitrail
from tests.randomise import randomise
from vitrail.errors import CheckpointError
from vitrail.evaluators.other_pixels import DRAWN, SIDE, Change, drawn_pictures, measure_change
from vitrail.inference.images import Pictures
from vitrail.models.names import Model

ALIASED, SMOOTH = "resize(16)|uint8|to_range(-1, 1)", "resize(16, pillow_bilinear)|uint8|normalize(0.5, 0.5)"


def made() -> Model:
    model = randomise(vitrail.create("B/8", width=24, depth=1, mlp_dim=40, heads=3, image_size=16, classes=5))
    model.preprocess = ALIASED
    return model


def images(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (60, 80, 3), np.uint8) for _ in range(count)]


def test_the_same_line_changes_nothing() -> None:
    assert measure_change(made(), ALIASED, Pictures(images(3))) == Change(3, 0.0, 0, [])


def test_what_is_measured_is_what_predict_says() -> None:
    model, some = made(), images(11)  # more than go through at a time
    found = measure_change(model, SMOOTH, Pictures(some))
    ours = [dict(one) for one in vitrail.predict(model, some, top=5)]
    model.preprocess = SMOOTH
    theirs = [dict(one) for one in vitrail.predict(model, some, top=5)]
    moved = [max(abs(p[name] - q[name]) for name in p) for p, q in zip(ours, theirs, strict=True)]
    assert found.images == 11
    assert found.largest == pytest.approx(max(moved), abs=1e-6)
    assert found.largest > 1e-3
    assert found.labels == sum(
        max(p, key=p.get) != max(q, key=q.get) for p, q in zip(ours, theirs, strict=True)
    )


def test_a_model_is_left_in_its_mode() -> None:
    model = made().train()
    measure_change(model, SMOOTH, Pictures(images(1)))
    assert model.training and model.preprocess == ALIASED


def test_outputs_that_are_no_numbers() -> None:
    model = made()
    with torch.no_grad():
        model.head.classifier.bias[0] = float("nan")
    with pytest.raises(CheckpointError, match="not finite"):
        measure_change(model, SMOOTH, Pictures(images(1)))


def test_the_pictures_are_always_the_same() -> None:
    one, other = drawn_pictures(), drawn_pictures()
    assert len(one) == DRAWN
    for i in range(DRAWN):
        assert np.array_equal(one.read(i).image, other.read(i).image)
        assert np.asarray(one.read(i).image).shape == (SIDE, SIDE, 3)
