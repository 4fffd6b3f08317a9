"""What is in a picture of the procedural data set: things with a shape, a colour, a place, on a background.

    (question, label, rng) ──► Scene, in units of the picture's side ──► scene_drawing.py ──► pixels at any size

A question is what the label says about the scene (QUESTIONS); everything that is not asked for is drawn at
random, so that no shortcut leads to the answer: sizes hardly tell the count, colours do not tell the shape.
"""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass

import numpy as np

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "heart", "crescent", "drop", "arrow")
POINTED = ("arrow", "drop", "dart")  # for the orientation: no other direction could be meant
UPRIGHT = ("arrow", "drop", "triangle")  # for the shape: drawn pointing to the right, shown pointing up
BACKGROUNDS = ("plain", "slope", "glow", "stripes", "checks", "clouds")
COLOURS = {  # name -> hue in degrees, its spread, range of saturation, range of value
    "red": (358, 7, (0.75, 0.95), (0.65, 0.95)),
    "orange": (27, 5, (0.80, 1.00), (0.85, 1.00)),
    "yellow": (53, 5, (0.75, 1.00), (0.85, 1.00)),
    "green": (125, 18, (0.55, 0.90), (0.45, 0.80)),
    "cyan": (184, 7, (0.55, 0.90), (0.75, 0.95)),
    "blue": (222, 10, (0.65, 0.95), (0.60, 0.95)),
    "purple": (274, 9, (0.55, 0.85), (0.55, 0.85)),
    "pink": (332, 7, (0.35, 0.60), (0.90, 1.00)),
}
QUESTIONS: dict[str, tuple[str, ...]] = {
    "shape": SHAPES,
    "colour": tuple(COLOURS),
    "count": ("one", "two", "three", "four", "five", "six", "seven", "eight"),
    "position": (
        "top left", "top", "top right", "left", "centre", "right", "bottom left", "bottom", "bottom right",
    ),
    "orientation": ("right", "up right", "up", "up left", "left", "down left", "down", "down right"),
}  # fmt: skip

RGB = tuple[int, int, int]


@dataclass(frozen=True)
class Thing:
    """One object. Lengths in units of the picture's side, y downwards; angle in degrees, against the clock."""

    shape: str
    rgb: RGB
    x: float
    y: float
    radius: float
    angle: float


@dataclass(frozen=True)
class Background:
    """Two muted colours, a pattern that leads from one to the other, and some thin strokes."""

    kind: str
    rgb: tuple[RGB, RGB]
    angle: float  # of the pattern, in degrees
    period: float  # of stripes, checks and clouds, in units of the picture's side
    clouds: tuple[tuple[float, ...], ...]  # 5 x 5 heights in [0, 1]
    strokes: tuple[tuple[float, float, float, float], ...]  # x0, y0, x1, y1


@dataclass(frozen=True)
class Scene:
    """One picture."""

    background: Background
    things: tuple[Thing, ...]


def sample_scene(question: str, label: int, rng: np.random.Generator) -> Scene:
    """A scene to which `label` is the answer to `question`."""
    background = _background(rng)
    if question == "count":
        return Scene(background, _scattered(label + 1, rng))
    shape = SHAPES[label] if question == "shape" else str(rng.choice(SHAPES))
    colour = tuple(COLOURS)[label] if question == "colour" else str(rng.choice(tuple(COLOURS)))
    angle = rng.uniform(0, 360)
    radius = rng.uniform(0.15, 0.34)
    x, y = rng.uniform(radius, 1 - radius, size=2)
    if question == "position":
        radius = rng.uniform(0.08, 0.16)
        cell = np.array([label % 3, label // 3])  # one of 3 x 3
        x, y = np.clip((cell + 0.5 + rng.uniform(-0.25, 0.25, size=2)) / 3, radius, 1 - radius)
    elif question == "orientation":
        shape = str(rng.choice(POINTED))
        angle = 45 * label + rng.uniform(-14, 14)
    elif question == "shape":
        # Any angle would do, but a square on its corner is a rhombus to most people: keep within 30 degrees.
        angle = rng.uniform(-30, 30) + (90 if shape in UPRIGHT else 0)
    return Scene(background, (Thing(shape, _colour(colour, rng), float(x), float(y), radius, angle),))


def _scattered(count: int, rng: np.random.Generator) -> tuple[Thing, ...]:
    """`count` things that do not touch; their sizes hardly depend on how many they are."""
    things: list[Thing] = []
    shape, colour = str(rng.choice(SHAPES)), str(rng.choice(tuple(COLOURS)))
    alike = rng.random() < 0.5  # all of one kind, or each its own
    limit = 0.13
    while len(things) < count:
        radius = rng.uniform(0.06, limit)
        x, y = rng.uniform(radius, 1 - radius, size=2)
        if any(math.hypot(x - other.x, y - other.y) < 1.15 * (radius + other.radius) for other in things):
            limit = max(limit * 0.98, 0.06)  # crowded: the next try is smaller
            continue
        if not alike:
            shape, colour = str(rng.choice(SHAPES)), str(rng.choice(tuple(COLOURS)))
        things.append(Thing(shape, _colour(colour, rng), float(x), float(y), radius, rng.uniform(0, 360)))
    return tuple(things)


def _background(rng: np.random.Generator) -> Background:
    value = rng.uniform(0.12, 0.95)
    step = rng.uniform(0.06, 0.25) * (1 if value < 0.5 else -1)
    hue = rng.uniform(0, 360)
    near = hsv_to_rgb(hue, rng.uniform(0, 0.3), value)
    far = hsv_to_rgb(hue + rng.uniform(-60, 60), rng.uniform(0, 0.3), value + step)
    strokes = rng.uniform(0, 1, size=(int(rng.integers(0, 6)), 4))
    return Background(
        kind=str(rng.choice(BACKGROUNDS)),
        rgb=(near, far),
        angle=rng.uniform(0, 360),
        period=rng.uniform(0.08, 0.3),
        clouds=tuple(tuple(map(float, row)) for row in rng.uniform(0, 1, size=(5, 5))),
        strokes=tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in strokes),
    )


def _colour(name: str, rng: np.random.Generator) -> RGB:
    hue, spread, saturation, value = COLOURS[name]
    return hsv_to_rgb(hue + rng.uniform(-spread, spread), rng.uniform(*saturation), rng.uniform(*value))


def hsv_to_rgb(hue: float, saturation: float, value: float) -> RGB:
    """Hue in degrees, saturation and value in [0, 1], to bytes."""
    red, green, blue = colorsys.hsv_to_rgb(hue % 360 / 360, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)
