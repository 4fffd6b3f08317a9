"""One pass over a source; copies of pictures are found, and pictures that only look alike are not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image, ImageEnhance, ImageOps

from vitrail.data import copies
from vitrail.data.copies import (
    MOST,
    THRESHOLD,
    THUMBNAIL,
    VIEWS,
    Pair,
    Scan,
    find_pairs,
    scan,
    thumbnail,
)
from vitrail.data.sources import Example
from vitrail.errors import DataError


def photo(seed: int, width: int = 64, height: int = 64) -> Image.Image:
    """A picture with the spectrum of photographs, 1/f in amplitude, in colour."""
    rng = np.random.default_rng(seed)
    fy, fx = np.fft.fftfreq(height)[:, None, None], np.fft.fftfreq(width)[:, None]
    amplitude = 1 / np.maximum(np.hypot(fy, fx), 1 / max(width, height))
    noise = np.fft.fft2(rng.standard_normal((height, width, 3)), axes=(0, 1)) * amplitude
    values = np.fft.ifft2(noise, axes=(0, 1)).real
    return Image.fromarray(np.clip(128 + 45 * values / values.std(), 0, 255).astype(np.uint8))


def jpeg(image: Image.Image) -> Image.Image:
    file = BytesIO()
    image.save(file, "JPEG", quality=60)
    return Image.open(BytesIO(file.getvalue())).convert("RGB")


def resized(image: Image.Image) -> Image.Image:
    return image.resize((round(image.width * 0.8), round(image.height * 0.8)), Image.Resampling.BICUBIC)


def cropped(image: Image.Image) -> Image.Image:
    return image.crop((3, 3, image.width - 3, image.height - 3))


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "jpeg": jpeg,
    "resized": resized,
    "cropped": cropped,
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.1),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.9),
    "mirrored": ImageOps.mirror,
    "mirrored and cropped": lambda image: cropped(ImageOps.mirror(image)),
    "resized and jpeg": lambda image: jpeg(resized(image)),
}


def seen(images: list[Image.Image]) -> Scan:
    """The scan of pictures, without files; the digest is of the pixels."""
    pixels = [np.asarray(image) for image in images]
    return Scan(
        np.array([str(hash(each.tobytes())).encode() for each in pixels], "S32"),
        np.array([each.shape[:2] for each in pixels], np.int32).reshape(-1, 2),  # (n, 2)
        np.full(len(pixels), "RGB", "U8"),
        np.array([thumbnail(each) for each in pixels], np.uint8).reshape(
            -1, THUMBNAIL, THUMBNAIL
        ),  # (n, S, S)
        {},
    )


def listed(pairs: list[Pair]) -> list[tuple[int, int]]:
    return [(pair.i, pair.j) for pair in pairs]


PHOTOS = [photo(seed) for seed in range(150)]
OTHERS = [photo(seed) for seed in range(1000, 1050)]
ALL = seen(PHOTOS)


@pytest.mark.parametrize("change", CHANGES)
def test_every_copy_is_found_and_nothing_else(change: str) -> None:
    copied = [5, 17, 40, 41, 77, 100, 111, 149]
    pairs = find_pairs(ALL, seen([CHANGES[change](PHOTOS[i]) for i in copied] + OTHERS))
    assert listed(pairs) == [(i, j) for j, i in enumerate(copied)]
    assert all(THRESHOLD <= pair.score < 1.01 for pair in pairs)
    assert {pair.how for pair in pairs} == {"mirrored" if "mirrored" in change else "near"}


def test_the_other_way_round_too() -> None:
    copies = seen([CHANGES["mirrored and cropped"](PHOTOS[i]) for i in (3, 60)])
    assert listed(find_pairs(copies, ALL)) == [(0, 3), (1, 60)]


@pytest.mark.parametrize(("width", "height"), [(128, 80), (80, 128)])
def test_the_central_square_of_an_oblong_picture(width: int, height: int) -> None:
    wide = [photo(seed, width, height) for seed in range(40)]
    squares = [ImageOps.fit(image, (64, 64)) for image in wide[:6]]
    expected = [(i, i) for i in range(6)]
    assert listed(find_pairs(seen(wide), seen(squares))) == expected
    assert listed(find_pairs(seen(squares), seen(wide))) == expected


@pytest.mark.parametrize(("width", "height"), [(128, 96), (96, 128)])
def test_a_squeezed_picture_and_its_central_square(width: int, height: int) -> None:
    wide = [photo(seed, width, height) for seed in range(40)]
    squeezed = [image.resize((32, 32)) for image in wide]
    squares = [ImageOps.fit(image, (64, 64)) for image in wide[:6]]
    assert listed(find_pairs(seen(squares), seen(squeezed))) == [(i, i) for i in range(6)]


def test_flat_images_match_by_their_bytes_alone() -> None:
    rng = np.random.default_rng(0)

    def flat(level: int) -> Image.Image:
        return Image.fromarray((level + rng.integers(0, 3, (64, 64, 3))).astype(np.uint8))

    images = [flat(level) for level in (0, 100, 100, 200, 250)]
    black = Image.new("RGB", (64, 64))
    pairs = find_pairs(seen([*images, black]), seen([flat(100), images[2], *PHOTOS[:5], black]))
    assert listed(pairs) == [(2, 1), (5, 7)]
    assert [pair.how for pair in pairs] == ["bytes", "bytes"]


def test_inside_one_set_each_pair_once() -> None:
    images = [
        PHOTOS[0],
        PHOTOS[1],
        jpeg(PHOTOS[0]),
        PHOTOS[2],
        PHOTOS[1],
        ImageOps.mirror(PHOTOS[2]),
        PHOTOS[1],
    ]
    pairs = find_pairs(seen(images))
    assert listed(pairs) == [(0, 2), (1, 4), (1, 6), (3, 5)]
    assert [pair.how for pair in pairs] == ["near", "bytes", "bytes", "mirrored"]
    assert pairs[1].score == 1


def test_an_image_that_could_not_be_read_matches_nothing() -> None:
    broken = Scan(
        np.zeros(2, "S32"),
        np.zeros((2, 2), np.int32),
        np.zeros(2, "U8"),
        np.zeros((2, THUMBNAIL, THUMBNAIL), np.uint8),
        {0: "empty", 1: "empty"},
    )
    assert len(find_pairs(broken)) == 0
    assert len(find_pairs(broken, broken)) == 0
    assert len(find_pairs(ALL, broken)) == 0


def test_empty_sets_have_no_pairs() -> None:
    nothing = seen([])
    assert len(find_pairs(nothing)) == len(find_pairs(ALL, nothing)) == len(find_pairs(nothing, ALL)) == 0


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    images = seen(PHOTOS[:60] + [CHANGES["cropped"](image) for image in PHOTOS[10:30]])
    whole, between = find_pairs(images), find_pairs(ALL, images)
    monkeypatch.setattr(copies, "BLOCK", 1000)
    monkeypatch.setattr(copies, "AT_ONCE", 7)
    assert listed(find_pairs(images)) == listed(whole) == [(i, i + 50) for i in range(10, 30)]
    assert listed(find_pairs(ALL, images)) == listed(between)


def test_an_image_with_countless_copies_is_compared_a_bounded_number_of_times() -> None:
    many = seen([photo(0)] + [photo(0).resize((40 + k, 40 + k)) for k in range(MOST + 20)])
    pairs = find_pairs(seen([photo(0), photo(1)]), many)
    assert {pair.i for pair in pairs} == {0}
    assert MOST - 1 <= len(pairs) <= MOST + 1


@given(hnp.arrays(np.uint8, (3, THUMBNAIL, THUMBNAIL)), st.sampled_from(["whole", "inner"]))
@settings(max_examples=50)
def test_mirroring_changes_the_sign_of_the_odd_half(thumbnails: np.ndarray, view: str) -> None:
    def vectors(pictures: np.ndarray) -> torch.Tensor:
        nothing = np.zeros(3, "S32"), np.full((3, 2), 64, np.int32), np.zeros(3, "U8")
        return copies._vectors(Scan(*nothing, np.ascontiguousarray(pictures), {}), slice(0, 3))[view]

    d, mirrored = vectors(thumbnails), vectors(thumbnails[:, :, ::-1])
    torch.testing.assert_close(mirrored, d * torch.tensor([1.0] * 32 + [-1.0] * 32), atol=1e-3, rtol=0)
    lengths = d.norm(dim=1)
    assert (((lengths - 1).abs() < 1e-4) | (lengths == 0)).all()


@pytest.mark.parametrize("inside", [False, True])
def test_the_most_alike_are_verified_in_all_their_views(
    inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[int] = []

    def every_one(f: torch.Tensor, g: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        verified.append(len(f))
        return torch.ones(len(f))

    monkeypatch.setattr(copies, "same_picture", every_one)
    monkeypatch.setattr(copies, "MOST", 5)
    monkeypatch.setattr(copies, "ALIKE", 0.2)
    one = seen([photo(seed, 96 - 32 * (seed % 2)) for seed in range(40)])
    other = one if inside else seen([photo(seed, 64 + 32 * (seed % 2)) for seed in range(100, 140)])
    a, b = (copies._vectors(scanned, slice(0, 40)) for scanned in (one, other))
    signs = torch.tensor([1.0] * 32 + [-1.0] * 32)
    alike = torch.stack(
        [torch.maximum(a[v] @ b[w].T, a[v] * signs @ b[w].T) for v, w in VIEWS]
    )  # (views, 40, 40)
    best = alike.amax(0).triu(1) if inside else alike.amax(0)
    expected = [(i, j) for i in range(40) for j in best[i].topk(5).indices.tolist() if best[i, j] > 0.2]
    assert len(expected) > 100
    assert listed(find_pairs(one, None if inside else other)) == sorted(expected)
    assert sum(verified) == 2 * sum(
        int((alike[:, i, j] > 0.2).sum()) for i, j in expected
    )  # in both directions


def test_an_image_that_the_other_set_has_twice_is_found_twice() -> None:
    pairs = find_pairs(seen([photo(0), photo(1)]), seen([photo(1), photo(0), photo(0)]))
    assert sorted(listed(pairs)) == [(0, 1), (0, 2), (1, 0)]
    assert {pair.how for pair in pairs} == {"bytes"}


def changed(image: Image.Image, seed: int) -> Image.Image:
    """Cut at each side, and perhaps made brighter or darker, mirrored, resized, squared, compressed."""
    rng = np.random.default_rng(seed)
    left, top, right, bottom = rng.uniform(0, 0.12, 4) * (*image.size, *image.size)
    image = image.crop((round(left), round(top), round(image.width - right), round(image.height - bottom)))
    ways: list[Callable[[Image.Image], Image.Image]] = [
        lambda picture: ImageEnhance.Brightness(picture).enhance(rng.uniform(0.7, 1.3)),
        ImageOps.mirror,
        lambda picture: picture.resize((64, 64)),
        lambda picture: ImageOps.fit(picture, (64, 64)),
        jpeg,
    ]
    for way in ways:
        image = way(image) if rng.random() < 0.4 else image
    return image


def together(*scans: Scan) -> Scan:
    names = ("digests", "sizes", "modes", "thumbnails")
    return Scan(*(np.concatenate([getattr(each, name) for each in scans]) for name in names), {})


def test_a_pair_is_one_whatever_it_is_compared_among_and_in_which_order() -> None:
    shapes = [(64, 64), (96, 64), (64, 96)]
    pictures = [photo(seed, *shapes[seed % 3]) for seed in range(100)]
    n, one = len(pictures), seen(pictures)
    other = seen([changed(picture, seed) for seed, picture in enumerate(pictures)])

    def answers(threshold: float) -> list[set[tuple[int, int]]]:
        inside = listed(find_pairs(together(one, other), threshold=threshold))
        inside_back = listed(find_pairs(together(other, one), threshold=threshold))
        return [
            set(listed(find_pairs(one, other, threshold=threshold))),
            {(j, i) for i, j in listed(find_pairs(other, one, threshold=threshold))},
            {(i, j - n) for i, j in inside if i < n <= j},
            {(j - n, i) for i, j in inside_back if i < n <= j},
        ]

    sure, most = answers(THRESHOLD + 0.01), answers(THRESHOLD - 0.01)  # a score may differ in its last digits
    assert min(map(len, sure)) > 80
    for found in sure:
        assert all(found <= others for others in most)


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
    monkeypatch.setattr("vitrail.data.copies.STRIP", 700)
    np.testing.assert_array_equal(thumbnail(pixels), whole)
