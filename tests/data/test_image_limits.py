"""At most 1 GB and 5 s an image: more is refused from the header, in words; what is decoded stays below."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
import time
import warnings
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data.jpeg_files import every_bit, jpeg, many_scans, picture
from vitrail.data import image_limits
from vitrail.data.decode import decode
from vitrail.data.image_limits import check_metadata, codestream, other_chunks
from vitrail.data.jpeg_header import read_jpeg_header
from vitrail.errors import ImageError

# In a process of its own: the most memory that decoding took, beside what was there before, and seconds.
MEASURE = """
import json, sys, time
from vitrail.data.decode import decode
from vitrail.data.jpeg_header import read_jpeg_header
from vitrail.errors import ImageError

def most():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

data = open(sys.argv[1], "rb").read()
before, begin = most() - len(data), time.process_time()
try:
    said = repr(decode(data, name="f").shape)
except ImageError as error:
    said = str(error)
print(json.dumps([most() - before, time.process_time() - begin, said]))
"""


def encoded(mode: str, megapixels: float, format: str, **options: object) -> bytes:
    """A flat picture: as many pixels as are wanted in next to no bytes."""
    side = math.isqrt(int(megapixels * 1e6))
    file = BytesIO()
    Image.new(mode, (side, side)).save(file, format, **options)
    return file.getvalue()


def png(width: int, height: int, bits: int, colour: int) -> bytes:
    """The header of one; no pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def webp(width: int, height: int) -> bytes:
    """A lossless one of 38 bytes, all of one colour."""
    data = encoded("RGB", 1e-6, "WEBP", lossless=True)
    at = data.index(b"VP8L") + 9
    (head,) = struct.unpack("<I", data[at : at + 4])
    sizes = head >> 28 << 28 | (height - 1) << 14 | (width - 1)
    return data[:at] + struct.pack("<I", sizes) + data[at + 4 :]


def tiff(width: int, height: int, **tags: int) -> bytes:
    """The header of one of 32-bit integers, packed by deflate."""
    usual = {
        256: width,
        257: height,
        258: 32,
        259: 8,
        262: 1,
        273: 500,
        277: 1,
        278: height,
        279: 100,
        339: 2,
    }
    all_tags = sorted((usual | {int(tag[1:]): value for tag, value in tags.items()}).items())
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in all_tags)
    return (b"II*\0\x08\0\0\0" + struct.pack("<H", len(all_tags)) + entries).ljust(600, b"\0")


def bmp(width: int, height: int, body: bytes) -> bytes:
    """One of 8 bits in run lengths."""
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(body), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 1078 + len(body), 0, 0, 1078) + head + bytes(1024) + body


