"""What is read of a JPEG before its pixels: sizes, orientation, scans, and no more work than that."""

from __future__ import annotations

import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data.jpeg_files import END, every_bit, jpeg, many_scans, picture, segment
from vitrail.data.decode import decode
from vitrail.data.jpeg_header import decoding_seconds, read_jpeg_header
from vitrail.errors import ImageError

XMP = b'http://ns.adobe.com/xap/1.0/\0<rdf tiff:Orientation="8"/>'


def with_segments(data: bytes, *segments: bytes) -> bytes:
    return data[:2] + b"".join(segments) + data[2:]


def exif(orientation: int) -> bytes:
    entry = struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0)
    return segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08\0\x01" + entry + bytes(4))


def test_sizes_channels_and_kinds() -> None:
    header = read_jpeg_header(jpeg(picture(33, 50), subsampling=2))
    assert (header.height, header.width, len(header.channels)) == (33, 50, 3)
    assert header.row_by_row
    assert header.units == 4 * 3
    assert header.blocks == 4 * 3 * 6
    assert header.one_scan
    grey = read_jpeg_header(jpeg(picture(33, 50), "L"))
    assert grey.units == 7 * 5
    progressive = read_jpeg_header(jpeg(progressive=True))
    assert not progressive.one_scan
    assert not read_jpeg_header(jpeg(restart_marker_rows=1)).row_by_row


def test_orientation_of_exif_then_of_xmp() -> None:
    data = jpeg()
    assert read_jpeg_header(data).orientation == 1
    assert read_jpeg_header(with_segments(data, exif(6))).orientation == 6
    assert read_jpeg_header(with_segments(data, segment(0xE1, XMP))).orientation == 8
    assert read_jpeg_header(with_segments(data, segment(0xE1, XMP), exif(3))).orientation == 3
    assert read_jpeg_header(with_segments(data, exif(77))).orientation == 1


def test_fill_bytes_and_stray_bytes_between_segments_are_passed_over() -> None:
    data = jpeg()
    for stray in (b"\xff\xff\xff", b"\0\0abc", b"\xff\x01", b"\xff\0"):
        assert read_jpeg_header(with_segments(data, stray)).width == 240


def test_metadata_of_any_size_cost_next_to_nothing() -> None:
    data = jpeg()
    block = b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + bytes(65_000)
    large = with_segments(data, *[segment(0xE1, block)] * 1600)  # 104 MB
    begin = time.thread_time()
    assert (decode(large) == decode(data)).all()
    assert time.thread_time() - begin < 1


@pytest.mark.parametrize(
    "body", [segment(0xE5, b"") * 2_000_000, b"\xff" * 5_000_000, b"\xff\xfe\0\2" * 20_000]
)
def test_a_header_without_end_is_refused_soon(body: bytes) -> None:
    begin = time.thread_time()
    with pytest.raises(ImageError, match=r"segments|damaged"):
        decode(with_segments(jpeg(), body))
    assert time.thread_time() - begin < 1


def test_ordinary_progressive_files_are_cheap() -> None:
    for options in ({"subsampling": 0}, {"subsampling": 2}, {"quality": 95}):
        data = jpeg(picture(600, 800), progressive=True, **options)
        assert decoding_seconds(data, read_jpeg_header(data)) < 0.1


def test_scans_are_counted_before_they_are_decoded() -> None:
    whole = many_scans(1024, every_bit(2))
    assert decode(whole).shape == (1024, 1024, 3)
    # 880 legal scans of 67 megapixels; 20,000 of one.
    begin = time.thread_time()
    with pytest.raises(ImageError, match=r"big\.jpg: .* needs about .* s; the limit for an image is 5 s"):
        decode(many_scans(8192, every_bit(13) + [(1, 63, 1, 0)] * 61), name="big.jpg")
    with pytest.raises(ImageError, match="more than 1,000 scans"):
        decode(many_scans(1024, [(1, 63, 0, 0)] * 20_000))
    assert time.thread_time() - begin < 1


def test_a_file_cut_between_two_scans_is_not_taken_for_whole() -> None:
    data = jpeg(progressive=True)
    scans = [i for i in range(len(data)) if data.startswith(b"\xff\xda", i)]
    tables = [i for i in range(scans[0], len(data)) if data.startswith(b"\xff\xc4", i)]
    assert len(scans) == 10
    for at in tables:
        with pytest.raises(ImageError, match=r"cut\.jpg: some of its scans are missing"):
            decode(data[:at] + END, name="cut.jpg")
    decode(data)


@given(st.binary(max_size=60), st.integers(0, 700))
def test_no_bytes_do_worse_than_an_image_error(junk: bytes, at: int) -> None:
    good = jpeg(picture(8, 8))
    for data in (junk, b"\xff\xd8\xff" + junk, good[:at], good[:at] + junk + good[at + len(junk) :]):
        try:
            header = read_jpeg_header(data)
        except ImageError:
            continue
        assert header.height_at < header.scan_at < len(data)
        assert header.height > 0


def test_damaged_scans_are_an_image_error_and_nothing_else() -> None:
    good = jpeg(picture(40, 40), progressive=True)

    @settings(max_examples=300)
    @given(st.integers(2, len(good) - 1), st.binary(min_size=1, max_size=4))
    def damaged(at: int, junk: bytes) -> None:
        data = good[:at] + junk + good[at + len(junk) :]
        try:
            assert decoding_seconds(data, read_jpeg_header(data)) < 1000
        except ImageError:
            return

    damaged()


def test_a_turned_photograph_is_decoded_as_pillow_turns_it() -> None:
    pixels = picture(40, 64)
    for orientation in range(1, 9):
        block = Image.Exif()
        block[0x0112] = orientation
        data = jpeg(pixels, exif=block)
        plain = Image.fromarray(decode(jpeg(pixels)))
        turns = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
        upright = plain.transpose(Image.Transpose(turns[orientation])) if orientation > 1 else plain
        assert Image.fromarray(decode(data)) == upright
