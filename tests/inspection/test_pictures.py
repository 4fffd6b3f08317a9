"""Arrays to pictures: what is bright is where the values are high."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.inspection import pictures


def test_heat_grows_brighter_with_the_value():
    colours = pictures.heat(np.linspace(0, 1, 200)[None])[0].astype(float)
    light = colours @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(light) >= -0.8).all() and light[-1] - light[0] > 180
    beyond, within = pictures.heat(np.array([[-5.0, 7]])), pictures.heat(np.array([[0.0, 1]]))
    np.testing.assert_array_equal(beyond, within)


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(1, 40))
def test_tiles_stand_where_they_belong(rows, columns, h, w, side):
    given_tiles = np.random.default_rng(0).integers(0, 256, (rows, columns, h, w, 3), np.uint8)
    page = pictures.tiled(given_tiles, side)
    by = max(1, round(side / max(h, w)))
    assert page.shape == (rows * (h * by + 2) - 2, columns * (w * by + 2) - 2, 3)
    for r, c in np.ndindex(rows, columns):
        top, left = r * (h * by + 2), c * (w * by + 2)
        np.testing.assert_array_equal(
            page[top : top + h * by : by, left : left + w * by : by], given_tiles[r, c]
        )


@pytest.mark.parametrize("shape", [(32, 32), (32, 48)])
def test_light_falls_where_the_map_says(shape):
    image = np.full((*shape, 3), 200, np.uint8)
    weights = np.zeros((shape[0] // 8, shape[1] // 8))
    weights[0, -1] = 0.3
    made = pictures.lit(image, weights)
    assert made.shape == image.shape
    assert made[:8, -8:].max() == 200
    assert made[-8:, :8].max() < 20
    assert pictures.lit(image, np.ones((4, 4))).max() == 0  # alike everywhere: nothing stands out


def test_heated_cells_are_coloured_where_values_are_above_0():
    image = np.full((16, 24, 3), 100, np.uint8)
    made = pictures.heated(image, np.array([[0.0, 0.2, -0.5], [0.0, 0.0, 0.1]]), 8, 0.2, strength=1)
    np.testing.assert_array_equal(made[0, 8], pictures.heat(np.ones((1, 1)))[0, 0])
    np.testing.assert_array_equal(made[0, 16], pictures.heat(np.zeros((1, 1)))[0, 0])
    np.testing.assert_array_equal(made[15, 23], pictures.heat(np.full((1, 1), 0.5))[0, 0])


def test_the_grid_has_a_line_between_every_two_patches():
    made = pictures.gridded(np.zeros((32, 48, 3), np.uint8), 16)
    by = made.shape[0] // 32
    white = (made == 255).all(axis=2)
    assert np.flatnonzero(white.all(axis=1)).tolist() == [16 * by]
    assert np.flatnonzero(white.all(axis=0)).tolist() == [16 * by, 32 * by]


def test_a_thumbnail_keeps_the_shape_and_never_grows():
    assert pictures.shrink(np.zeros((100, 400, 3), np.uint8), 200).shape == (50, 200, 3)
    assert pictures.shrink(np.zeros((10, 20, 3), np.uint8), 200).shape == (10, 20, 3)