BOMBS = {
    "WebP of 38 bytes": (webp(16383, 10900), "GB of memory"),
    "PNG with alpha": (png(13300, 13300, 8, 6), "GB of memory"),
    "PNG of 16 bits with alpha": (png(9400, 9400, 16, 6), "s"),
    "TIFF of 32 bits": (tiff(13300, 13300), "GB of memory"),
    "TIFF of one large tile": (tiff(64, 64, t322=60_000, t323=60_000, t324=500, t325=100), "GB of memory"),
    "TIFF by LZMA": (tiff(7000, 7000, t259=34925), "s"),
    "BMP of one row in run lengths": (bmp(150_000_000, 1, b"\1\5\0\0"), "s"),
    "PPM of plain numbers": (b"P2 13000 13000 65535\n" + b"1 " * 1000, "GB of memory"),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_refused_with_its_need_and_the_limit(kind: str) -> None:
    data, need = BOMBS[kind]
    begin = time.thread_time()
    with pytest.raises(
        ImageError, match=rf"bomb\.img: .* needs about [\d.]+ {need}; the limit for an image is "
    ):
        decode(data, name="bomb.img")
    assert time.thread_time() - begin < 1


def test_a_large_jpeg_is_refused_by_its_scans() -> None:
    data = jpeg(picture(64, 64), progressive=True, subsampling=0)
    at = data.index(b"\xff\xc2") + 5
    large = data[:at] + struct.pack(">HH", 12_000, 12_000) + data[at + 4 :]
    with pytest.raises(ImageError, match=r"needs about 1\.\d GB of memory; the limit for an image is 1 GB"):
        decode(large)


def test_photographs_of_a_hundred_megapixels_are_within_the_limits() -> None:
    for options in ({}, {"progressive": True}):
        data = jpeg(picture(64, 64), **options)
        at = data.index(b"\xff\xc2" if options else b"\xff\xc0") + 5
        large = data[:at] + struct.pack(">HH", 10_000, 10_000) + data[at + 4 :] + bytes(40_000_000)
        for by_pillow in (False, True):
            image_limits.check_jpeg_cost(large, read_jpeg_header(large), by_pillow=by_pillow)
    data = png(10_000, 10_000, 8, 2) + bytes(150_000_000)
    file = image_limits.MeteredFile(data)
    with warnings.catch_warnings(action="ignore"), Image.open(file) as image:
        image_limits.check_cost(image, data, file)


SLOW = {
    "comments of a GIF": lambda: _gif(b"!\xfe" + b"\1a" * 2_000_000 + b"\0"),
    "a header of a PPM": lambda: b"P6 #" + b"a" * 3_000_000 + b"\n4 4 255\n" + bytes(48),
    "numbers of a PPM": lambda: b"P6\n2000 2000\n254\n" + bytes(12_000_000),
    "run lengths of a BMP": lambda: bmp(2000, 2000, b"\1\5" * 4_000_000),
}


def _gif(extension: bytes) -> bytes:
    data = encoded("L", 0.0001, "GIF")
    at = 13 + (3 * (2 << (data[10] & 7)) if data[10] & 128 else 0)
    return data[:at] + extension + data[at:]


@pytest.mark.parametrize("kind", SLOW)
def test_a_reader_in_python_is_stopped(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_limits, "READING_SECONDS", 0.1)
    begin = time.thread_time()
    with pytest.raises(ImageError, match=r"slow\.img: it takes more than 5 s"):
        decode(SLOW[kind](), name="slow.img")
    assert time.thread_time() - begin < 1


# The largest of each kind that is decoded, nearly.
LARGEST = {
    "PNG RGB": ("RGB", 136, "PNG", {"compress_level": 1}),
    "PNG RGBA": ("RGBA", 105, "PNG", {"compress_level": 1}),
    "PNG grey": ("L", 175, "PNG", {"compress_level": 1}),
    "PNG palette": ("P", 120, "PNG", {"compress_level": 1, "transparency": 0}),
    "TIFF of 32 bits": ("I", 95, "TIFF", {"compression": "tiff_adobe_deflate"}),
    "TIFF RGB": ("RGB", 105, "TIFF", {"compression": "tiff_lzw"}),
    "WebP": ("RGB", 55, "WEBP", {"lossless": True, "method": 0, "quality": 0}),
    "WebP with alpha": ("RGBA", 55, "WEBP", {"lossless": True, "method": 0, "quality": 0}),
    "AVIF": ("RGB", 47, "AVIF", {"speed": 10}),
    "JPEG 2000": ("RGB", 48, "JPEG2000", {}),
    "GIF": ("P", 130, "GIF", {"transparency": 0}),
    "BMP": ("RGB", 90, "BMP", {}),
    "JPEG": ("RGB", 175, "JPEG", {}),
    "progressive JPEG": ("RGB", 104, "JPEG", {"progressive": True, "subsampling": 0}),
    "CMYK JPEG": ("CMYK", 100, "JPEG", {}),
    "turned JPEG": ("RGB", 150, "JPEG", {"exif": 6}),
    "turned PNG": ("RGB", 130, "PNG", {"exif": 6, "compress_level": 1}),
    "turned TIFF": ("RGB", 100, "TIFF", {"exif": 6, "compression": "tiff_lzw"}),
}


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the most memory of a process is read from /proc")
@pytest.mark.parametrize("kind", LARGEST)
def test_what_is_decoded_stays_within_a_gigabyte(kind: str, tmp_path: Path) -> None:
    mode, megapixels, format, options = LARGEST[kind]
    if "exif" in options:
        exif = Image.Exif()
        exif[0x0112] = options["exif"]
        options = options | {"exif": exif}
    memory, seconds, said = measured(encoded(mode, megapixels, format, **options), tmp_path)
    assert said.startswith("("), said
    assert memory <= image_limits.MAX_MEMORY
    assert seconds <= image_limits.MAX_SECONDS


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the most memory of a process is read from /proc")
@pytest.mark.parametrize("kind", [*BOMBS, *SLOW, "880 scans", "EXIF of a hundred megabytes"])
def test_what_is_refused_takes_no_more_either(kind: str, tmp_path: Path) -> None:
    files = {name: data for name, (data, _) in BOMBS.items()}
    files["880 scans"] = many_scans(8192, every_bit(13) + [(1, 63, 1, 0)] * 61)
    exif = b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHII", 0x9999, 3, 50_000_000, 26) + bytes(100_000_004)
    files["EXIF of a hundred megabytes"] = encoded("RGB", 0.01, "WEBP", exif=exif)
    memory, seconds, _ = measured(files[kind] if kind in files else SLOW[kind](), tmp_path)
    assert memory <= image_limits.MAX_MEMORY
    assert seconds <= image_limits.MAX_SECONDS


def measured(data: bytes, folder: Path) -> tuple[float, float, str]:
    path = folder / "image"
    path.write_bytes(data)
    run = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True)
    memory, seconds, said = json.loads(run.stdout)
    return memory, seconds, said


