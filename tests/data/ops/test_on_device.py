"""A batch distorted at once has the bytes of its images distorted one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.ops import randaugment
from vitrail.data.ops.on_device import DISTORTIONS, distorted
from vitrail.data.ops.randaugment import RandAugment

MAGNITUDES = (0, 5, 10, 15, 20)


def pictures(seed: int, number: int, height: int, width: int) -> np.ndarray:
    """Images of all kinds: noise, and per image and channel a narrow range, few values, or one."""
    rng = np.random.default_rng(seed)
    low, high = np.sort(rng.integers(0, 256, (2, number, 1, 1, 3)), axis=0)
    low, high = (
        np.where(rng.random((number, 1, 1, 1)) < 0.3, end, bound) for end, bound in ((0, low), (255, high))
    )
    share = rng.random((number, height, width, 3))
    coarse = rng.random((number, 1, 1, 1)) < 0.2
    share = np.where(coarse, np.round(share * 2) / 2, share)
    return np.rint(low + share * (high - low)).astype(np.uint8)  # (B, H, W, 3)


def on_device(images: np.ndarray, drawn: np.ndarray, reach: float = 1.0) -> np.ndarray:
    x = torch.from_numpy(images).permute(0, 3, 1, 2)  # (B, 3, H, W)
    result = distorted(x, torch.from_numpy(drawn), reach)
    assert result.dtype == torch.uint8
    assert result.shape == x.shape
    return result.permute(0, 2, 3, 1).numpy()  # (B, H, W, 3)


class Chooses(np.random.Generator):
    """A generator whose first draw is the number given: the distortion of a layer."""

    def __init__(self, number: int, seed: int) -> None:
        super().__init__(np.random.PCG64(seed))
        self.number: int | None = number

    def integers(self, *args: int, **keywords: int) -> int:  # type: ignore[override]
        number, self.number = self.number, None
        return super().integers(*args, **keywords) if number is None else number  # type: ignore[arg-type]


@pytest.mark.parametrize("how", DISTORTIONS)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32), height=st.integers(1, 80), width=st.integers(1, 80))
def test_each_distortion_has_the_bytes_of_the_host(how: str, seed: int, height: int, width: int) -> None:
    number = DISTORTIONS.index(how)
    ops = [RandAugment(1, magnitude) for magnitude in MAGNITUDES * 2]
    images = pictures(seed, len(ops), height, width)
    drawn = np.stack([op.draw(height, width, Chooses(number, seed + n)) for n, op in enumerate(ops)])
    assert (drawn[:, 0] == number).all()
    one_by_one = [
        op(image, Chooses(number, seed + n)) for n, (op, image) in enumerate(zip(ops, images, strict=True))
    ]
    np.testing.assert_array_equal(on_device(images, drawn), np.stack(one_by_one))


@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**32),
    layers=st.integers(1, 4),
    size=st.sampled_from(((64, 64), (40, 56), (33, 20))),
    reach=st.sampled_from((1.0, 0.29, 0.1)),
)
def test_layers_of_any_distortions_have_the_bytes_of_the_host(
    seed: int, layers: int, size: tuple[int, int], reach: float
) -> None:
    ops = [RandAugment(layers, magnitude, reach) for magnitude in (*MAGNITUDES, 30, 9, 13.7) * 4]
    images = pictures(seed, len(ops), *size)
    drawn = np.stack([op.draw(*size, np.random.default_rng((seed, n))) for n, op in enumerate(ops)])
    one_by_one = [
        op(image, np.random.default_rng((seed, n)))
        for n, (op, image) in enumerate(zip(ops, images, strict=True))
    ]
    np.testing.assert_array_equal(on_device(images, drawn, reach), np.stack(one_by_one))


def test_a_large_image_is_moved_alike() -> None:
    """Roundings of single precision grow with the rows and columns."""
    image = pictures(0, 1, 300, 500)
    for how in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y"):
        for strength in (-1.7, -0.3, 0.9, 1.5):
            drawn = np.array([[DISTORTIONS.index(how), strength, 0, 0]])
            moved = randaugment.distorted(image[0], how, strength)
            np.testing.assert_array_equal(on_device(image, drawn)[0], moved)


def test_an_image_does_not_depend_on_its_batch() -> None:
    op = RandAugment(2, 15)
    images = pictures(1, 32, 24, 24)
    drawn = np.stack([op.draw(24, 24, np.random.default_rng(n)) for n in range(32)])
    together = on_device(images, drawn)
    for n in range(32):
        np.testing.assert_array_equal(on_device(images[n : n + 1], drawn[n : n + 1])[0], together[n])


def test_nothing_waits_for_the_device_and_all_compiles_as_one() -> None:
    x = torch.zeros(4, 3, 16, 20, dtype=torch.uint8)
    drawn = torch.zeros(4, 8, dtype=torch.float64)
    assert distorted(x.to("meta"), drawn.to("meta")).shape == x.shape  # there are no values to wait for
    whole = torch.compile(distorted, fullgraph=True, dynamic=False, backend="eager")
    torch.testing.assert_close(whole(x, drawn), distorted(x, drawn))
