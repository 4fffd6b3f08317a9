import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.masking import INTACT, KEPT, MASKED, REPLACED, Masking, draw_mask
from vitrail.errors import ConfigError


@given(st.integers(2, 200), st.floats(0.01, 1), st.integers(0, 2**32))
def test_the_number_of_corrupted_patches_is_fixed(patches, corrupted, seed):
    corruption, other = draw_mask(Masking(patches, corrupted), np.random.default_rng(seed))
    assert (corruption != INTACT).sum() == max(1, round(patches * corrupted))
    replaced = corruption == REPLACED
    assert (other[replaced] != np.arange(patches)[replaced]).all()
    assert (other[~replaced] == np.arange(patches)[~replaced]).all()


def test_parts_of_the_paper():
    rng = np.random.default_rng(0)
    codes = np.concatenate([draw_mask(Masking(196), rng)[0] for _ in range(300)])
    counts = np.bincount(codes, minlength=4) / len(codes)
    assert counts[INTACT] == 0.5
    assert counts[[MASKED, REPLACED, KEPT]] == pytest.approx([0.4, 0.05, 0.05], abs=0.005)


def test_what_is_not_allowed():
    for fields in (
        {"patches": 1},
        {"patches": 4, "corrupted": 0},
        {"patches": 4, "masked": 0.9, "replaced": 0.2},
    ):
        with pytest.raises(ConfigError):
            Masking(**fields)
