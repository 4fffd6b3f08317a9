"""HEIC by pi-heif, where that is installed; AVIF by Pillow."""

import base64
import io

import numpy as np
import pytest
from PIL import Image, features

from vitrail.data import heif, image_limits
from vitrail.data.decode import decode, stored_mode
from vitrail.data.readers.file_names import is_image_name
from vitrail.errors import ImageError

# 64 x 48 pixels, red growing to the right and green downwards, blue 128; then turned by 90 degrees, as a phone does.
# Its EXIF says the same once more.
PHOTO = base64.b64decode(
    "AAAAHGZ0eXBoZWljAAAAAG1pZjFoZWljbWlhZgAAAchtZXRhAAAAAAAAACFoZGxyAAAAAAAAAABwaWN0AAAAAAAAAAAAAAAAAAAA"
    "ADRpbG9jAAAAAERAAAIAAQAAAAAB7AABAAAAAAAAAFUAAgAAAAACQQABAAAAAAAAACQAAAA4aWluZgAAAAAAAgAAABVpbmZlAgAA"
    "AAABAABodmMxAAAAABVpbmZlAgAAAQACAABFeGlmAAAAAA5waXRtAAAAAAABAAABB2lwcnAAAADmaXBjbwAAAHZodmNDAQNwAAAA"
    "kAAAAAAAHvAA/P34+AAADwNgAAEAGEABDAH//wNwAAADAJAAAAMAAAMAHroCQGEAAQAqQgEBA3AAAAMAkAAAAwAAAwAeoCCBBZbq"
    "5Ka5uAhoMCAAAAMDIAAAAwAhYgABAAZEAcFzwIkAAAATY29scm5jbHgAAQANAAaAAAAAFGlzcGUAAAAAAAAAQAAAAEAAAAAoY2xh"
    "cAAAAEAAAAABAAAAMAAAAAEAAAAAAAAAAv////AAAAACAAAAEHBpeGkAAAAAAwgICAAAAAlpcm90AwAAABlpcG1hAAAAAAAAAAEA"
    "AQaBAgMFhIYAAAAaaXJlZgAAAAAAAAAOY2RzYwACAAEAAQAAAIFtZGF0AAAAUSgBr1jm//RPASqQFakFz54VniX17eu6yA27bnLC"
    "xcRiughJaplDMCDkCLta7TXzfjzlH1kxA2Y63bvxaObfEZJYeYRNIFGAZa7k23c/cHPO7QAAAAZFeGlmAABNTQAqAAAACAABARIA"
    "AwAAAAEABgAAAAAAAA=="
)
needs_heif = pytest.mark.skipif(not heif.heif_installed(), reason="needs pi-heif, the extra `heif`")


@needs_heif
def test_a_photo_of_a_phone_is_upright():
    pixels = decode(PHOTO)
    assert pixels.shape == (64, 48, 3) and pixels.dtype == np.uint8
    y, x = np.mgrid[:48, :64]
    expected = np.rot90(np.stack([4 * x, 5 * y, np.full_like(x, 128)], axis=2), -1)
    assert np.abs(pixels.astype(int) - expected).mean() < 12
    assert stored_mode(PHOTO) == "RGB"
    assert is_image_name("IMG_0001.HEIC")


@needs_heif
@pytest.mark.parametrize("damage", ["end", "middle", "head"])
def test_damaged_files_are_errors_with_a_name(damage):
    data = bytearray(PHOTO)
    data = {"end": data[:-80], "middle": data[:300] + bytes(120) + data[420:], "head": data[:60]}[damage]
    with pytest.raises(ImageError, match=r"^a\.heic: "):
        decode(bytes(data), name="a.heic")


@needs_heif
def test_what_costs_too_much_is_refused_by_its_header(monkeypatch):
    with pytest.raises(ImageError, match="1 to 3,000 pixels"):
        decode(PHOTO, max_pixels=3000)
    monkeypatch.setattr(image_limits, "MAX_MEMORY", 1_000_000)
    with pytest.raises(ImageError, match=r"HEIC of 48 x 64 pixels needs about .* of memory"):
        decode(PHOTO)


def test_without_pi_heif_the_error_says_how_to_get_it(without_heif):
    with pytest.raises(ImageError, match=r"HEIC.*heif-convert.*vitrail\[heif\]"):
        decode(PHOTO)
    assert not is_image_name("IMG_0001.HEIC")


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_avif_is_read_by_pillow():
    y, x = np.mgrid[:48, :64]
    pixels = np.stack([4 * x, 5 * y, np.full_like(x, 128)], axis=2).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "AVIF", quality=90)
    assert np.abs(decode(file.getvalue()).astype(int) - pixels).mean() < 6
    with pytest.raises(ImageError):
        decode(file.getvalue()[:-100])
