"""The fast way to decode a JPEG makes the bits of the plain one, of all rows or of the first."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from vitrail.data import decode as decoding
from vitrail.data.decode import decode, decode_rows, usual_jpeg
from vitrail.data.jpeg import decode_jpeg
from vitrail.data.jpeg_header import read_header
from vitrail.errors import ImageError

pytest.importorskip("simplejpeg", reason="the optional JPEG decoder is not installed")

ROW_BY_ROW = [{"subsampling": 0}, {"subsampling": 1, "quality": 30}, {"subsampling": 2}, {"keep_rgb": True}]
OTHERWISE = [{"subsampling": 2, "progressive": True}, {"restart_marker_rows": 1, "optimize": True}]


def encoded(height: int, width: int, *channels: int, **options: object) -> bytes:
    """Noise, of 3 channels or grey."""
    file = BytesIO()
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, *channels), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", **options)
    return file.getvalue()


def upper(data: bytes, rows: int, **more: Any) -> np.ndarray:
    """At least so many rows from the top."""
    return decode_rows(data, usual_jpeg(data), rows, **more)


@pytest.mark.parametrize("options", ROW_BY_ROW + OTHERWISE, ids=str)
def test_the_bits_of_pillow(options: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for height, width in ((1, 1), (7, 9), (64, 64), (47, 130)):
        for data in (encoded(height, width, 3, **options), encoded(height, width, **options)):
            header = read_header(data)
            assert header is not None
            fast = decode_jpeg(data, header)
            monkeypatch.setattr(decoding, "JPEG_DECODER", "pillow")
            np.testing.assert_array_equal(fast, decode(data))
            assert (header.height, header.width) == (height, width)


@settings(max_examples=120)
@given(st.integers(1, 90), st.integers(1, 60), st.integers(1, 90), st.sampled_from(ROW_BY_ROW), st.booleans())
def test_the_first_rows_are_those_of_the_whole(
    height: int, width: int, rows: int, options: dict[str, int], colour: bool
) -> None:
    assume(rows <= height)
    data = encoded(height, width, *([3] if colour else []), **options)
    first, whole = upper(data, rows), decode(data)
    assert first.shape == (min(rows + 4, height), width, 3)
    np.testing.assert_array_equal(first[:rows], whole[:rows])


@pytest.mark.parametrize("options", OTHERWISE, ids=str)
def test_rows_that_are_not_stored_one_by_one_come_all(options: dict[str, int]) -> None:
    data = encoded(90, 40, 3, **options)
    np.testing.assert_array_equal(upper(data, 5), decode(data))


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_a_file_that_ends_below_the_rows_wanted_is_an_error_too(share: float) -> None:
    data = encoded(200, 64, 3)
    with pytest.raises(ImageError, match=r"cut\.jpg: "):
        upper(data[: int(len(data) * share)], 10, name="cut.jpg")


def test_damage_changes_no_row_that_the_whole_would_show() -> None:
    good = encoded(64, 48, 3)
    seen = set()

    @settings(max_examples=300)
    @given(st.integers(0, len(good) - 1), st.binary(min_size=1, max_size=6), st.integers(1, 64))
    def damaged(at: int, junk: bytes, rows: int) -> None:
        data = good[:at] + junk + good[at + len(junk) :]
        try:
            whole = decode(data, max_pixels=100_000)
        except ImageError:
            seen.add("refused")
            return
        first = upper(data, min(rows, len(whole)), max_pixels=100_000)
        np.testing.assert_array_equal(first[:rows], whole[: len(first)][:rows])
        seen.add("the same")

    damaged()
    assert seen == {"refused", "the same"}
