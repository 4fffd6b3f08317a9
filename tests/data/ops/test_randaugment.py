"""What RandAugment draws for an image is all that is random about it, and is drawn in the order that it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitrail.data.ops import batched_randaugment
from vitrail.data.ops.randaugment import DISTORTIONS, RandAugment, distorted

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


def on_host(image: np.ndarray, how: str, strength: float, x: int = 0, y: int = 0) -> np.ndarray:
    return np.asarray(distorted(Image.fromarray(image), how, strength, x, y))


def on_device(image: np.ndarray, how: str, strength: float, x: int = 0, y: int = 0) -> np.ndarray:
    drawn = torch.tensor([[DISTORTIONS.index(how), strength, x, y]], dtype=torch.float64)
    batch = torch.from_numpy(image).permute(2, 0, 1)[None]  # (1, 3, H, W)
    return batched_randaugment.distorted(batch, drawn)[0].permute(1, 2, 0).numpy()  # (H, W, 3)


BOTH = pytest.mark.parametrize("distort", [on_host, on_device])


@BOTH
@pytest.mark.parametrize(
    ("how", "strength", "from_x", "from_y", "to_x", "to_y"),
    [
        # 30 degrees about (150, 150): 100 to the right becomes 100 cos 30 to the right and 100 sin 30 up.
        ("rotate", 1, 250, 150, 236.6, 100),
        ("rotate", -0.5, 250, 150, 246.6, 175.9),
        ("shear_x", 1, 180, 200, 120, 200),  # 0.3 of the 200 rows above it
        ("shear_y", -0.5, 200, 120, 200, 150),
        ("translate_x", 1, 180, 60, 80, 60),
        ("translate_y", -0.5, 60, 180, 60, 230),
    ],
)
def test_how_far_a_move_goes(distort, how, strength, from_x, from_y, to_x, to_y) -> None:
    """A white square of 7 x 7 pixels, by its middle; strength 1 is magnitude 10."""
    image = np.zeros((300, 300, 3), np.uint8)
    image[from_y - 3 : from_y + 4, from_x - 3 : from_x + 4] = 255
    rows, columns = np.nonzero(distort(image, how, strength)[:, :, 0] == 255)
    assert (columns.mean(), rows.mean()) == pytest.approx((to_x, to_y), abs=1)


@BOTH
def test_a_cutout_reaches_40_pixels(distort) -> None:
    covered = distort(np.zeros((200, 200, 3), np.uint8), "cutout", 1, 100, 90)[:, :, 0] == 128
    rows, columns = np.nonzero(covered)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (50, 129, 60, 139)
    assert covered.sum() == 80 * 80


@BOTH
@pytest.mark.parametrize("how", ["color", "contrast", "brightness", "sharpness"])
def test_at_half_the_strength_nothing_is_enhanced(distort, how: str) -> None:
    """1.8 / 2 + 0.1 = 1."""
    image = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    np.testing.assert_array_equal(distort(image, how, 0.5), image)


@BOTH
@pytest.mark.parametrize(("strength", "becomes"), [(0, 10), (0.5, 100), (1, 190)])
def test_how_bright_an_image_becomes(distort, strength: float, becomes: int) -> None:
    assert np.unique(distort(np.full((8, 8, 3), 100, np.uint8), "brightness", strength)) == becomes
