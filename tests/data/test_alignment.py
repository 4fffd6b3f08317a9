"""Two thumbnails, the same picture or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from vitrail.data import alignment
from vitrail.data.alignment import HOPELESS, same_picture

SIZE = 32


def scene(seed: int) -> Image.Image:
    """A picture with the spectrum of photographs, 1/f in amplitude: 256 x 256 grey levels."""
    rng = np.random.default_rng(seed)
    f = np.fft.fftfreq(256)
    amplitude = 1 / np.maximum(np.hypot(f[:, None], f), 1 / 256)
    noise = np.fft.ifft2(np.fft.fft2(rng.standard_normal((256, 256))) * amplitude).real
    return Image.fromarray(np.clip(128 + 45 * noise / noise.std(), 0, 255).astype(np.uint8))


def view(image: Image.Image, x: float = 0.0, y: float = 0.0, scale: float = 1.0) -> Tensor:
    """The part of the image with centre (x, y), in half sides from the middle, and so much of its sides."""
    w, h = image.size
    box = ((1 + x - scale) * w / 2, (1 + y - scale) * h / 2, (1 + x + scale) * w / 2, (1 + y + scale) * h / 2)
    return torch.from_numpy(np.array(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)))[None]


def score(f: Tensor, g: Tensor, scale: float = 1.0) -> float:
    return float(same_picture(f, g, torch.full((len(f), 2), scale)))


@given(seed=st.integers(0, 50), gain=st.floats(0.6, 1.4), bias=st.floats(-20, 20))
@settings(max_examples=20)
def test_brightness_and_contrast_do_not_matter(seed: int, gain: float, bias: float) -> None:
    f = view(scene(seed)).float()
    assert score(f, gain * f + bias) > 0.99


@pytest.mark.parametrize(
    ("x", "y", "scale"), [(0, 0, 0.95), (0.05, -0.05, 0.9), (-0.08, 0, 0.92), (0, 0, 0.85)]
)
def test_a_crop_is_registered_from_a_first_guess(x: float, y: float, scale: float) -> None:
    for seed in range(5):
        image = scene(seed)
        assert score(view(image), view(image, x, y, scale), scale=0.9) > 0.85


def test_different_pictures_score_low() -> None:
    for seed in range(20):
        assert score(view(scene(seed)), view(scene(seed + 100))) < 0.5


def test_a_common_frame_does_not_make_two_pictures_one() -> None:
    def framed(seed: int) -> Tensor:
        page = Image.new("L", (256, 256), 255)
        page.paste(scene(seed).resize((160, 200)), (48, 28))
        return view(page)

    f, g = framed(1), framed(2)
    luminance = np.corrcoef(f.flatten(), g.flatten())[0, 1]
    assert luminance > 0.7, "the test is about frames that outweigh what they hold"
    assert score(f, g) < 0.6
    assert score(f, f) > 0.99


@given(correlation=st.floats(-0.9, 0.99), few=st.floats(50, 900), more=st.floats(1.1, 100))
def test_agreement_in_few_places_counts_for_less(correlation: float, few: float, more: float) -> None:
    agreed = torch.tensor([correlation] * 3)
    little, much, all_there_is = alignment._surely(agreed, torch.tensor([few, few * more, 1e9]))
    assert little < much < correlation
    assert all_there_is == pytest.approx(correlation, abs=1e-3)


def test_hopeless_pairs_score_below_any_threshold() -> None:
    f = torch.cat([view(scene(seed)) for seed in range(40)])
    scores = same_picture(f, f.roll(1, 0), torch.ones(40, 2))
    assert (scores[scores < 0] <= HOPELESS - 1).any()
    assert scores.max() < 0.5


def test_a_pair_scores_the_same_in_any_company() -> None:
    f = torch.cat([view(scene(seed)) for seed in range(11)])
    g = torch.cat([view(scene(seed), 0.03, 0.02, 0.95) for seed in range(11)])
    together = same_picture(f, g, torch.ones(11, 2))
    alone = [same_picture(f[i : i + 1], g[i : i + 1], torch.ones(1, 2)) for i in range(11)]
    torch.testing.assert_close(torch.cat(alone), together, atol=1e-4, rtol=0)


def test_no_pairs_no_scores() -> None:
    nothing = torch.zeros(0, SIZE, SIZE)
    assert same_picture(nothing, nothing, torch.ones(0, 2)).shape == (0,)
