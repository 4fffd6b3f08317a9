"""Scenes: the label is the answer, and nothing else gives it away."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.readers.scenes import COLOURS, QUESTIONS, Scene, hsv_to_rgb, sample_scene


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
