"""Pictures that the demo renders for a model to name: things that are in its training photographs.

    DRAWINGS  name of the thing ──► Scene ──► rendering.py ──► pixels

They are made to look like photographs, since the model has seen nothing else. It does not name all of them correctly.
"""

from __future__ import annotations

import numpy as np

from vitrail.demo.distances import (
    ball,
    block,
    egg,
    merged,
    mottled,
    pitted,
    rod,
    together,
    turned,
)
from vitrail.demo.rendering import Camera, Scene, Thing, Values, as_light, at, blend, length, render

SIDE = 128  # pixels: more than the model needs, so that people can see them well

WOOD = mottled((150, 105, 65), (95, 60, 35), 1.2, 1, 9)
CLOTH = mottled((238, 235, 228), (215, 210, 204), 6, 6, 6)
FLOOR = mottled((200, 150, 95), (165, 115, 65), 8, 1, 0.8)
LEAF = mottled((70, 125, 35), (115, 165, 65), 2, 1, 12)
MOSS = mottled((45, 60, 25), (100, 90, 48), 14, 14, 14)
PAVING = mottled((170, 165, 155), (140, 136, 128), 9, 9, 9)
BLACK = mottled((26, 22, 22), (18, 15, 15), 5, 5, 5)
STEEL = mottled((190, 192, 198), (160, 162, 168), 9, 9, 9)


def draw(name: str) -> np.ndarray:
    """Return the pixels of a picture, uint8 (SIDE, SIDE, 3)."""
    return render(DRAWINGS[name], SIDE)


def orange() -> Thing:
    def peel(p: Values) -> Values:
        return np.minimum(ball(p, (0, 0.72, 0), 0.72), ball(p, (1.15, 0.55, 0.9), 0.55))

    def stem(p: Values) -> Values:
        return rod(p, (0, 1.4, -0.15), (0, 1.45, -0.17), 0.05)

    return together(
        Thing(peel, mottled((250, 138, 15), (228, 105, 5), 3, 3, 3), pitted(0.012, 24, 24, 24)),
        Thing(stem, mottled((90, 110, 50), (70, 90, 40), 9, 9, 9)),
    )


def lemon() -> Thing:
    def one(p: Values, x: float, z: float, degrees: float) -> Values:
        q = turned(p - at((x, 0.5, z)), degrees)
        ends = np.minimum(ball(q, (0.74, 0, 0), 0.1), ball(q, (-0.72, 0, 0), 0.08))
        return merged(egg(q, (0, 0, 0), (0.72, 0.5, 0.5)), ends, 0.18)

    def peel(p: Values) -> Values:
        return np.minimum(one(p, -0.2, -0.2, 30), one(p, 0.75, 0.9, -40))

    return Thing(peel, mottled((250, 215, 40), (235, 190, 20), 3, 3, 3), pitted(0.01, 20, 20, 20))


def banana() -> Thing:
    def one(p: Values, lean: float, x: float, degrees: float) -> Values:
        q = turned(turned(p - at((x, 0.26, 0.75)), degrees), lean, 0)  # its bow lies in x and z
        angle = np.clip(np.arctan2(q[:, 2], q[:, 0]), -2.75, -0.35)
        bow = 1.05 * np.stack([np.cos(angle), 0 * angle, np.sin(angle)], 1)  # (n, 3)
        thick = 0.23 * np.sqrt(np.clip(1 - ((angle + 1.57) / 1.22) ** 2, 0.05, 1))
        return 0.8 * (length(q - bow) - thick)

    def colour(p: Values) -> Values:
        yellow = mottled((248, 212, 60), (232, 188, 40), 4, 4, 4)(p)
        return blend(yellow, as_light((95, 85, 30)), (np.abs(p[:, 0]) - 0.86) * 8)

    return Thing(lambda p: np.minimum(one(p, 6, 0, 0), one(p, -24, 0.1, 10)), colour)


def ladybug() -> Thing:
    spots = ((-0.38, -0.3), (0.38, -0.3), (-0.42, 0.25), (0.42, 0.25), (-0.2, 0.65), (0.2, 0.65))
    feet = [(side, z, out) for side in (-1, 1) for z, out in ((-0.5, -0.3), (0.0, 0.0), (0.45, 0.3))]

    def wings(p: Values) -> Values:
        return np.maximum(egg(p, (0, 0.35, 0.1), (0.75, 0.62, 0.95)), 0.3 - p[:, 1])

    def colour(p: Values) -> Values:
        spot = np.minimum.reduce([np.hypot(p[:, 0] - x, p[:, 2] - z) for x, z in spots])
        dark = (spot < 0.16) | (np.abs(p[:, 0]) < 0.02) | (p[:, 2] < -0.62)
        return np.where(dark[:, None], BLACK(p), mottled((210, 30, 18), (190, 22, 12), 4, 4, 4)(p))

    def rest(p: Values) -> Values:
        legs = [rod(p, (0.5 * side, 0.4, z), (side, 0.05, z + out), 0.04) for side, z, out in feet]
        return np.minimum.reduce([egg(p, (0, 0.42, -0.85), (0.34, 0.28, 0.28)), *legs])

    return together(Thing(wings, colour), Thing(rest, BLACK))


