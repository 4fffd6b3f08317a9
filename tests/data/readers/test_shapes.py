"""The procedural data set: the label is the answer, nothing else gives it away, and a seed makes every example."""

from __future__ import annotations

import hashlib
import math
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitrail.data.readers.shapes import (
    BACKGROUNDS,
    COLOURS,
    POINTED,
    QUESTIONS,
    SHAPES,
    Background,
    Scene,
    ShapesSource,
    Thing,
    draw,
    hsv_to_rgb,
    open_shapes,
    outlines,
    sample_scene,
)
from vitrail.data.sources import list_splits, open_source
from vitrail.errors import ConfigError, DataError


def picture(where: str, split: str, index: int) -> bytes:
    image = open_source(where, split).read(index).image
    assert isinstance(image, np.ndarray)
    return image.tobytes()


@pytest.mark.parametrize("question", sorted(QUESTIONS))
def test_sizes_classes_and_balance(question: str) -> None:
    source = open_source(f"shapes:{question}?n=400&image_size=24")
    assert len(source) == len(source.labels) == 400
    assert source.class_names == list(QUESTIONS[question])
    classes = len(source.class_names)
    for first in range(0, 400 - classes, classes):
        assert sorted(source.labels[first : first + classes]) == list(range(classes))
    example = source.read(7)
    assert (np.shape(example.image), example.label, example.key) == ((24, 24, 3), source.labels[7], "train:7")


def test_names_and_splits() -> None:
    assert list_splits("shapes") == ["train", "validation", "test"]
    default = open_source("shapes", "val")
    assert (len(default), default.class_names) == (1000, list(QUESTIONS["shape"]))
    assert np.shape(default.read(0).image) == (64, 64, 3)
    assert len(open_source("shapes:count", "train[:10 per class]")) == 80


def test_an_example_depends_on_question_seed_split_and_index_alone() -> None:
    one = picture("shapes:count?n=40&image_size=16", "train", 5)
    assert one == picture("shapes:count?n=4000&image_size=16", "train", 5)
    others = [
        picture("shapes:count?n=40&image_size=16&seed=1", "train", 5),
        picture("shapes:shape?n=40&image_size=16", "train", 5),
        picture("shapes:count?n=40&image_size=16", "train", 6),
        picture("shapes:count?n=40&image_size=16", "test", 5),
    ]
    assert one not in others
    small, large = (open_shapes("shapes", "train", {"image_size": size}) for size in ("16", "64"))
    assert small.scene(3) == large.scene(3)


