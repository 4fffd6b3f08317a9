"""Light and shadow where they belong."""

import numpy as np
import pytest

from vitrail.demo.distances import ball, block, egg, mottled, rod, together, turned
from vitrail.demo.rendering import FAR, Camera, Scene, Thing, camera_rays, length, render, trace

GREY = mottled((128, 128, 128), (128, 128, 128), 1, 1, 1)
AHEAD = Camera(eye=(0.0, 1.0, -4.0), at=(0.0, 1.0, 0.0), zoom=2.0)


def points(n=200):
    return np.random.default_rng(0).uniform(-2, 2, (n, 3)).astype(np.float32)


def test_a_ray_ends_where_it_meets_the_ball():
    thing = Thing(lambda p: ball(p, (0, 1, 0), 0.5), GREY)
    rays = camera_rays(AHEAD, 3)
    t, met = trace(thing, np.float32(AHEAD.eye), rays, np.full(9, FAR, np.float32))
    assert met.tolist() == [False] * 4 + [True] + [False] * 4
    assert t[4] == pytest.approx(3.5, abs=0.01) and (t[~met] == np.float32(FAR)).all()


def test_distances_are_zero_on_the_surface_and_grow_as_one_leaves():
    p = points()
    outward = p / length(p)[:, None]
    for radius in (0.5, 1.5):
        np.testing.assert_allclose(ball(outward * np.float32(radius), (0, 0, 0), 1.0), radius - 1, atol=1e-5)
    np.testing.assert_allclose(egg(outward, (0, 0, 0), (1, 1, 1)), 0, atol=1e-5)
    np.testing.assert_allclose(rod(p, (0, 0, 0), (0, 1e-6, 0), 1.0), ball(p, (0, 0, 0), 1.0), atol=1e-4)
    assert block(
        np.float32([[0, 0, 0], [2, 0, 0], [2, 2, 1]]), (0, 0, 0), (1, 1, 1)
    ).tolist() == pytest.approx([-1, 1, 2**0.5])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_turning_keeps_lengths_and_turns_back(axis):
    p = points()
    there = turned(p, 40, axis)
    np.testing.assert_allclose(length(there), length(p), atol=1e-5)
    np.testing.assert_allclose(turned(there, -40, axis), p, atol=1e-5)
    np.testing.assert_allclose(turned(p, 90, 1)[:, 1], p[:, 1])


def test_of_several_parts_the_nearest_gives_the_colour():
    red, blue = mottled((255, 0, 0), (255, 0, 0), 1, 1, 1), mottled((0, 0, 255), (0, 0, 255), 1, 1, 1)
    both = together(
        Thing(lambda p: ball(p, (-1, 0, 0), 0.5), red), Thing(lambda p: ball(p, (1, 0, 0), 0.5), blue)
    )
    np.testing.assert_allclose(both.colour(np.float32([[-1, 0, 0], [0.9, 0, 0]])), [[1, 0, 0], [0, 0, 1]])
    assert (both.distance(points()) <= ball(points(), (1, 0, 0), 0.5)).all()


def test_the_side_to_the_sun_is_light_and_the_ground_behind_is_in_the_shadow():
    side = 60
    view = Camera(eye=(0.0, 3.0, -4.0), at=(0.0, 0.0, 0.0), zoom=1.5, sun=(-1.0, 1.0, 0.0))
    thing = Thing(lambda p: ball(p, (0, 0.5, 0), 0.5), GREY)
    made = render(Scene(thing, GREY, view), side).astype(float).mean(2)
    half, row = side // 2, int(side * 0.47)
    ball_left, ball_right = made[row, half - 6 : half - 3].mean(), made[row, half + 4 : half + 7].mean()
    assert ball_left > ball_right + 30
    assert (
        made[half, half - 10 : half - 7].mean() > made[half, half + 7 : half + 10].mean() + 30
    )  # the ground