def mushroom() -> Thing:
    def cap(p: Values) -> Values:
        return np.maximum(egg(p, (0, 0.85, 0), (0.95, 0.6, 0.95)), 0.8 - p[:, 1])

    def stem(p: Values) -> Values:
        return rod(p, (0, 0, 0), (0.03, 0.85, 0), 0.26) - 0.08 * np.clip(0.4 - p[:, 1], 0, 1)

    return together(
        Thing(cap, mottled((168, 104, 58), (118, 66, 34), 5, 5, 5), pitted(0.006, 16, 16, 16)),
        Thing(stem, mottled((232, 222, 200), (205, 190, 165), 9, 2, 9), pitted(0.01, 14, 2, 14)),
    )


def basketball() -> Thing:
    def colour(p: Values) -> Values:
        q = turned((p - at((0, 0.8, 0))) / 0.8, 28)
        arcs = [np.abs(np.hypot(q[:, 0] - x, q[:, 1]) - 0.62) for x in (-0.95, 0.95)]
        seam = np.minimum.reduce([np.abs(q[:, 0]), np.abs(q[:, 1]), *arcs])
        leather = mottled((208, 98, 36), (182, 76, 25), 8, 8, 8)(p)
        return np.where((seam < 0.022)[:, None], BLACK(p), leather)

    return Thing(lambda p: ball(p, (0, 0.8, 0), 0.8), colour, pitted(0.006, 36, 36, 36))


def obelisk() -> Thing:
    stone = mottled((225, 210, 180), (190, 172, 140), 6, 3, 6)

    def shaft(p: Values) -> Values:
        q = turned(p, 25)
        out = np.maximum(np.abs(q[:, 0]), np.abs(q[:, 2]))
        return 0.9 * np.maximum(out - 0.3 + 0.045 * q[:, 1], 0.5 * (q[:, 1] - 3.9) + out)

    return together(Thing(shaft, stone), Thing(lambda p: block(p, (0, 0.2, 0), (0.6, 0.2, 0.6)), stone))


def dumbbell() -> Thing:
    def placed(p: Values) -> Values:
        return turned(p - at((0, 0.42, 0)), 25)

    def weights(p: Values) -> Values:
        q = placed(p)
        round_it = np.hypot(q[:, 1], q[:, 2])
        ends = [
            np.maximum(round_it - r, np.abs(np.abs(q[:, 0]) - x) - 0.1)
            for x, r in ((0.62, 0.4), (0.84, 0.32))
        ]
        return np.minimum.reduce(ends) - 0.015

    return together(
        Thing(weights, mottled((52, 52, 56), (38, 38, 42), 9, 9, 9)),
        Thing(lambda p: rod(placed(p), (-1.05, 0, 0), (1.05, 0, 0), 0.09), STEEL),
    )


DRAWINGS: dict[str, Scene] = {
    "orange": Scene(orange(), WOOD, Camera((0.3, 1.5, -2.6), (0.25, 0.66, 0.1))),
    "banana": Scene(banana(), CLOTH, Camera((0.0, 2.3, -2.2), (0.0, 0.2, 0.1))),
    "lemon": Scene(lemon(), CLOTH, Camera((0.2, 1.6, -2.5), (0.15, 0.5, 0.1))),
    "ladybug": Scene(ladybug(), LEAF, Camera((0.9, 1.9, -2.1), (0.0, 0.35, 0.0), gloss=0.6)),
    "mushroom": Scene(mushroom(), MOSS, Camera((0.0, 1.1, -2.8), (0.0, 0.66, 0.0))),
    "basketball": Scene(basketball(), FLOOR, Camera((0.0, 1.5, -2.6), (0.05, 0.62, 0.1))),
    "obelisk": Scene(
        obelisk(),
        PAVING,
        Camera((0.0, 0.9, -5.2), (0.0, 1.9, 0.0), horizon=(175, 200, 225), sky=(80, 130, 200)),
    ),
    "dumbbell": Scene(dumbbell(), FLOOR, Camera((0.0, 1.6, -2.7), (0.0, 0.4, 0.0), gloss=0.6)),
}
