"""Building blocks of the demo's things: distances to simple bodies, and patterns of colour in space.

All are functions of points p (n, 3); a distance is negative inside a body (Quilez, "Distance functions").
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vitrail.demo.rendering import Thing, Values, Vector, as_light, at, blend, length

# Directions and phases of the waves of `grain`.
WAVES = np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32)
PHASES = np.random.default_rng(2).uniform(0, 6.3, 8).astype(np.float32)


def ball(p: Values, centre: Vector, radius: float) -> Values:
    return length(p - at(centre)) - radius


def egg(p: Values, centre: Vector, radii: Vector) -> Values:
    return (length((p - at(centre)) / at(radii)) - 1) * min(radii)


def rod(p: Values, start: Vector, end: Vector, radius: float) -> Values:
    """A rod with round ends."""
    a, d = at(start), at(end) - at(start)
    along = np.clip((p - a) @ d / (d @ d), 0, 1)
    return length(p - a - along[:, None] * d) - radius


def block(p: Values, centre: Vector, half: Vector) -> Values:
    outside = np.abs(p - at(centre)) - at(half)
    return length(np.maximum(outside, 0)) + np.minimum(outside.max(1), 0)


def merged(one: Values, other: Values, width: float) -> Values:
    """Return the union of two bodies, with a seam that is smooth over `width`."""
    h = np.clip(0.5 + 0.5 * (other - one) / width, 0, 1)
    return other * (1 - h) + one * h - width * h * (1 - h)


def turned(p: Values, degrees: float, axis: int = 1) -> Values:
    """Turn points about an axis."""
    c, s = np.array((np.cos(np.radians(degrees)), np.sin(np.radians(degrees))), np.float32)
    a, b = (axis + 1) % 3, (axis + 2) % 3
    q = p.copy()
    q[:, a], q[:, b] = c * p[:, a] - s * p[:, b], s * p[:, a] + c * p[:, b]
    return q


def together(*things: Thing) -> Thing:
    """Return several things as one."""

    def distance(p: Values) -> Values:
        return np.minimum.reduce([thing.distance(p) for thing in things])

    def take_nearest(p: Values, values: list[Values]) -> Values:
        nearest = np.argmin([thing.distance(p) for thing in things], 0)  # (n,)
        return np.stack(values)[nearest, np.arange(len(p))]

    return Thing(
        distance,
        lambda p: take_nearest(p, [thing.colour(p) for thing in things]),
        lambda p: take_nearest(p, [thing.relief(p) for thing in things]),
    )


def grain(p: Values, *scale: float) -> Values:
    """Return a random pattern of about 0 to 1; `scale` is its fineness along each axis."""
    return 0.5 + 0.5 * np.tanh(np.sin((p * np.array(scale, np.float32)) @ WAVES + PHASES).sum(1) / 2.5)


def mottled(one: Vector, other: Vector, *scale: float) -> Callable[[Values], Values]:
    """Return a colour between two, in bytes, that varies by a grain."""
    return lambda p: blend(as_light(one), as_light(other), grain(p, *scale))


def pitted(depth: float, *scale: float) -> Callable[[Values], Values]:
    """Return a relief of small pits."""
    return lambda p: depth * grain(p, *scale)
