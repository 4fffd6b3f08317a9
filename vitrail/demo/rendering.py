"""Render a thing on the ground so that it looks like a photograph, by sphere tracing (Hart, 1996).

    pixel ──► ray ──► steps of the distance to the nearest surface ──► a point on it ──► its colour in that light

A thing is functions of points (n, 3), x to the right, y up, z away from the eye: the distance of each to its surface,
negative inside, (n,); the colour there, (n, 3), as light, of which the picture's values are a root; and the height of
what is too fine for the distance, (n,). The ground is the plane y = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.floating[Any]]
Vector: TypeAlias = tuple[float, float, float]

GAMMA = 2.2
NEAR, FAR, TOUCH = 0.5, 14.0, 2e-3  # where rays begin and end, and how near a surface is reached
UP = np.array((0, 1, 0), np.float32)
SUN, SKYLIGHT = np.array(((1.25, 1.2, 1.1), (0.85, 0.95, 1.1)), np.float32)


@dataclass(frozen=True)
class Thing:
    distance: Callable[[Values], Values]
    colour: Callable[[Values], Values]
    relief: Callable[[Values], Values] = lambda p: np.zeros(len(p), np.float32)


@dataclass(frozen=True)
class Camera:
    """The camera and the light."""

    eye: Vector
    at: Vector
    zoom: float = 1.9
    sun: Vector = (-0.5, 0.9, -0.6)
    horizon: Vector = (205, 215, 225)
    sky: Vector = (150, 170, 200)
    gloss: float = 0.3


@dataclass(frozen=True)
class Scene:
    thing: Thing
    ground: Callable[[Values], Values]  # its colour
    view: Camera


def render(scene: Scene, side: int, fine: int = 2) -> NDArray[np.uint8]:
    """Return the picture, (side, side, 3), from `fine` x `fine` rays per pixel."""
    thing, view = scene.thing, scene.view
    rays, eye = camera_rays(view, side * fine), at(view.eye)
    down = np.where(rays[:, 1] < -1e-3, -eye[1] / np.minimum(rays[:, 1], -1e-3), FAR)  # to the ground
    t, met = trace(thing, eye, rays, np.minimum(down, FAR))
    light = blend(as_light(view.horizon), as_light(view.sky), rays[:, 1] * 1.5 + 0.3)
    for here in (met, ~met & (down < FAR)):
        p = eye + t[here, None] * rays[here]
        normal = normals(thing, p) if here is met else np.broadcast_to(UP, p.shape)
        colour, gloss = (thing.colour(p), view.gloss) if here is met else (scene.ground(p), 0.0)
        haze = np.clip((t[here] - 4) / 9, 0, 1) ** 1.5
        light[here] = blend(lit(scene, p, normal, rays[here], colour, gloss), as_light(view.horizon), haze)
    light = light.reshape(side, fine, side, fine, 3).mean((1, 3))  # (side, side, 3)
    noise = np.random.default_rng(0).normal(0, 0.012, light.shape)
    return (np.clip(light ** (1 / GAMMA) + noise, 0, 1) * 255).astype(np.uint8)


def camera_rays(view: Camera, n: int) -> Values:
    """Return the directions of n x n rays, row by row, (n n, 3)."""
    forward = unit(at(view.at)[None] - at(view.eye))[0]
    right = unit(np.cross(UP, forward)[None])[0]
    row, column = np.mgrid[0:n, 0:n].astype(np.float32)
    across, up = (column.ravel() + 0.5) / n * 2 - 1, 1 - (row.ravel() + 0.5) / n * 2  # (n n,)
    return unit(across[:, None] * right + up[:, None] * np.cross(forward, right) + view.zoom * forward)


def trace(thing: Thing, eye: Values, rays: Values, most: Values) -> tuple[Values, NDArray[np.bool_]]:
    """Return how far each ray goes, `most` at most, and whether it meets the thing."""
    t, met = np.full(len(rays), NEAR, np.float32), np.zeros(len(rays), bool)
    going = np.arange(len(rays))
    for _ in range(80):
        step = thing.distance(eye + t[going, None] * rays[going])
        t[going] += 0.85 * step  # not all of it: a bent surface can be nearer than it says
        met[going[step < TOUCH]] = True
        going = going[(step >= TOUCH) & (t[going] < most[going])]
        if not len(going):
            break
    return np.where(met, t, most), met


def normals(thing: Thing, p: Values) -> Values:
    """Return the normals of the surface at points p, (n, 3)."""

    def height(q: Values) -> Values:
        return thing.distance(q) + thing.relief(q)

    return unit(np.stack([height(p + d) - height(p - d) for d in np.eye(3, dtype=np.float32) * 3e-3], 1))


def lit(scene: Scene, p: Values, normal: Values, rays: Values, colour: Values, gloss: float) -> Values:
    """Return the light that points of a surface send back along the rays that met them."""
    sun = unit(at(scene.view.sun)[None])[0]
    around = [p + h * normal for h in (0.08, 0.25)]
    clear = [
        np.minimum(scene.thing.distance(q), q[:, 1]) / h for q, h in zip(around, (0.08, 0.25), strict=True)
    ]
    seen = sunlit(scene.thing, p + 0.02 * normal, sun)
    direct = np.clip(normal @ sun, 0, 1) * seen
    indirect = (0.35 + 0.25 * normal[:, 1]) * np.clip(clear, 0, 1).mean(0)
    shine = gloss * seen * np.clip((normal * unit(sun - rays)).sum(1), 0, 1) ** 40
    return colour * (direct[:, None] * SUN + indirect[:, None] * SKYLIGHT) + shine[:, None]


def sunlit(thing: Thing, p: Values, sun: Values) -> Values:
    """Return 1 in the sun, 0 in the shadow, and values between at its edge."""
    seen, t = np.ones(len(p), np.float32), np.full(len(p), 0.03, np.float32)
    for _ in range(16):
        clear = thing.distance(p + t[:, None] * sun)
        seen = np.minimum(seen, np.clip(9 * clear / t, 0, 1))
        t += np.clip(clear, 0.04, 0.5)
    return seen


def at(place: Vector) -> Values:
    """Return a point as an array (3,)."""
    return np.array(place, np.float32)


def as_light(colour: Vector) -> Values:
    """Return a colour in bytes as linear light."""
    return (at(colour) / 255) ** GAMMA


def blend(one: Values, other: Values, part: Values) -> Values:
    """Mix two colours, row by row, with the fraction `part` of the other."""
    part = np.clip(part, 0, 1)[:, None]
    return one * (1 - part) + other * part


def unit(vectors: Values) -> Values:
    return vectors / np.maximum(length(vectors), 1e-9)[:, None]


def length(vectors: Values) -> Values:
    return np.sqrt((vectors * vectors).sum(1))
