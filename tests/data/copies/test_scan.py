"""One pass over a source."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from vitrail.data.copies.scan import THUMBNAIL, scan, thumbnail
from vitrail.data.sources import Example
from vitrail.errors import DataError


@dataclass
class Memory:
    images: list[bytes | np.ndarray]
    name: str = "memory"
    class_names: list[str] = field(default_factory=lambda: ["thing"])
    missing: int = -1  # an index that cannot be read at all

    @property
    def labels(self) -> np.ndarray:
        return np.zeros(len(self.images), np.int64)

    def __len__(self) -> int:
        return len(self.images)

    def key(self, index: int) -> str:
        return f"{index}.png"

    def read(self, index: int) -> Example:
        if index == self.missing:
            raise DataError(f"{self.key(index)}: cannot be read: permission denied")
        return Example(self.images[index], 0, self.key(index))

    def fingerprint(self) -> str:
        return "0"


def png(pixels: np.ndarray) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def source() -> Memory:
    rng = np.random.default_rng(0)
    colour = rng.integers(0, 256, (20, 30, 3), np.uint8)
    grey = rng.integers(0, 256, (40, 10), np.uint8)
    return Memory([png(colour), b"not an image", png(grey), colour, png(colour), b""], missing=5)


def test_what_is_remembered(source: Memory) -> None:
    seen = scan(source)
    assert len(seen) == 6
    assert seen.sizes.tolist() == [[20, 30], [0, 0], [40, 10], [20, 30], [20, 30], [0, 0]]
    assert seen.modes.tolist() == ["RGB", "", "L", "array", "RGB", ""]
    assert (
        seen.digests[0]
        == seen.digests[4]
        == hashlib.blake2b(source.images[0], digest_size=16).hexdigest().encode()
    )
    assert seen.digests[3] != seen.digests[0]
    np.testing.assert_array_equal(seen.thumbnails[3], seen.thumbnails[0])
    assert seen.thumbnails[0].std() > 0


def test_an_image_that_cannot_be_read_keeps_its_place_and_says_why(source: Memory) -> None:
    seen = scan(source)
    assert list(seen.broken) == [1, 5]
    assert "1.png" in seen.broken[1]
    assert "permission denied" in seen.broken[5]
    assert seen.digests[1] == b""
    assert not seen.thumbnails[1].any()


def test_threads_change_nothing(source: Memory) -> None:
    here, there = scan(source, num_workers=1), scan(source, num_workers=2)
    for name in ("digests", "sizes", "modes", "thumbnails"):
        np.testing.assert_array_equal(getattr(here, name), getattr(there, name))
    assert here.broken == there.broken


def test_a_thumbnail_is_the_whole_image_in_grey() -> None:
    pixels = np.zeros((100, 300, 3), np.uint8)
    pixels[:, 150:] = (0, 255, 0)
    small = thumbnail(pixels)
    assert small.shape == (THUMBNAIL, THUMBNAIL)
    assert small[:, : THUMBNAIL // 2 - 2].max() == 0
    assert np.unique(small[:, THUMBNAIL // 2 + 2 :]).tolist() == [150]  # 0.587 of 255


def test_a_thumbnail_by_strips_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (90, 70, 3), np.uint8)
    whole = thumbnail(pixels)
    monkeypatch.setattr("vitrail.data.copies.scan.STRIP", 700)
    np.testing.assert_array_equal(thumbnail(pixels), whole)
