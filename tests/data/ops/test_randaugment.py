"""What RandAugment draws for an image is all that is random about it, and is drawn in the order that it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.ops.randaugment import DISTORTIONS, RandAugment

MOVES = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


@settings(max_examples=200)
@given(st.integers(1, 4), st.floats(0, 30), st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**32))
def test_draws_in_the_published_order(
    layers: int, magnitude: float, height: int, width: int, seed: int
) -> None:
    """A layer's distortion, then the direction of a move or the column and the row of a cutout."""
    rng, same = np.random.default_rng(seed), np.random.default_rng(seed)
    expected: list[float] = []
    for _ in range(layers):
        number, strength, x, y = int(same.integers(16)), magnitude / 10, 0, 0
        if DISTORTIONS[number] in MOVES:
            strength *= same.choice((-1, 1))
        elif DISTORTIONS[number] == "cutout":
            x, y = int(same.integers(width)), int(same.integers(height))
        expected += (number, strength, x, y)
    drawn = RandAugment(layers, magnitude).draw(height, width, rng)
    assert drawn.dtype == np.float64
    assert drawn.tolist() == expected
    assert rng.bit_generator.state == same.bit_generator.state


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_call_draws_what_draw_draws(layers: int) -> None:
    op = RandAugment(layers, 15)
    image = np.random.default_rng(0).integers(0, 256, (12, 18, 3), dtype=np.uint8)
    for seed in range(40):
        rng, same = np.random.default_rng(seed), np.random.default_rng(seed)
        op(image, rng)
        op.draw(12, 18, same)
        assert rng.bit_generator.state == same.bit_generator.state