def test_no_picture_is_in_two_splits() -> None:
    digests = {
        split: {hashlib.sha256(picture("shapes?n=800&image_size=16", split, i)).digest() for i in range(200)}
        for split in ("train", "validation", "test")
    }
    assert len(set.union(*digests.values())) == 600


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("shapes:size", "no question 'size' about shapes; there are: shape, colour, count"),
        ("shapes?m=3", "has no option m: its options are: n, image_size, seed"),
        ("shapes?n=3", "n=3; a whole number from 4"),
        ("shapes?image_size=-5", "image_size=-5"),
        ("shapes?image_size=100000", "from 8 to 2048"),
        ("shapes?seed=x", "seed=x"),
        ("shapes?seed", "cannot be read"),
        ("shapes?seed=1&seed=2", "set the same name twice"),
    ],
)
def test_refused(where: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_source(where)


def test_missing_split_and_index() -> None:
    with pytest.raises(DataError, match="no split 'extra'"):
        open_source("shapes", "extra")
    with pytest.raises(IndexError):
        open_source("shapes?n=40").read(40)


def test_pickles_and_fingerprint() -> None:
    source = ShapesSource("count", "train", 40, 16, 0)
    again = pickle.loads(pickle.dumps(source))
    assert np.array_equal(again.read(3).image, source.read(3).image)
    others = [
        ShapesSource("count", "test", 40, 16, 0),
        ShapesSource("count", "train", 41, 16, 0),
        ShapesSource("shape", "train", 40, 16, 0),
        ShapesSource("count", "train", 40, 17, 0),
        ShapesSource("count", "train", 40, 16, 1),
    ]
    assert len({source.fingerprint() for source in [source, again, *others]}) == 6


def scene(question: str, label: int, seed: int) -> Scene:
    return sample_scene(question, label, np.random.default_rng(seed))


questions = st.sampled_from(sorted(QUESTIONS)).flatmap(
    lambda question: st.tuples(st.just(question), st.integers(0, len(QUESTIONS[question]) - 1))
)


@given(questions, st.integers(0, 2**32))
@settings(max_examples=200)
def test_the_label_is_the_answer(asked: tuple[str, int], seed: int) -> None:
    question, label = asked
    made = scene(question, label, seed)
    thing = made.things[0]
    assert all(0 < t.radius <= t.x <= 1 - t.radius and t.radius <= t.y <= 1 - t.radius for t in made.things)
    match question:
        case "count":
            assert len(made.things) == label + 1
            pairs = [(a, b) for i, a in enumerate(made.things) for b in made.things[:i]]
            assert all(math.hypot(a.x - b.x, a.y - b.y) > a.radius + b.radius for a, b in pairs)
        case "position":
            assert (int(3 * thing.y) * 3 + int(3 * thing.x)) == label
        case "orientation":
            assert round(thing.angle / 45) % 8 == label
        case "shape":
            assert thing.shape == QUESTIONS["shape"][label]
        case "colour":
            near = min(COLOURS, key=lambda name: _hue_distance(thing.rgb, COLOURS[name][0]))
            assert near == QUESTIONS["colour"][label]


def _hue_distance(rgb: tuple[int, int, int], hue: float) -> float:
    red, green, blue = (channel / 255 for channel in rgb)
    angle = math.degrees(math.atan2(math.sqrt(3) * (green - blue), 2 * red - green - blue))
    return abs((angle - hue + 180) % 360 - 180)


@pytest.mark.parametrize("question", ["count", "position", "orientation", "shape"])
def test_colours_do_not_tell_the_answer(question: str) -> None:
    """The mean colour of the things is about the same for every label."""
    means = [
        np.mean([scene(question, label, seed).things[0].rgb for seed in range(120)])
        for label in range(len(QUESTIONS[question]))
    ]
    assert max(means) - min(means) < 35


def test_sizes_hardly_tell_the_count() -> None:
    radii = [
        np.mean([t.radius for seed in range(100) for t in scene("count", n, seed).things]) for n in range(8)
    ]
    assert max(radii) < 1.25 * min(radii)


def test_backgrounds_vary() -> None:
    kinds = Counter(scene("shape", 0, seed).background.kind for seed in range(300))
    assert len(kinds) == 6
    assert min(kinds.values()) > 20


def test_colours_in_bytes() -> None:
    assert hsv_to_rgb(0, 1, 1) == hsv_to_rgb(360, 1, 1) == (255, 0, 0)
    assert hsv_to_rgb(240, 0.5, 1) == (128, 128, 255)


def plain(*things: Thing, kind: str = "plain") -> Scene:
    clouds = tuple(tuple(float((i * j) % 3) / 2 for j in range(5)) for i in range(5))
    return Scene(Background(kind, ((90, 90, 90), (200, 200, 200)), 30.0, 0.2, clouds, ()), things)


def coverage(picture: np.ndarray) -> np.ndarray:
    """How red a pixel is, for red things on grey."""
    return np.clip((picture[..., 0].astype(int) - picture[..., 1]) / 200, 0, 1)


@pytest.mark.parametrize("shape", sorted({*SHAPES, *POINTED}))
def test_a_thing_is_where_it_should_be_with_smooth_edges(shape: str) -> None:
    picture = draw(plain(Thing(shape, (220, 10, 10), 0.6, 0.4, 0.2, 70.0)), 96)
    assert (picture.shape, picture.dtype) == ((96, 96, 3), np.uint8)
    cover = coverage(picture)
    y, x = np.nonzero(cover > 0.5)
    assert abs(x.mean() / 96 - 0.6) < 0.08
    assert abs(y.mean() / 96 - 0.4) < 0.08
    assert np.hypot(x / 96 - 0.6, y / 96 - 0.4).max() < 0.23  # no part is further away than its radius
    edge = ((cover > 0.1) & (cover < 0.9)).sum()
    assert edge > 0.2 * np.sqrt((cover > 0.5).sum())  # some pixels are partly covered
    assert (picture[0] == 90).all()  # far away nothing changed


def test_shapes_fit_the_unit_circle_and_differ() -> None:
    for shape in {*SHAPES, *POINTED}:
        points = np.array(outlines(shape)[0])
        assert 0.9 < np.hypot(*points.T).max() <= 1.001
    pictures = [draw(plain(Thing(shape, (220, 10, 10), 0.5, 0.5, 0.3, 0.0)), 48) for shape in SHAPES]
    distances = [
        np.abs(coverage(a) - coverage(b)).sum() for i, a in enumerate(pictures) for b in pictures[:i]
    ]
    assert min(distances) > 30


@pytest.mark.parametrize("angle", [0, 90, 180, 270])
def test_angles_turn_against_the_clock_from_the_right(angle: int) -> None:
    cover = coverage(draw(plain(Thing("drop", (220, 10, 10), 0.5, 0.5, 0.4, float(angle))), 64))
    y, x = np.nonzero(cover > 0.5)
    # The tip of a drop is thin: of its two ends, the further one from the centre of mass is where it points.
    along = {0: x, 90: -y, 180: -x, 270: y}[angle]
    assert along.max() - along.mean() > along.mean() - along.min()


@pytest.mark.parametrize("question", sorted(QUESTIONS))
def test_the_same_picture_at_every_size(question: str) -> None:
    for seed in range(8):
        scene = sample_scene(question, seed % len(QUESTIONS[question]), np.random.default_rng(seed))
        small = draw(scene, 48).astype(float)
        large = np.array(Image.fromarray(draw(scene, 192)).reduce(4), dtype=float)
        assert np.abs(small - large).mean() < 6  # fine stripes differ a little; other scenes differ by 30


@pytest.mark.parametrize("kind", BACKGROUNDS)
def test_backgrounds_stay_between_their_colours(kind: str) -> None:
    picture = draw(plain(kind=kind), 40)
    assert picture.min() >= 90
    assert picture.max() <= 200
    assert (len(np.unique(picture)) == 1) == (kind == "plain")


def test_tiny_things_are_still_drawn() -> None:
    assert coverage(draw(plain(Thing("circle", (220, 10, 10), 0.5, 0.5, 0.01, 0.0)), 16)).max() > 0.5


def test_things_at_the_border_are_cut_off() -> None:
    cover = coverage(draw(plain(Thing("square", (220, 10, 10), 0.0, 1.0, 0.3, 0.0)), 32))
    assert cover[-1, 0] > 0.9
    assert cover[0, -1] == 0
