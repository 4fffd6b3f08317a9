"""Every rule of decode.py's docstring, on files made here."""

from __future__ import annotations

import struct
import threading
import warnings
import zlib
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image, ImageFile

from vitrail.data.decode import decode
from vitrail.errors import ImageError

RED, WHITE = (255, 0, 0), (255, 255, 255)


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    file = BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def photo(height: int = 48, width: int = 64) -> Image.Image:
    """Smooth and coloured, as JPEG likes it."""
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([x * 3, y * 4, x + y], axis=2).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM"])
def test_rgb_comes_back_as_it_is(format: str) -> None:
    pixels = noise(7, 5, 3)
    decoded = decode(encoded(Image.fromarray(pixels), format))
    assert decoded.dtype == np.uint8
    assert decoded.flags.writeable
    np.testing.assert_array_equal(decoded, pixels)


@pytest.mark.parametrize("format", ["JPEG", "WEBP", "JPEG2000", "AVIF", "GIF"])
def test_lossy_formats_come_back_nearly_so(format: str) -> None:
    decoded = decode(encoded(photo(), format))
    assert decoded.shape == (48, 64, 3)
    assert np.abs(decoded.astype(int) - np.asarray(photo())).mean() < 8


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied(format: str, orientation: int) -> None:
    upright = np.zeros((24, 40, 3), np.uint8)
    upright[:8, :16] = RED  # the top left corner
    # The stored picture is what the orientation turns into the upright one (EXIF 2.32, 4.6.4 A).
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    options = (
        {"quality": 95, "subsampling": 0}
        if format == "JPEG"
        else {"lossless": True}
        if format == "WEBP"
        else {}
    )
    data = encoded(Image.fromarray(np.ascontiguousarray(stored)), format, exif=exif, **options)
    decoded = decode(data)
    assert decoded.shape == upright.shape
    assert np.abs(decoded.astype(int) - upright).max() < 40


def test_a_damaged_exif_block_counts_as_none() -> None:
    whole = encoded(photo(), "JPEG")
    block = b"Exif\0\0" + b"MM\0*\0\0\0\x08\xff\xff" + b"\x01\x12\0\x03" * 3
    data = whole[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + whole[2:]
    np.testing.assert_array_equal(decode(data), decode(whole))


def test_greyscale_and_one_bit_are_repeated() -> None:
    grey = noise(6, 9)
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(grey))), np.dstack([grey] * 3))
    bits = grey > 128
    np.testing.assert_array_equal(
        decode(encoded(Image.fromarray(bits))), np.dstack([bits * np.uint8(255)] * 3)
    )


def test_palette_gives_its_colours() -> None:
    palette = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8), "P")
    palette.putpalette([*RED, 0, 255, 0, 10, 20, 30])
    assert decode(encoded(palette)).tolist() == [[[255, 0, 0], [0, 255, 0]], [[10, 20, 30], [0, 255, 0]]]


@pytest.mark.parametrize("transparency", [1, bytes([255, 0])])
def test_palette_transparency_is_white(transparency: int | bytes) -> None:
    palette = Image.fromarray(np.array([[0, 1]], np.uint8), "P")
    palette.putpalette([*RED, 0, 255, 0])
    assert decode(encoded(palette, transparency=transparency)).tolist() == [[[255, 0, 0], [255, 255, 255]]]


def test_alpha_is_composited_on_white() -> None:
    rgba = np.array([[[255, 0, 0, 255], [255, 0, 0, 0], [0, 0, 0, 128]]], np.uint8)
    assert decode(encoded(Image.fromarray(rgba))).tolist() == [
        [[255, 0, 0], [255, 255, 255], [127, 127, 127]]
    ]
    la = np.array([[[100, 255], [100, 0]]], np.uint8)
    assert decode(encoded(Image.fromarray(la))).tolist() == [[[100, 100, 100], [255, 255, 255]]]


def test_key_colour_is_white() -> None:
    rgb = Image.fromarray(np.array([[RED, (1, 2, 3)]], np.uint8))
    assert decode(encoded(rgb, transparency=(1, 2, 3))).tolist() == [[[255, 0, 0], [255, 255, 255]]]
    grey = Image.fromarray(np.array([[7, 9]], np.uint8))
    assert decode(encoded(grey, transparency=9)).tolist() == [[[7, 7, 7], [255, 255, 255]]]


def test_cmyk_jpeg_is_read_inverted_as_adobe_writes_it() -> None:
    ink = np.zeros((16, 16, 4), np.uint8)
    ink[..., 1:3] = 255  # magenta and yellow make red
    data = encoded(Image.fromarray(ink, "CMYK"), "JPEG", quality=100)
    assert b"Adobe" in data
    assert np.abs(decode(data).astype(int) - RED).max() <= 3
    ycck = data.replace(b"Adobe\0d\0\0\0\0\0", b"Adobe\0d\0\0\0\0\2")
    assert ycck != data
    # The samples (255, 0, 0, 255) taken as YCCK are, by the formulas of JFIF, the colour (179, 0, 227).
    assert np.abs(decode(ycck).astype(int) - (179, 0, 227)).max() <= 3


def test_16_bit_greyscale_keeps_the_high_byte() -> None:
    values = np.array([[0, 255, 256, 257 * 100, 65535]], np.uint16)
    expected = np.array([0, 0, 1, 100, 255])
    for format in ("PNG", "TIFF", "PPM"):
        decoded = decode(encoded(Image.fromarray(values), format))
        assert decoded.shape == (1, 5, 3)
        assert (decoded == expected[None, :, None]).all(), format


