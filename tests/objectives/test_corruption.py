import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.objectives.masked_patches import INTACT, KEPT, MASKED, REPLACED, Corruption, MaskedPatches


@given(st.integers(2, 200), st.floats(0.01, 1), st.integers(0, 2**32))
def test_the_number_of_corrupted_patches_is_fixed(patches, corrupted, seed):
    draw = Corruption(patches, MaskedPatches(corrupted=corrupted))
    corruption, other = draw(np.random.default_rng(seed)).values()
    assert (corruption != INTACT).sum() == draw.count == max(1, round(patches * corrupted))
    replaced = corruption == REPLACED
    assert (other[replaced] != np.arange(patches)[replaced]).all()
    assert (other[~replaced] == np.arange(patches)[~replaced]).all()


def test_fractions_of_the_paper():
    rng, draw = np.random.default_rng(0), Corruption(196, MaskedPatches())
    codes = np.concatenate([draw(rng)["corruption"] for _ in range(300)])
    counts = np.bincount(codes, minlength=4) / len(codes)
    assert counts[INTACT] == 0.5
    assert counts[[MASKED, REPLACED, KEPT]] == pytest.approx([0.4, 0.05, 0.05], abs=0.005)


@pytest.mark.parametrize(
    "settings",
    [
        {"corrupted": 0.0},
        {"corrupted": 1.5},
        {"masked": 0.9, "replaced": 0.2},
        {"masked": -0.1},
        {"target": "edges"},
    ],
)
def test_settings_that_are_refused(settings):
    with pytest.raises(ConfigError):
        MaskedPatches(**settings)


def test_an_image_of_one_patch_is_refused():
    with pytest.raises(ConfigError, match="1 patches"):
        Corruption(1, MaskedPatches())
