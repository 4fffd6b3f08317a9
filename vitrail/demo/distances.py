"""What the demo's things are made of: distances to simple bodies, and patterns of colour in space.

All are functions of points p (n, 3); a distance is negative inside a body (Quilez, "Distance functions").
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vitrail.demo.rendering import Thing, Values, Vector, as_light, at, blend, length

# Directions and phases of the waves that a grain is made of.
WAVES = np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32)
PHASES = np.random.default_rng(2).uniform(0, 6.3, 8).astype(np.float32)


def ball(p: Values, centre: Vector, radius: float) -> Values:
    return length(p - at(centre)) - radius


def egg(p: Values, centre: Vector, radii: Vector) -> Values:
    return (length((p - at(centre)) / at(radii)) - 1) * min(radii)


def rod(p: Values, start: Vector, end: Vector, radius: float) -> Values:
    """With round ends."""
    a, d = at(start), at(end) - at(start)
    along = np.clip((p - a) @ d / (d @ d), 0, 1)
    return length(p - a - along[:, None] * d) - radius


def block(p: Values, centre: Vector, half: Vector) -> Values:
    outside = np.abs(p - at(centre)) - at(half)
    return length(np.maximum(outside, 0)) + np.minimum(outside.max(1), 0)


def merged(one: Values, other: Values, width: float) -> Values:
    """The union, with a seam that is smooth over this width."""
    h = np.clip(0.5 + 0.5 * (other - one) / width, 0, 1)
    return other * (1 - h) + one * h - width * h * (1 - h)


def turned(p: Values, degrees: float, axis: int = 1) -> Values:
    """The points, turned about an axis."""
    c, s = np.array((np.cos(np.radians(degrees)), np.sin(np.radians(degrees))), np.float32)
    a, b = (axis + 1) % 3, (axis + 2) % 3
    made = p.copy()
    made[:, a], made[:, b] = c * p[:, a] - s * p[:, b], s * p[:, a] + c * p[:, b]
    return made


def together(*parts: Thing) -> Thing:
    """One thing of several."""

    def distance(p: Values) -> Values:
        return np.minimum.reduce([part.distance(p) for part in parts])

    def of_nearest(p: Values, values: list[Values]) -> Values:
        nearest = np.argmin([part.distance(p) for part in parts], 0)  # (n,)
        return np.stack(values)[nearest, np.arange(len(p))]

    return Thing(
        distance,
        lambda p: of_nearest(p, [part.colour(p) for part in parts]),
        lambda p: of_nearest(p, [part.relief(p) for part in parts]),
    )


def grain(p: Values, *scale: float) -> Values:
    """A random pattern, about 0 to 1; `scale`: how fine, along each axis."""
    return 0.5 + 0.5 * np.tanh(np.sin((p * np.array(scale, np.float32)) @ WAVES + PHASES).sum(1) / 2.5)


def mottled(one: Vector, other: Vector, *scale: float) -> Callable[[Values], Values]:
    """The colour between two, in bytes, by a grain."""
    return lambda p: blend(as_light(one), as_light(other), grain(p, *scale))


def pitted(depth: float, *scale: float) -> Callable[[Values], Values]:
    """A relief."""
    return lambda p: depth * grain(p, *scale)