def test_16_bit_colour_keeps_the_high_byte() -> None:
    rows = b"".join(b"\0" + struct.pack(">6H", 257 * 9, 300, 65535, 0, 255, 256) for _ in range(2))
    data = png(width=2, height=2, bits=16, colour=2, rows=rows)
    assert decode(data).tolist() == [[[9, 1, 255], [0, 0, 1]]] * 2


def test_32_bit_values_are_stretched() -> None:
    integers = np.array([[-1000, 0, 1000]], np.int32)
    floats = np.array([[0.5, 1.0, 1.5]], np.float32)
    for values in (integers, floats):
        assert decode(encoded(Image.fromarray(values), "TIFF"))[0, :, 0].tolist() == [0, 128, 255]
    flat = np.full((2, 2), 3.0, np.float32)
    assert decode(encoded(Image.fromarray(flat), "TIFF")).tolist() == [[[0, 0, 0]] * 2] * 2
    with pytest.raises(ImageError, match=r"a\.tif: some pixels are not finite"):
        decode(encoded(Image.fromarray(floats * np.nan), "TIFF"), name="a.tif")


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_an_animation_the_first_frame(format: str) -> None:
    frames = [Image.new("RGB", (8, 6), colour) for colour in (RED, (0, 0, 255))]
    options = {"lossless": True} if format == "WEBP" else {}
    data = encoded(frames[0], format, save_all=True, append_images=frames[1:], **options)
    assert (decode(data) == RED).all()


def test_of_a_camera_file_with_previews_the_first_picture() -> None:
    data = encoded(photo(), "MPO", save_all=True, append_images=[Image.new("RGB", (20, 10), RED)])
    assert Image.open(BytesIO(data)).format == "MPO"
    np.testing.assert_array_equal(decode(data), decode(encoded(photo(), "JPEG")))


def test_a_bomb_is_refused_from_its_header() -> None:
    data = png(width=30_000, height=30_000, bits=8, colour=0, rows=b"")
    with pytest.raises(ImageError, match=r"bomb\.png: .*30000 x 30000|bomb\.png: .*900000000"):
        decode(data, name="bomb.png")
    small = encoded(photo(48, 64))
    with pytest.raises(ImageError, match="64 x 48 pixels; at most 3,071 pixels"):
        decode(small, max_pixels=48 * 64 - 1)
    assert decode(small, max_pixels=48 * 64).shape == (48, 64, 3)


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("GIF", {}),
        ("BMP", {}),
        ("WEBP", {}),
        ("AVIF", {}),
    ],
)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("lenient", [False, True])
def test_a_truncated_file_is_an_error(
    format: str, options: dict[str, bool], share: float, lenient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    data = encoded(Image.fromarray(noise(96, 128, 3)), format, **options)
    with pytest.raises(ImageError, match=r"cut\.img: "):
        decode(data[: int(len(data) * share)], name="cut.img")
    assert lenient == ImageFile.LOAD_TRUNCATED_IMAGES


def test_what_is_no_image_says_so() -> None:
    with pytest.raises(ImageError, match=r"a\.jpg: the file is empty"):
        decode(b"", name="a.jpg")
    with pytest.raises(ImageError, match=r"b\.jpg: not an image in a known format \(JPEG, PNG"):
        decode(b"just some text\n" * 20, name="b.jpg")
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    with pytest.raises(ImageError, match="not an image in a known format"):
        decode(postscript)


def test_broken_bytes_are_an_image_error_and_nothing_else() -> None:
    sources = [encoded(photo(), format) for format in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF")]

    @settings(max_examples=300)
    @given(st.sampled_from(sources), st.integers(0, 10_000), st.binary(min_size=1, max_size=8))
    def damaged(data: bytes, at: int, junk: bytes) -> None:
        at %= len(data)
        try:
            pixels = decode(data[:at] + junk + data[at + len(junk) :], name="x", max_pixels=100_000)
        except ImageError as error:
            assert str(error).startswith("x: ")
        else:
            assert pixels.dtype == np.uint8
            assert pixels.shape[2:] == (3,)

    damaged()


def test_threads_leave_the_settings_of_the_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    filters = list(warnings.filters)
    good, cut = encoded(photo(), "JPEG"), encoded(photo(), "JPEG")[:-200]
    failures: list[str] = []

    def work() -> None:
        for _ in range(30):
            decode(good)
            try:
                decode(cut)
            except ImageError:
                continue
            failures.append("a truncated file was decoded")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True
    assert list(warnings.filters) == filters


def png(*, width: int, height: int, bits: int, colour: int, rows: bytes) -> bytes:
    """A PNG file by hand, for what Pillow does not write."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(
    ("brands", "kind"),
    [(b"heic\0\0\0\0mif1heic", "HEIC"), (b"mif1\0\0\0\0mif1", "HEIC"), (b"avif\0\0\0\0mif1avif", "AVIF")],
)
def test_photographs_of_phones_are_to_be_converted(
    brands: bytes, kind: str, monkeypatch: pytest.MonkeyPatch, without_heif: None
) -> None:
    monkeypatch.setattr("vitrail.data.decode.FORMATS", ("PNG", "JPEG"))  # as a Pillow without AVIF
    data = struct.pack(">I", 8 + len(brands)) + b"ftyp" + brands + bytes(100)
    with pytest.raises(ImageError, match=f"a.jpg: an image in the format {kind}, .* convert to JPEG or PNG"):
        decode(data, name="a.jpg")
    with pytest.raises(ImageError, match="not an image in a known format"):
        decode(data.replace(b"heic", b"qt  ").replace(b"mif1", b"qt  ").replace(b"avif", b"qt  "))
