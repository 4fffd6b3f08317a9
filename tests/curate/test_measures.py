from io import BytesIO

import numpy as np
from PIL import Image, ImageFilter

from vitrail.curate.measures import measure, metadata
from vitrail.curate.odd_images import find_blurred, find_bright, find_dark, find_odd_sizes, find_outliers


def picture(seed, side=160):
    """Noise of all scales, as photographs have it."""
    rng = np.random.default_rng(seed)
    pixels = sum(
        np.asarray(Image.fromarray(rng.integers(0, 60, (n, n, 3), np.uint8)).resize((side, side)), np.int64)
        for n in (4, 16, 64, side)
    )
    return Image.fromarray(pixels.astype(np.uint8))


def of(image):
    pixels = np.asarray(image)
    return measure(pixels, pixels)


def test_blurred_images_are_found_beside_sharp_ones():
    images = [of(picture(i)) for i in range(24)]
    assert find_blurred(images) == {}
    blurred = [of(picture(i).filter(ImageFilter.GaussianBlur(radius))) for i, radius in enumerate((3, 5))]
    flat = of(Image.new("RGB", (90, 60), (120, 110, 100)))
    found = find_blurred([*images, *blurred, None, flat])
    assert set(found) == {24, 25, 27} and all(0.6 < score <= 1 for score, _ in found.values())
    tiny = of(Image.new("RGB", (9, 9)))
    assert tiny.blur is None and find_blurred([*images, tiny]) == {}


def test_dark_and_washed_out_images_are_found():
    dark, bright = picture(0).point(lambda v: v // 8), picture(0).point(lambda v: 220 + v // 8)
    measures = [of(picture(1)), of(dark), of(bright), None]
    assert set(find_dark(measures)) == {1} and set(find_bright(measures)) == {2}
    assert "dark" in find_dark(measures)[1][1]


def test_odd_sizes_are_those_of_the_few():
    sizes = np.array([[100, 130]] * 30 + [[20, 26], [100, 700], [0, 0]])
    odd = find_odd_sizes(sizes)
    assert set(odd) == {30, 31} and "5.0 times smaller" in odd[30][1] and "5.4 times longer" in odd[31][1]
    assert find_odd_sizes(sizes[28:]) == {}  # too few to say what is usual


def test_outliers_are_the_few_that_are_farthest_from_all_others():
    similarity = np.r_[np.linspace(0.8, 0.9, 160), 0.6, 0.2, 0.7, np.nan]
    assert list(find_outliers(similarity)) == [161, 160]  # of 164, 1% rounded up
    assert find_outliers(similarity[:160]) == {} and find_outliers(similarity[150:]) == {}


def test_metadata_tell_how_a_file_was_written():
    def stored(form, **options):
        stream = BytesIO()
        picture(0, 32).save(stream, form, **options)
        return metadata(stream.getvalue()).tolist()

    kinds = [
        stored("PNG"),
        stored("JPEG"),
        stored("JPEG", quality=30),
        stored("JPEG", progressive=True),
        stored("JPEG", comment=b"mine"),
    ]
    assert len({tuple(kind) for kind in kinds}) == 5
    assert stored("JPEG") == kinds[1]
