"""The fast way to decode a JPEG makes the bits of the plain one, of all rows or of the first."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data.jpeg_files import END, codes_at, jpeg, picture, segment
from vitrail.data import decode as decoding
from vitrail.data.decode import decode, usual_jpeg
from vitrail.data.jpeg import complete_codes, decode_jpeg, overwritten_codes, run_of_one_byte
from vitrail.data.jpeg_header import read_jpeg_header
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
    return decode(data, jpeg=usual_jpeg(data), rows=rows, **more)


@pytest.mark.parametrize("options", ROW_BY_ROW + OTHERWISE, ids=str)
def test_the_bits_of_pillow(options: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for height, width in ((1, 1), (7, 9), (64, 64), (47, 130)):
        for data in (encoded(height, width, 3, **options), encoded(height, width, **options)):
            header = read_jpeg_header(data)
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


KINDS: dict[str, dict[str, Any]] = {
    "usual": {},
    "444": {"subsampling": 0, "quality": 95},
    "optimised": {"optimize": True},
    "grey": {"mode": "L"},
    "cmyk": {"mode": "CMYK"},
    "restarts": {"restart_marker_rows": 1},
    "turned": {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"},
    "progressive": {"progressive": True},
}
HOLES = {
    "cut": lambda data, at, size: data[:at] + END,
    "removed": lambda data, at, size: data[:at] + data[at + size :],
    "zeros": lambda data, at, size: data[:at] + bytes(size) + data[at + size :],
    "ones": lambda data, at, size: data[:at] + b"\xff" * size + data[at + size :],
    "random": lambda data, at, size: data[:at] + np.random.default_rng(at).bytes(size) + data[at + size :],
}


# docs/data.md says that in a progressive JPEG zeros can pass.
@pytest.mark.parametrize(
    ("kind", "hole"), [(k, h) for k in KINDS for h in HOLES if (k, h) != ("progressive", "zeros")]
)
def test_a_hole_in_the_codes_is_an_error(kind: str, hole: str) -> None:
    data = jpeg(picture(320, 480), **KINDS[kind])
    begin, size = codes_at(data), 4096
    rng = np.random.default_rng(1)
    for at in rng.integers(begin, len(data) - 2 - size, 20).tolist():
        with pytest.raises(ImageError, match=r"hole\.jpg: "):
            decode(HOLES[hole](data, at, size), name="hole.jpg")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "progressive"])
def test_a_cut_of_more_than_a_row_of_blocks_never_passes(kind: str) -> None:
    data = jpeg(picture(64, 96), **KINDS[kind])
    begin = codes_at(data)
    row = (len(data) - begin) // 4  # a row of blocks, with their share of the colours
    for at in range(begin, len(data) - 2 - row, 7):
        with pytest.raises(ImageError, match=r"cut\.jpg: "):
            decode(data[:at] + END, name="cut.jpg")


def test_a_rectangle_from_a_damaged_file_is_refused_where_its_rows_are_missing() -> None:
    data = jpeg(picture(320, 480))
    cut = data[: (codes_at(data) + len(data)) // 2] + END
    with pytest.raises(ImageError, match="premature end"):
        upper(cut, 300)
    assert len(upper(cut, 20)) == 24  # rows that are not asked for are not looked at


def patched(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


def harmless(data: bytes) -> dict[str, bytes]:
    """Files that libjpeg warns of, and whose pixels are all there."""
    scan = data.index(b"\xff\xda")
    return {
        "unknown JFIF revision": patched(data, b"JFIF\0\x01\x01", b"JFIF\0\x07\x01"),
        "stray bytes in the header": data[:20] + b"stray" + data[20:],
        "SOS parameters": patched(data, data[scan : scan + 14], data[scan : scan + 11] + b"\0\0\0"),
        "no end marker": data[:-2],
        "zeros before the end marker": data[:-2] + bytes(300) + END,
        "text before the end marker": data[:-2] + b"made by a camera that writes here" + END,
        "fill bytes before the end marker": data[:-2] + b"\xff" * 300 + END,
        "anything after the end marker": data + np.random.default_rng(0).bytes(5000),
        "unknown Adobe transform": data[:2] + segment(0xEE, b"Adobe\0d\0\0\0\0\x09") + data[2:],
        "damaged ICC profile": data[:2] + segment(0xE2, b"ICC_PROFILE\0\x09\x02abc") + data[2:],
    }


def test_what_is_harmless_to_the_pixels_is_accepted() -> None:
    data = jpeg(picture(320, 480))
    pixels = decode(data)
    for what, file in harmless(data).items():
        np.testing.assert_array_equal(decode(file), pixels, what)
        np.testing.assert_array_equal(upper(file, 100)[:100], pixels[:100], what)


def test_what_is_harmless_hides_no_damage() -> None:
    data = jpeg(picture(320, 480))
    for what, file in harmless(data).items():
        at = (codes_at(data) + len(data)) // 2
        with pytest.raises(ImageError):
            decode(file[:at] + file[at + 4096 :], name=what)


def test_random_damage_is_an_image_error_or_pixels() -> None:
    files = [jpeg(picture(64, 96), **options) for options in KINDS.values()]

    @settings(max_examples=300, deadline=None)
    @given(
        st.sampled_from(files),
        st.integers(0, 20_000),
        st.integers(0, 3),
        st.integers(1, 255),
        st.integers(1, 900),
    )
    def damaged(data: bytes, at: int, how: int, change: int, size: int) -> None:
        at %= len(data)
        flip = data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]
        hole, zeros = data[:at] + data[at + size :], data[:at] + bytes(size) + data[at + size :]
        try:
            pixels = decode([flip, data[:at] + END, hole, zeros][how], name="x", max_pixels=100_000)
        except ImageError as error:
            assert str(error).startswith("x: ")
        else:
            assert pixels.dtype == np.uint8

    damaged()


KINDS_CODES = [{}, {"subsampling": 0}, {"optimize": True}, {"mode": "L"}, {"mode": "CMYK"}, {"quality": 10}]


@pytest.mark.parametrize("options", KINDS_CODES, ids=str)
def test_padding_is_told_from_codes(options: dict[str, str]) -> None:
    data = jpeg(picture(100, 130), **options)
    assert complete_codes(data, read_jpeg_header(data))
    for padding in (bytes(40), b"padding", b"\x80" * 9):
        padded = data[:-2] + padding + END
        assert complete_codes(padded, read_jpeg_header(padded)), padding
    # With a smaller height in the header, the codes of the last rows are left over.
    header = read_jpeg_header(data)
    at = header.height_at
    lower = data[:at] + (60).to_bytes(2, "big") + data[at + 2 :]
    assert not complete_codes(lower, read_jpeg_header(lower))
    cut = data[:-300] + END
    assert not complete_codes(cut, read_jpeg_header(cut))


@pytest.mark.parametrize("options", KINDS_CODES, ids=str)
@pytest.mark.parametrize("byte", [0x00, 0x37, 0x66, 0xFE])
def test_one_byte_over_and_over_is_no_picture(options: dict[str, str], byte: int) -> None:
    data = jpeg(picture(200, 260, seed=byte), **options)
    begin = codes_at(data)
    size = min(1000, (len(data) - begin) // 2)
    hole = data[: begin + 50] + bytes([byte]) * size + data[begin + 50 + size :]
    assert not overwritten_codes(data, read_jpeg_header(data))
    assert overwritten_codes(hole, read_jpeg_header(hole))


@pytest.mark.parametrize("options", KINDS_CODES, ids=str)
@pytest.mark.parametrize("level", [0, 1, 128, 255])
def test_flat_pictures_are_pictures(options: dict[str, str], level: int) -> None:
    data = jpeg(np.full((900, 1200, 3), level, np.uint8), **options)
    assert not overwritten_codes(data, read_jpeg_header(data))
    assert decode(data).shape == (900, 1200, 3)


def test_a_run_is_found_wherever_it_begins() -> None:
    noise = np.random.default_rng(0).bytes(5000)
    assert run_of_one_byte(noise, 13, len(noise)) is None
    for at in range(100, 140):
        for byte in (0, 9):
            data = noise[:at] + bytes([byte]) * 104 + noise[at:]
            assert run_of_one_byte(data, 13, len(data)) == byte
        filled = noise[:at] + b"\xff" * 104 + noise[at:]  # fill bytes, as may stand before a marker
        assert run_of_one_byte(filled, 13, len(filled)) is None
    assert run_of_one_byte(b"", 0, 0) is None
    assert run_of_one_byte(bytes(9), 8, 9) is None
