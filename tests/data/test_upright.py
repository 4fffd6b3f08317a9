"""Strips make the picture that the whole makes."""

from __future__ import annotations

import struct
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitrail.data import upright
from vitrail.data.upright import as_pixels, find_orientation, upright_buffer, upright_rgb
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


def block(orientation: int, order: str = ">", kind: int = 3) -> bytes:
    value = struct.pack(order + {1: "Bxxx", 3: "Hxx", 4: "I"}[kind], orientation)
    head = struct.pack(order + "2sHI", b"II" if order == "<" else b"MM", 42, 8)
    return head + struct.pack(order + "HHHI", 1, 0x0112, kind, 1) + value + bytes(4)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [1, 3, 4])
def test_every_way_to_write_it(order: str, kind: int) -> None:
    for orientation in range(1, 9):
        exif = block(orientation, order, kind)
        assert find_orientation(exif) == orientation
        assert find_orientation(b"Exif\0\0" + exif) == orientation
    assert find_orientation(block(0, order, kind)) == find_orientation(block(9, order, kind)) == 1


def test_xmp_is_asked_second() -> None:
    xmp = b"<x><tiff:Orientation>6</tiff:Orientation></x>"
    assert find_orientation(b"", xmp) == 6
    assert find_orientation(block(3), xmp) == 3
    assert find_orientation(b"nonsense", xmp) == 6
    assert find_orientation(b"", b"") == 1


def test_a_block_of_a_hundred_megabytes_takes_no_time() -> None:
    entries = struct.pack("<HHII", 0x9999, 3, 50_000_000, 26) * 65_535
    exif = b"II*\0\x08\0\0\0\xff\xff" + entries + bytes(100_000_000)
    begin = time.thread_time()
    assert find_orientation(exif) == 1
    assert time.thread_time() - begin < 1


@settings(max_examples=200)
@given(st.binary(max_size=40), st.integers(0, 30), st.sampled_from(["<", ">"]))
def test_damaged_blocks_count_as_upright_or_as_they_say(junk: bytes, at: int, order: str) -> None:
    whole = block(6, order)
    for exif in (junk, whole[:at], whole[:at] + junk, whole[:2] + junk):
        assert find_orientation(exif) in range(1, 9)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_stored_pixels_go_to_their_place(orientation: int) -> None:
    stored = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    upright, places = upright_buffer(5, 7, orientation)
    places[:] = as_pixels(stored)
    turns = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # orientation -> Pillow's number
    picture = Image.fromarray(stored)
    expected = picture.transpose(Image.Transpose(turns[orientation])) if orientation > 1 else picture
    np.testing.assert_array_equal(upright, np.asarray(expected))
    assert upright.flags.c_contiguous
