"""Strips make the picture that the whole makes."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from vitrail.data import upright
from vitrail.data.upright import upright_rgb
from vitrail.errors import ImageError


def images() -> dict[str, Image.Image]:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (37, 23, 4), dtype=np.uint8)
    rgba = Image.fromarray(noise)
    colours = rgba.convert("RGB").quantize(50)
    see_through = colours.copy()
    see_through.info["transparency"] = bytes(range(50))
    key = rgba.convert("RGB")
    key.info["transparency"] = tuple(noise[3, 3, :3].tolist())
    return {
        "RGB": rgba.convert("RGB"),
        "RGBA": rgba,
        "LA": rgba.convert("LA"),
        "L": rgba.convert("L"),
        "1": rgba.convert("1"),
        "P": colours,
        "P with transparency": see_through,
        "key colour": key,
        "CMYK": rgba.convert("RGB").convert("CMYK"),
        "16 bits": Image.fromarray(rng.integers(0, 65536, (37, 23), dtype=np.uint16)),
        "integers": Image.fromarray(rng.integers(-(2**31), 2**31, (37, 23), dtype=np.int32)),
        "floats": Image.fromarray(rng.standard_normal((37, 23), dtype=np.float32)),
    }


@pytest.mark.parametrize("kind", images())
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_by_strips_as_in_one(kind: str, orientation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    image = images()[kind]
    whole = upright_rgb(image, orientation)
    for pixels in (1, 23, 100, 23 * 36):  # strips of one row, some, and all but one
        monkeypatch.setattr(upright, "STRIP", pixels)
        np.testing.assert_array_equal(upright_rgb(images()[kind], orientation), whole)


def test_a_value_that_is_no_number_is_found_in_any_strip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upright, "STRIP", 10)
    values = np.zeros((9, 10), np.float32)
    values[8, 9] = np.inf
    with pytest.raises(ImageError, match="not finite"):
        upright_rgb(Image.fromarray(values), 1)
