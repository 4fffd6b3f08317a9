"""Images that keep their aspect, as many patches as are allowed, laid out as strips."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.ops.fit_patches import FitPatches
from vitrail.data.preprocess import any_shape_line, default_line, parse
from vitrail.errors import ConfigError

SIDES = st.integers(1, 5000)


@given(SIDES, SIDES, st.integers(1, 1024), st.sampled_from([4, 14, 16]))
def test_as_many_patches_as_are_allowed_and_the_aspect_is_kept(height, width, most, patch):
    rows, columns = FitPatches(most, patch).grid(height, width)
    assert rows >= 1 and columns >= 1 and rows * columns <= most
    # One factor for both sides: each is that side rounded up to a patch.
    low = max((rows - 1) / height, (columns - 1) / width)
    high = min(rows / height, columns / width)
    assert low < high * (1 + 1e-9) or 1 in (rows, columns)
    # A larger factor has too many patches: the next row or column does.
    step = min(rows / height, columns / width) * (1 + 1e-6)
    assert max(1, np.ceil(height * step)) * max(1, np.ceil(width * step)) > most


def test_by_hand():
    op = FitPatches(256, 16)
    assert op.grid(224, 224) == (16, 16) and op.grid(16, 16) == (16, 16)  # also small ones are enlarged
    assert op.grid(480, 640) == (14, 18) and op.grid(640, 480) == (18, 14)
    assert op.grid(1, 10_000) == (1, 256)
    assert op.apply(np.zeros((480, 640, 3), np.uint8), ()).shape == (14 * 16, 18 * 16, 3)


def test_a_strip_has_the_patches_in_order():
    op, x = FitPatches(8, 2), torch.arange(3 * 4 * 6).reshape(3, 4, 6).float()
    strip, grid = op.strip(x)
    assert strip.shape == (3, 2, 16) and grid.tolist() == [2, 3]
    patches = [x[:, 2 * r : 2 * r + 2, 2 * c : 2 * c + 2] for r in range(2) for c in range(3)]
    assert torch.equal(strip[..., :12], torch.cat(patches, dim=2)) and not strip[..., 12:].any()


def test_the_line_of_a_model():
    line = parse(any_shape_line(64, 8, parse("to_range(-1, 1)").value_op))
    assert str(line) == "fit_patches(64, 8)|uint8|to_range(-1, 1)" and parse(str(line)) == line
    assert line.image_size is None and line.strip == FitPatches(64, 8)
    assert str(line.at((64, 64))) == default_line((64, 64))
    assert line(np.zeros((100, 50, 3), np.uint8)).shape == (3, 80, 40)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fit_patches(0, 8)", "max_tokens is 0"),
        ("fit_patches(65536, 16384)", "pixels"),
        ("fit_patches(16, 8)|central_crop(8)", "would change the patches"),
        ("fit_patches(16, 8)|resize(8)", "would change the patches"),
    ],
)
def test_refused(line, words):
    with pytest.raises(ConfigError, match=words):
        parse(line)
