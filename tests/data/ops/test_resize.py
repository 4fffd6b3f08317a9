"""The resizes agree with the code that they stand for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitrail.data.ops.resize import METHODS, OF_BYTES, PILLOW, resize
from vitrail.errors import ImageError

sides = st.integers(1, 40)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def to_unit(image: np.ndarray) -> np.ndarray:
    return image / 127.5 - 1


def test_bilinear_and_area_agree_with_tensorflow(fixtures: Path) -> None:
    reference = np.load(fixtures / "preprocess.npz")
    image = reference["image"]
    for side in (32, 96):
        squashed = to_unit(resize(image, (side, side), "bilinear"))
        np.testing.assert_allclose(squashed, reference[f"squash_{side}"], atol=2e-6)
    top, left, height, width = reference["crop_box_top_left_height_width"]
    crop = resize(image[top : top + height, left : left + width], (32, 32), "bilinear")
    np.testing.assert_allclose(to_unit(crop), reference["crop_resize_32"], atol=2e-6)
    area = resize(image, (40, 54), "area")[4:36, 11:43]
    np.testing.assert_allclose(to_unit(area), reference["resize_small_area_40_centre_32"], atol=2e-6)


@settings(max_examples=40)
@given(sides, sides, sides, sides)
def test_bilinear_is_torch_without_antialias(height: int, width: int, h: int, w: int) -> None:
    image = noise(height, width)
    x = torch.from_numpy(image).permute(2, 0, 1)[None].double()
    expected = torch.nn.functional.interpolate(x, (h, w), mode="bilinear", align_corners=False)[0].permute(
        1, 2, 0
    )
    np.testing.assert_allclose(resize(image, (h, w), "bilinear"), expected, atol=2e-3)


@settings(max_examples=40)
@given(sides, sides, sides, sides)
def test_area_is_the_mean_of_what_a_pixel_covers(height: int, width: int, h: int, w: int) -> None:
    image = noise(height, width)
    # Each source pixel as h x w smaller ones: then each output pixel covers whole ones, height x width of them.
    fine = image.repeat(h, axis=0).repeat(w, axis=1)
    expected = fine.reshape(h, height, w, width, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(resize(image, (h, w), "area"), expected, atol=2e-3)


@settings(max_examples=40)
@given(sides, sides, sides, sides, st.sampled_from(sorted(PILLOW)))
def test_pillow_methods_are_pillow(height: int, width: int, h: int, w: int, method: str) -> None:
    image = noise(height, width)
    expected = np.asarray(Image.fromarray(image).resize((w, h), PILLOW[method]))
    np.testing.assert_array_equal(resize(image, (h, w), method), expected)


@settings(max_examples=40)
@given(sides, sides, sides, sides)
def test_torch_methods_are_close_to_pillow(height: int, width: int, h: int, w: int) -> None:
    image = noise(height, width)
    for kind, largest in (
        ("bilinear", 2),
        ("bicubic", 40),
    ):  # bicubic overshoots, and the two clip at other times
        ours = resize(image, (h, w), f"torch_{kind}").astype(int)
        difference = np.abs(ours - resize(image, (h, w), f"pillow_{kind}"))
        assert difference.max() <= largest
        assert difference.mean() <= 1


@pytest.mark.parametrize("method", METHODS)
def test_any_memory_layout_gives_the_same_pixels(method: str) -> None:
    image = noise(30, 50)
    expected = resize(image[:, ::-1].copy(), (20, 60), method)
    assert expected.dtype == (np.uint8 if method in OF_BYTES else np.float32)
    assert expected.shape == (20, 60, 3)
    np.testing.assert_allclose(resize(image[:, ::-1], (20, 60), method), expected, rtol=0, atol=1e-3)
    frozen = np.ascontiguousarray(image[:, ::-1].transpose(2, 0, 1)).transpose(1, 2, 0)
    frozen.flags.writeable = False
    np.testing.assert_allclose(resize(frozen, (20, 60), method), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_size_changes_nothing(method: str) -> None:
    image = noise(17, 23)
    np.testing.assert_array_equal(resize(image, (17, 23), method), image)


def test_a_size_without_bounds_is_refused() -> None:
    with pytest.raises(ImageError, match="an image of 1 x 90000 would become 256 x 23040000"):
        resize(noise(1, 90_000), (256, 23_040_000), "area")
