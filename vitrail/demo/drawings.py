"""Pictures that the demo draws for a model to name: paper cut-outs of things that are in its photographs.

    DRAWINGS  name of the thing ──► Scene ──► data/drawn/scene_drawing.py ──► pixels

They were chosen for what a person recognises in them, not for what the model says.
"""

from __future__ import annotations

import numpy as np

from vitrail.data.drawn.scene_drawing import draw
from vitrail.data.drawn.scenes import RGB, Background, Scene, Thing

SIDE = 224  # pixels: more than the model takes, so that people see them well
CENTRE = ((0.5, 0.5),)  # of a glow
INK, CREAM = (25, 22, 20), (215, 175, 125)

Piece = tuple[str, RGB, float, float, float, float]  # shape, colour, x, y, radius, angle


def drawings() -> dict[str, np.ndarray]:
    """Name -> uint8 (SIDE, SIDE, 3)."""
    return {name: draw(scene, SIDE) for name, scene in DRAWINGS.items()}


def on(near: RGB, far: RGB, *pieces: Piece) -> Scene:
    """Pieces one over the other, on a ground that goes from one colour to another from its middle outwards."""
    background = Background("glow", (near, far), angle=0.0, period=1.0, clouds=CENTRE, strokes=())
    return Scene(background, tuple(Thing(*piece) for piece in pieces))


def dots(rgb: RGB, radius: float, *places: tuple[float, float]) -> list[Piece]:
    return [("circle", rgb, x, y, radius, 0.0) for x, y in places]


# Grounds: the colour in the middle, and at the edge.
TABLE = ((250, 250, 250), (214, 214, 220))
GRASS = ((120, 160, 70), (60, 110, 40))
WOOD = ((190, 150, 105), (140, 95, 60))
POND = ((40, 120, 170), (10, 60, 110))
DEEP = ((15, 40, 120), (5, 10, 60))
SKY = ((150, 190, 220), (200, 205, 200))

DRAWINGS: dict[str, Scene] = {
    "orange": on(
        *TABLE,
        ("circle", (240, 140, 25), 0.5, 0.54, 0.36, 0.0),
        ("drop", (70, 120, 40), 0.53, 0.19, 0.1, 60.0),
    ),
    "banana": on(*TABLE, ("crescent", (245, 210, 60), 0.5, 0.36, 0.44, 90.0)),
    "ladybug": on(
        *GRASS,
        *dots(INK, 0.13, (0.5, 0.2)),
        *dots((205, 30, 25), 0.33, (0.5, 0.54)),
        *dots(INK, 0.065, (0.36, 0.42), (0.64, 0.42), (0.34, 0.63), (0.66, 0.63), (0.5, 0.76), (0.5, 0.33)),
    ),
    "goldfish": on(
        *POND,
        ("triangle", (245, 120, 15), 0.2, 0.5, 0.2, 0.0),
        ("drop", (250, 130, 20), 0.52, 0.5, 0.4, 180.0),
        *dots(INK, 0.035, (0.76, 0.45)),
    ),
    "jellyfish": on(
        *DEEP,
        *dots((190, 170, 230), 0.25, (0.5, 0.35)),
        ("drop", (170, 150, 220), 0.4, 0.62, 0.25, 90.0),
        ("drop", (170, 150, 220), 0.6, 0.62, 0.25, 90.0),
        ("drop", (180, 160, 225), 0.5, 0.66, 0.28, 90.0),
    ),
    "pizza": on(
        *WOOD,
        *dots((205, 150, 80), 0.44, (0.5, 0.5)),
        *dots((245, 205, 95), 0.37, (0.5, 0.5)),
        *dots((190, 45, 30), 0.08, (0.5, 0.3), (0.33, 0.45), (0.66, 0.42), (0.42, 0.66), (0.62, 0.66)),
    ),
    "teddy": on(
        *TABLE,
        *dots((160, 105, 60), 0.14, (0.25, 0.25), (0.75, 0.25)),
        *dots((170, 115, 68), 0.36, (0.5, 0.52)),
        *dots(CREAM, 0.17, (0.5, 0.64)),
        *dots(INK, 0.045, (0.37, 0.44), (0.63, 0.44)),
        ("heart", INK, 0.5, 0.58, 0.055, 0.0),
    ),
    "school bus": on(
        *SKY,
        ("square", (250, 190, 20), 0.35, 0.48, 0.36, 0.0),
        ("square", (250, 190, 20), 0.62, 0.48, 0.36, 0.0),
        *(("square", (40, 50, 60), x, 0.38, 0.12, 0.0) for x in (0.3, 0.5, 0.7)),
        *dots(INK, 0.1, (0.28, 0.74), (0.7, 0.74)),
    ),
}
