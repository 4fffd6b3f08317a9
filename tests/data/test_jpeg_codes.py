"""Codes that are complete, left over, or written over, told apart."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.jpeg_files import END, codes_at, jpeg, picture
from vitrail.data.decode import decode
from vitrail.data.jpeg import complete_codes, overwritten_codes, run_of_one_byte
from vitrail.data.jpeg_header import read_header

KINDS = [{}, {"subsampling": 0}, {"optimize": True}, {"mode": "L"}, {"mode": "CMYK"}, {"quality": 10}]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_padding_is_told_from_codes(options: dict[str, str]) -> None:
    data = jpeg(picture(100, 130), **options)
    assert complete_codes(data, read_header(data))
    for padding in (bytes(40), b"padding", b"\x80" * 9):
        padded = data[:-2] + padding + END
        assert complete_codes(padded, read_header(padded)), padding
    # With a smaller height in the header, the codes of the last rows are left over.
    header = read_header(data)
    at = header.height_at
    lower = data[:at] + (60).to_bytes(2, "big") + data[at + 2 :]
    assert not complete_codes(lower, read_header(lower))
    cut = data[:-300] + END
    assert not complete_codes(cut, read_header(cut))


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("byte", [0x00, 0x37, 0x66, 0xFE])
def test_one_byte_over_and_over_is_no_picture(options: dict[str, str], byte: int) -> None:
    data = jpeg(picture(200, 260, seed=byte), **options)
    begin = codes_at(data)
    size = min(1000, (len(data) - begin) // 2)
    hole = data[: begin + 50] + bytes([byte]) * size + data[begin + 50 + size :]
    assert not overwritten_codes(data, read_header(data))
    assert overwritten_codes(hole, read_header(hole))


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("level", [0, 1, 128, 255])
def test_flat_pictures_are_pictures(options: dict[str, str], level: int) -> None:
    data = jpeg(np.full((900, 1200, 3), level, np.uint8), **options)
    assert not overwritten_codes(data, read_header(data))
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