def encoded_metadata(format: str, size: int = 64, **options: object) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, format, **options)
    return file.getvalue()


def chunk(kind: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def tiff_metadata(*tags: tuple[int, int, int, int], more: bytes = b"") -> bytes:
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
    data = encoded_metadata("PNG")
    for kind in (b"teSt", b"IDAT"):
        refused(data[:33] + chunk(kind) * 300_000 + data[33:], "more than 200,000 chunks")
        refused(data[:-12] + chunk(kind) * 300_000 + data[-12:], "more than 200,000 chunks")
    whole = data[:33] + chunk(b"teSt", bytes(1000)) + data[33:]
    assert other_chunks(whole) - other_chunks(data) == 1000
    np.testing.assert_array_equal(decode(whole), decode(data))


def test_text_and_profiles_of_a_png_that_unpack_to_very_much() -> None:
    data, text = encoded_metadata("PNG"), zlib.compress(bytes(1_000_000), 9)
    refused(data[:33] + chunk(b"zTXt", b"k\0\0" + text) * 500 + data[33:], "Too much memory")
    refused(
        data[:33] + chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(100 << 20), 9)) + data[33:], "too large"
    )


def test_damaged_pixels_of_a_png_by_their_checksum() -> None:
    for data in (encoded_metadata("PNG"), encoded_metadata("PNG", compress_level=0)):
        at = data.index(b"IDAT")
        for place in range(at + 10, len(data) - 30, 997):
            refused(
                data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :], "checksum|cannot be decoded"
            )
            refused(data[:place] + bytes(100) + data[place + 100 :], "checksum|cannot be decoded")


def test_tags_of_very_many_numbers() -> None:
    n = 3_000_000
    assert decode(tiff_metadata()).shape == (64, 64, 3)
    for tag in (700, 258, 40000):  # XMP, bits, unknown
        refused(tiff_metadata((tag, 3, n, 1000), more=bytes(2 * n)), "numbers in its tags")
    refused(
        tiff_metadata(*[(40000 + i, 7, n, 1000) for i in range(50)], more=bytes(n)), "numbers in its tags"
    )
    below = struct.pack("<HHHII", 1, 40001, 3, n, 1000)  # in the directory of EXIF
    refused(tiff_metadata((34665, 4, 1, 5096), more=below + bytes(2 * n)), "numbers in its tags")
    # Text of any length is only bytes; a tag that cannot be there is not read.
    assert decode(tiff_metadata((40000, 7, n, 1000), (40001, 4, 2**31, 1000), more=bytes(n))).shape == (
        64,
        64,
        3,
    )


def test_exif_of_an_avif() -> None:
    exif = b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHII", 0x9999, 3, 3_000_000, 26) + bytes(4 + 6_000_000)
    refused(encoded_metadata("AVIF", exif=exif), "numbers in its tags")


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
        data = encoded_metadata("JPEG2000", 300, **options)
        check_metadata(data)
        assert codestream(data)[0] == 300 * 300
        assert decode(data).shape == (300, 300, 3)
    refused(encoded_metadata("JPEG2000", 640, tile_size=(8, 8)), "6,400 tiles")
    refused(encoded_metadata("JPEG2000", 300, codeblock_size=(4, 4)), "code-blocks of 16 samples")
    data = encoded_metadata("JPEG2000", 300, precinct_size=(128, 128))
    sides = b"\x22\x33\x44\x55\x66\x77"  # of each resolution, powers of 2
    assert sides in data
    refused(data.replace(sides, b"\x22" * 6), "precincts of 16")


def test_damaged_files_are_an_image_error_and_nothing_else() -> None:
    exif = b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHII", 0x0112, 3, 1, 1) + bytes(4)
    files = [
        encoded_metadata("PNG"),
        tiff_metadata((40000, 3, 20, 1000)),
        encoded_metadata("AVIF", exif=exif),
        encoded_metadata("JPEG2000"),
    ]
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
