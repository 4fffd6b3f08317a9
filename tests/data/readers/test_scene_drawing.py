"""Drawings: smooth edges, the right place and colour, the same picture at every size."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from vitrail.data.readers.scenes import (
    BACKGROUNDS,
    POINTED,
    QUESTIONS,
    SHAPES,
    Background,
    Scene,
    Thing,
    draw,
    outlines,
    sample_scene,
)


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
        points = np.array([point for outline, filled in outlines(shape) if filled for point in outline])
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
