from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.checkpoints.transforms import METHODS, Transform, line_to_transform
from vitrail.data import preprocess as pp
from vitrail.data.preprocess import PRESETS
from vitrail.errors import ConfigError

sides = st.integers(1, 600)
fractions = st.floats(0.01, 1)


@given(
    resize=st.one_of(sides, st.tuples(sides, sides)),
    method=st.sampled_from(METHODS),
    mean=st.tuples(fractions, fractions, fractions),
    std=st.tuples(fractions, fractions, fractions),
    rounding=st.sampled_from(["nearest", "down"]),
    cropped=st.booleans(),
)
def test_a_transform_survives_its_line(resize, method, mean, std, rounding, cropped):
    smaller = resize if isinstance(resize, tuple) else (resize, resize)
    crop = (max(1, smaller[0] - 5), max(1, smaller[1] - 3)) if cropped else None
    given = Transform(resize, crop, method, mean, std, rounding)
    back, notes = line_to_transform(given.line(), rounding)
    expected = given if crop != resize else Transform(resize, None, method, mean, std, rounding)
    assert (back, notes) == (expected, [])


@pytest.mark.parametrize("name", ["torchvision_eval", "timm_eval", "timm_vit_eval"])
def test_published_lines_say_nothing_else(name):
    transform, notes = line_to_transform(PRESETS[name], "nearest")
    assert not notes
    assert pp.parse(transform.line()) == pp.parse(PRESETS[name])


@pytest.mark.parametrize("name", ["official_eval", "big_vision_eval"])
def test_what_is_not_pillow_s_is_said(name):
    transform, notes = line_to_transform(PRESETS[name], "nearest")
    assert transform.method == "bilinear"
    assert transform.mean == transform.std == (0.5, 0.5, 0.5)
    assert "antialiasing" in notes[0] and PRESETS[name] in notes[0]


@pytest.mark.parametrize("line", [PRESETS["official_train"], "crop(0, 0, 8, 8)|to_range(0, 1)", ""])
def test_what_has_no_transform(line):
    transform, notes = line_to_transform(line, "nearest")
    assert transform is None
    assert "reader must" in notes[0]


def test_other_roundings_are_said():
    line = Transform(256, (224, 224), crop_rounding="nearest").line()
    assert "up to a pixel" in line_to_transform(line, "down")[1][0]


@pytest.mark.parametrize("value_op", ["to_range(-1, 1)", "to_range(0, 2)", "normalize(0.3, 0.2)", None])
def test_ranges_are_means_and_deviations(value_op):
    line = "resize(4, pillow_bilinear)|uint8" + (f"|{value_op}" if value_op else "")
    transform, notes = line_to_transform(line, "nearest")
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert not notes
    torch.testing.assert_close(pp.parse(transform.line())(image), pp.parse(line)(image), rtol=1e-5, atol=1e-5)


def test_unknown_methods():
    with pytest.raises(ConfigError, match="'hamming' has no counterpart here: bilinear, bicubic, lanczos"):
        Transform(256, None, "hamming").line()
