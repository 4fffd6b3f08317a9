"""Copies of pictures are found, and pictures that only look alike are not."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image, ImageEnhance, ImageOps

from vitrail.data.copies import duplicates
from vitrail.data.copies.duplicates import CANDIDATE, MOST, THRESHOLD, Pairs, find_pairs
from vitrail.data.copies.scan import THUMBNAIL, Scan, thumbnail


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


def listed(pairs: Pairs) -> list[tuple[int, int]]:
    return list(zip(pairs.i.tolist(), pairs.j.tolist(), strict=True))


PHOTOS = [photo(seed) for seed in range(150)]
OTHERS = [photo(seed) for seed in range(1000, 1050)]
ALL = seen(PHOTOS)


@pytest.mark.parametrize("change", CHANGES)
def test_every_copy_is_found_and_nothing_else(change: str) -> None:
    copied = [5, 17, 40, 41, 77, 100, 111, 149]
    pairs = find_pairs(ALL, seen([CHANGES[change](PHOTOS[i]) for i in copied] + OTHERS))
    assert listed(pairs) == [(i, j) for j, i in enumerate(copied)]
    assert (pairs.score >= THRESHOLD).all()
    assert set(pairs.how) == {"mirrored" if "mirrored" in change else "near"}


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
    assert pairs.how.tolist() == ["bytes", "bytes"]


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
    assert pairs.how.tolist() == ["near", "bytes", "bytes", "mirrored"]
    assert pairs.score[1] == 1


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
    monkeypatch.setattr(duplicates, "BLOCK", 31)
    assert listed(find_pairs(images)) == listed(whole) == [(i, i + 50) for i in range(10, 30)]
    assert listed(find_pairs(ALL, images)) == listed(between)


def test_an_image_with_countless_copies_is_compared_a_bounded_number_of_times() -> None:
    many = seen([photo(0)] + [photo(0).resize((40 + k, 40 + k)) for k in range(MOST + 20)])
    pairs = find_pairs(seen([photo(0), photo(1)]), many)
    assert set(pairs.i) == {0}
    assert MOST - 1 <= len(pairs) <= MOST + 1


@given(hnp.arrays(np.uint8, (3, THUMBNAIL, THUMBNAIL)), st.sampled_from(["whole", "inner"]))
@settings(max_examples=50)
def test_mirroring_changes_the_sign_of_the_odd_half(thumbnails: np.ndarray, view: str) -> None:
    def vectors(pictures: np.ndarray) -> torch.Tensor:
        nothing = np.zeros(3, "S32"), np.full((3, 2), 64, np.int32), np.zeros(3, "U8")
        return duplicates._vectors(Scan(*nothing, np.ascontiguousarray(pictures), {}), view, 0, 3)

    d, mirrored = vectors(thumbnails), vectors(thumbnails[:, :, ::-1])
    torch.testing.assert_close(mirrored, d * torch.tensor([1.0] * 32 + [-1.0] * 32), atol=1e-3, rtol=0)
    lengths = d.norm(dim=1)
    assert (((lengths - 1).abs() < 1e-4) | (lengths == 0)).all()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200), st.floats(0.75, 1, width=32)), min_size=1))
def test_the_most_alike_are_kept(rows: list[tuple[int, int, float]]) -> None:
    found = np.array([(i, j, 0, False, alike) for i, j, alike in rows], CANDIDATE)
    kept = duplicates._most_alike(found)
    best = {(i, j): max(a for k, m, a in rows if (k, m) == (i, j)) for i, j, _ in rows}
    pairs = {(int(row["i"]), int(row["j"])) for row in kept}
    assert len(kept) == sum((i, j) in pairs for i, j, _ in rows)  # each pair in all of its views
    for i in {i for i, _, _ in rows}:
        expected = sorted((alike for pair, alike in best.items() if pair[0] == i), reverse=True)[:MOST]
        assert sorted((best[pair] for pair in pairs if pair[0] == i), reverse=True) == pytest.approx(expected)


def test_an_image_that_the_other_set_has_twice_is_found_twice() -> None:
    pairs = find_pairs(seen([photo(0), photo(1)]), seen([photo(1), photo(0), photo(0)]))
    assert sorted(listed(pairs)) == [(0, 1), (0, 2), (1, 0)]
    assert set(pairs.how.tolist()) == {"bytes"}


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
