"""The random ops draw what they say, from the generator alone; mixing is the arithmetic that it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.augment import (
    FlipLR,
    InceptionCrop,
    RandomCrop,
    RandomErasing,
    cutmix,
    draw_cutmix,
    draw_mixup,
    inception_box,
    mixup,
)
from vitrail.data.ops.pixel_ops import PixelOp
from vitrail.data.ops.randaugment import RandAugment
from vitrail.data.ops.resize import resize


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    "op",
    [InceptionCrop(16), RandomCrop(16), FlipLR(), RandAugment(2, 15), RandomErasing(p=0.9)],
    ids=lambda op: op.name,
)
def test_the_generator_decides_all(op: PixelOp) -> None:
    image = noise(32, 40)
    before = image.copy()
    np.random.seed(0)  # noqa: NPY002 - a global state that must not matter
    first = [op(image, rng(seed)) for seed in range(20)]
    np.random.seed(1)  # noqa: NPY002
    for seed, expected in enumerate(first):
        np.testing.assert_array_equal(op(image, rng(seed)), expected)
    assert len({result.tobytes() for result in first}) > 1
    np.testing.assert_array_equal(image, before)


# ---- crops ----

sides = st.integers(1, 700)
shares = st.floats(0.01, 1)


@settings(max_examples=300)
@given(sides, sides, st.integers(0, 2**32), shares, shares, st.floats(0.2, 1), st.floats(1, 5))
def test_inception_box_keeps_its_promises(
    height: int, width: int, seed: int, one: float, other: float, narrow: float, wide: float
) -> None:
    area = (min(one, other), max(one, other))
    top, left, h, w = inception_box(height, width, rng(seed), area=area, aspect=(narrow, wide))
    assert 0 <= top <= top + h <= height
    assert 0 <= left <= left + w <= width
    if (h, w) != (height, width):
        assert area[0] <= h * w / (height * width) <= area[1] + 1e-9
        assert h * narrow - 0.5 - 1e-6 <= w <= h * wide + 0.5 + 1e-6


def test_inception_box_is_distributed_as_tensorflow_does() -> None:
    generator = rng()
    boxes = np.array([inception_box(400, 400, generator, aspect=(1, 1)) for _ in range(20_000)])
    top, left, h, w = boxes.T
    assert (h == w).all()
    # h is uniform from sqrt(0.05) * 400 = 89.4 to 400
    assert (h.min(), h.max()) == (90, 400)
    assert np.histogram(h, bins=[90, 168, 245, 323, 401])[0] == pytest.approx([5000] * 4, rel=0.06)
    # given h, the place is uniform, the last row included
    spare = 400 - h[h < 400]
    assert (top[h < 400] / spare).mean() == pytest.approx(0.5, abs=0.01)
    assert (left[h < 400] / spare).mean() == pytest.approx(0.5, abs=0.01)
    assert (top[h < 400] == spare).any()


def test_inception_box_without_a_fit_is_the_whole_image() -> None:
    assert inception_box(10, 1000, rng(), area=(0.9, 1)) == (0, 0, 10, 1000)


def test_inception_crop_is_cut_then_squashed() -> None:
    image = noise(60, 80)
    op = InceptionCrop(32, 24, "pillow_bilinear")
    top, left, h, w = inception_box(60, 80, rng(3))
    expected = resize(image[top : top + h, left : left + w], (32, 24), "pillow_bilinear")
    np.testing.assert_array_equal(op(image, rng(3)), expected)


def test_inception_crop_of_a_picture_longer_than_any_op_makes() -> None:
    image = np.zeros((20, 30_000, 3), np.uint8)
    assert InceptionCrop(8, method="torch_bilinear", aspect=(1200, 1400))(image, rng()).shape == (8, 8, 3)


def test_random_crop_reaches_every_place() -> None:
    image = noise(5, 6)
    places = {RandomCrop(4)(image, rng(seed)).tobytes() for seed in range(200)}
    assert places == {image[y : y + 4, x : x + 4].tobytes() for y in range(2) for x in range(3)}


def test_flip() -> None:
    image = noise(3, 4)
    np.testing.assert_array_equal(FlipLR(1.0)(image, rng()), image[:, ::-1])
    np.testing.assert_array_equal(FlipLR(0.0)(image, rng()), image)
    generator = rng()
    flipped = sum(FlipLR()(image, generator) is not image for _ in range(2000))
    assert 900 < flipped < 1100


def test_random_erasing() -> None:
    image = np.full((50, 80, 3), 7, np.uint8)
    generator = rng()
    results = [RandomErasing(p=0.5)(image, generator) for _ in range(400)]
    shares = np.array([(result != 7).any(axis=2).mean() for result in results])
    assert 150 < (shares > 0).sum() < 250
    erased = shares[shares > 0]
    assert 0.015 < erased.min() < 0.06
    assert 0.28 < erased.max() < 0.34
    one = RandomErasing(p=1)(image, rng(1))
    rows, columns = np.nonzero((one != 7).any(axis=2))
    inside = one[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    assert (inside != 7).mean() > 0.98  # one rectangle, full of noise
    assert inside.std() > 60
    assert RandomErasing(p=1)(image.astype(np.float32), rng(1)).dtype == np.float32


def test_erasing_is_taller_than_wide_where_its_aspect_says_so() -> None:
    op, generator = RandomErasing(p=1, area=(0.05, 0.1), aspect=(2, 3)), rng()
    for _ in range(200):
        _, _, h, w = op.draw(200, 200, generator)
        assert 2 * w - 2 <= h <= 3 * w + 2  # up to rounding


# ---- mixing ----


def test_mixup_is_that_of_big_vision() -> None:
    shares = np.array([draw_mixup(0.2, rng(seed)) for seed in range(2000)])
    assert ((shares >= 0.5) & (shares <= 1)).all()
    betas = np.random.default_rng(1).beta(0.2, 0.2, 100_000)
    assert shares.mean() == pytest.approx(np.maximum(betas, 1 - betas).mean(), abs=0.01)
    assert draw_mixup(0, rng()) == 1
    x, weight = torch.arange(12.0).reshape(4, 3), torch.tensor([0.5, 0.6, 0.7, 1])
    mixed = mixup(x, weight)
    torch.testing.assert_close(mixed, weight[:, None] * x + (1 - weight[:, None]) * x[[3, 0, 1, 2]])


def test_mixing_a_part_of_the_batch_is_a_part_of_mixing_the_batch() -> None:
    """A process that has rows 2 and 3, and was sent row 1 to be a partner."""
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    weight = torch.full((4,), draw_mixup(0.5, rng(2)))
    part = torch.cat([x[2:4], x[1:2]])
    torch.testing.assert_close(mixup(part, weight[2:4]), mixup(x, weight)[2:4], rtol=0, atol=1e-6)
    box = torch.tensor([draw_cutmix((8, 8), 1.0, rng(2))[1]] * 4)
    assert torch.equal(cutmix(part, box[2:4]), cutmix(x, box)[2:4])


@settings(max_examples=100)
@given(st.integers(1, 40), st.integers(1, 40), st.floats(0.1, 3), st.integers(0, 2**32))
def test_cutmix_shows_the_share_that_it_says(height: int, width: int, p: float, seed: int) -> None:
    weight, box = draw_cutmix((height, width), p, rng(seed))
    top, left, h, w = box
    assert 0 <= top <= top + h <= height
    assert 0 <= left <= left + w <= width
    x = torch.stack([torch.zeros(3, height, width), torch.ones(3, height, width)])
    mixed = cutmix(x, torch.tensor([box, box]))
    assert mixed[0].mean().item() == pytest.approx(1 - weight, abs=1e-6)
    assert mixed[1].mean().item() == pytest.approx(weight, abs=1e-6)
    assert mixed[0, :, top : top + h, left : left + w].eq(1).all()
    assert draw_cutmix((height, width), 0, rng(seed))[0] == 1


def test_the_box_of_cutmix_has_the_share_that_was_drawn() -> None:
    """Beta(1e6, 1e6) draws l = 1/2: sides of s = sqrt(1/2), less what lies beyond the border: s^2 / 4 on average, if
    the middle is anywhere in the image."""
    boxes = np.array([draw_cutmix((200, 300), 1e6, rng(seed))[1] for seed in range(2000)])
    h, w = boxes[:, 2] / 200, boxes[:, 3] / 300
    assert (h * w).max() == pytest.approx(0.5, abs=0.01)
    assert (h.mean(), w.mean()) == pytest.approx([0.5**0.5 - 0.5 / 4] * 2, abs=0.01)
