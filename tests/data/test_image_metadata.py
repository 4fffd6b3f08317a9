"""Chunks, tags, comments and tiles that cost more than pixels are refused at once; ordinary ones are not."""

from __future__ import annotations

import struct
import time
import zlib
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitrail.data.decode import decode
from vitrail.data.image_limits import check_metadata, codestream, other_chunks
from vitrail.errors import ImageError


def encoded(format: str, size: int = 64, **options: object) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, format, **options)
    return file.getvalue()


def chunk(kind: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def tiff(*tags: tuple[int, int, int, int], more: bytes = b"") -> bytes:
    """64 x 64 grey pixels, and these tags: (tag, type, count, value)."""
    usual = [(256, 4, 1, 64), (257, 4, 1, 64), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (277, 3, 1, 1)]
    strips = [(273, 4, 1, 1000), (278, 4, 1, 64), (279, 4, 1, 4096)]
    entries = sorted([*usual, *strips, *tags])
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return (b"II*\0\x08\0\0\0" + directory + bytes(4)).ljust(1000, b"\0") + bytes(4096) + more


def refused(data: bytes, match: str) -> None:
    begin = time.thread_time()
    with pytest.raises(ImageError, match=rf"a\.img: .*{match}"):
        decode(data, name="a.img")
    assert time.thread_time() - begin < 1


def test_a_png_of_very_many_chunks() -> None:
    data = encoded("PNG")
    for kind in (b"teSt", b"IDAT"):
        refused(data[:33] + chunk(kind) * 300_000 + data[33:], "more than 200,000 chunks")
        refused(data[:-12] + chunk(kind) * 300_000 + data[-12:], "more than 200,000 chunks")
    whole = data[:33] + chunk(b"teSt", bytes(1000)) + data[33:]
    assert other_chunks(whole) - other_chunks(data) == 1000
    np.testing.assert_array_equal(decode(whole), decode(data))


def test_text_and_profiles_of_a_png_that_unpack_to_very_much() -> None:
    data, text = encoded("PNG"), zlib.compress(bytes(1_000_000), 9)
    refused(data[:33] + chunk(b"zTXt", b"k\0\0" + text) * 500 + data[33:], "Too much memory")
    refused(
        data[:33] + chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(100 << 20), 9)) + data[33:], "too large"
    )


def test_damaged_pixels_of_a_png_by_their_checksum() -> None:
    for data in (encoded("PNG"), encoded("PNG", compress_level=0)):
        at = data.index(b"IDAT")
        for place in range(at + 10, len(data) - 30, 997):
            refused(
                data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :], "checksum|cannot be decoded"
            )
            refused(data[:place] + bytes(100) + data[place + 100 :], "checksum|cannot be decoded")


def test_tags_of_very_many_numbers() -> None:
    n = 3_000_000
    assert decode(tiff()).shape == (64, 64, 3)
    for tag in (700, 258, 40000):  # XMP, bits, unknown
        refused(tiff((tag, 3, n, 1000), more=bytes(2 * n)), "numbers in its tags")
    refused(tiff(*[(40000 + i, 7, n, 1000) for i in range(50)], more=bytes(n)), "numbers in its tags")
    below = struct.pack("<HHHII", 1, 40001, 3, n, 1000)  # in the directory of EXIF
    refused(tiff((34665, 4, 1, 5096), more=below + bytes(2 * n)), "numbers in its tags")
    # Text of any length is only bytes; a tag that cannot be there is not read.
    assert decode(tiff((40000, 7, n, 1000), (40001, 4, 2**31, 1000), more=bytes(n))).shape == (64, 64, 3)


def test_exif_of_an_avif() -> None:
    exif = b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHII", 0x9999, 3, 3_000_000, 26) + bytes(4 + 6_000_000)
    refused(encoded("AVIF", exif=exif), "numbers in its tags")


def test_comments_of_a_plain_ppm() -> None:
    body = b"1 2 3 " * (64 * 64)
    assert decode(b"P3\n# a comment\n64 64 255\n# another\n" + body).shape == (64, 64, 3)
    refused(b"P3\n64 64\n255\n" + b"#\n" * 500_000 + body, "500,000 comments")


def test_tiles_and_code_blocks_of_jpeg_2000() -> None:
    for options in (
        {},
        {"tile_size": (128, 128)},
        {"codeblock_size": (32, 32)},
        {"precinct_size": (128, 128)},
    ):
        data = encoded("JPEG2000", 300, **options)
        check_metadata(data)
        assert codestream(data).pixels == 300 * 300
        assert decode(data).shape == (300, 300, 3)
    refused(encoded("JPEG2000", 640, tile_size=(8, 8)), "6,400 tiles")
    refused(encoded("JPEG2000", 300, codeblock_size=(4, 4)), "code-blocks of 16 samples")
    data = encoded("JPEG2000", 300, precinct_size=(128, 128))
    sides = b"\x22\x33\x44\x55\x66\x77"  # of each resolution, powers of 2
    assert sides in data
    refused(data.replace(sides, b"\x22" * 6), "precincts of 16")


def test_damaged_files_are_an_image_error_and_nothing_else() -> None:
    exif = b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHII", 0x0112, 3, 1, 1) + bytes(4)
    files = [encoded("PNG"), tiff((40000, 3, 20, 1000)), encoded("AVIF", exif=exif), encoded("JPEG2000")]
    files.append(b"II+\0\x08\0\0\0" + struct.pack("<QQHHQQ", 16, 1, 256, 3, 1, 64) + bytes(40))

    @settings(max_examples=300)
    @given(st.sampled_from(files), st.integers(0, 5000), st.binary(min_size=1, max_size=8))
    def damaged(data: bytes, at: int, junk: bytes) -> None:
        at %= min(len(data), 600)
        try:
            check_metadata(data[:at] + junk + data[at + len(junk) :])
        except ImageError:
            return

    damaged()
