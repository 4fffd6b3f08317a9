"""What RandAugment draws is all that is random about it; what it makes of an image are the published bytes."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.ops.published_randaugment import DIGESTS, LEVELS, published, sample
from vitrail.data.ops import on_device
from vitrail.data.ops.randaugment import DISTORTIONS, RandAugment, distorted

MOVES = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


@settings(max_examples=200)
@given(st.integers(1, 4), st.floats(0, 30), st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**32))
def test_what_is_drawn(layers: int, magnitude: float, height: int, width: int, seed: int) -> None:
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
    assert list(drawn) == expected
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


def test_layers_follow_each_other() -> None:
    image = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    one, two = RandAugment(1, 10), RandAugment(2, 10)
    for seed in range(10):
        generator = np.random.default_rng(seed)
        np.testing.assert_array_equal(
            two(image, np.random.default_rng(seed)), one(one(image, generator), generator)
        )


def on_host(image: np.ndarray, how: str, strength: float, x: int = 0, y: int = 0) -> np.ndarray:
    return distorted(image, how, strength, x, y)


def distort_on_device(image: np.ndarray, how: str, strength: float, x: int = 0, y: int = 0) -> np.ndarray:
    drawn = torch.tensor([[DISTORTIONS.index(how), strength, x, y]], dtype=torch.float64)
    batch = torch.from_numpy(image).permute(2, 0, 1)[None]  # (1, 3, H, W)
    return on_device.distorted(batch, drawn)[0].permute(1, 2, 0).numpy()  # (H, W, 3)


BOTH = pytest.mark.parametrize("distort", [on_host, distort_on_device])


def digest(image: np.ndarray) -> str:
    assert image.dtype == np.uint8
    return hashlib.sha256(image.tobytes()).hexdigest()[:8]


@pytest.mark.parametrize("how", DISTORTIONS)
def test_the_bytes_of_tensorflow(how: str) -> None:
    """Of the published code as it ran there, of the arithmetic written out, and of ours, on the host and batched."""
    sign = -1 if how in MOVES else 1
    for level, expected in zip(LEVELS, DIGESTS[how].split(), strict=True):
        assert digest(published(how, sample(), level, -1, 3, 11)) == expected
        for distort in (on_host, distort_on_device):
            assert digest(distort(sample(), how, sign * level / 10, 3, 11)) == expected, (level, distort)


KINDS = {
    "noise": lambda image: image,
    "narrow": lambda image: image // 5 + np.uint8([0, 100, 204]),
    "grey": lambda image: np.repeat(image[..., :1], 3, axis=2),
    "one channel": lambda image: image * np.uint8([0, 1, 0]) + np.uint8([7, 0, 255]),
    "one colour": lambda image: image * np.uint8(0) + image[:1, :1],
    "ramp": lambda image: np.sort(image, axis=1),
}


@BOTH
@pytest.mark.parametrize("how", DISTORTIONS)
@settings(max_examples=12)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    size=st.sampled_from([(1, 1), (1, 30), (30, 1), (2, 9), (3, 3), (24, 40), (41, 23)])
    | st.tuples(st.integers(1, 30), st.integers(1, 30)),
    level=st.sampled_from([0, 5, 9, 10, 15, 20, 30]) | st.floats(0, 30),
    sign=st.sampled_from([-1, 1]),
    seed=st.integers(0, 2**32),
)
def test_the_published_bytes(
    distort, how: str, kind: str, size: tuple[int, int], level: float, sign: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    image = KINDS[kind](rng.integers(0, 256, (*size, 3), dtype=np.uint8))
    x, y = int(rng.integers(size[1])), int(rng.integers(size[0]))
    strength = level / 10 * (sign if how in MOVES else 1)
    np.testing.assert_array_equal(
        distort(image, how, strength, x, y), published(how, image, level, sign, x, y)
    )


@BOTH
def test_a_threshold_is_a_byte_and_wraps(distort) -> None:
    image = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    for magnitude, threshold in {0: 0, 5: 128, 9: 230, 10: 0, 13.7: 94, 15: 128, 20: 0, 30: 0}.items():
        solarized = np.where(image < threshold, image, 255 - image)
        np.testing.assert_array_equal(distort(image, "solarize", magnitude / 10), solarized)
    for magnitude, bits in {0: 1, 2: 1, 10: 4, 15: 6, 20: 8, 22: 8, 22.5: 1, 30: 1}.items():
        kept = 256 - 2 ** (8 - bits)
        np.testing.assert_array_equal(distort(image, "posterize", magnitude / 10), image & kept)


@BOTH
def test_a_shear_leaves_the_first_row_where_it_is(distort) -> None:
    """Coordinates are those of pixels: about their centres it would begin half a pixel times the shear further."""
    image = np.tile(np.arange(200, dtype=np.uint8)[None, :, None], (41, 1, 3))
    for strength, shift in ((1, 0.3), (-1, -0.3), (2, 0.6)):
        sheared = distort(image, "shear_x", strength)[:, 100, 0].astype(float) - 100
        np.testing.assert_allclose(sheared, shift * np.arange(41), atol=0.5 + 1e-6)
        assert sheared[0] == sheared[abs(int(0.4 / shift))] == 0


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
