"""`shapes`: a data set that the package draws itself, of any size and resolution; for the demo and the tests.

    shapes   shapes:count   shapes:position   shapes:orientation   shapes:colour   shapes:shape
    shapes:shape?n=2000&image_size=64&seed=0

    (question, label, rng) ──sample_scene──► Scene, in units of the picture's side ──draw──► pixels at any size

The word after the colon is the question that the label answers about the scene; plain `shapes` is `shapes:shape`.
Everything else is drawn at random, so that no shortcut leads to the answer: sizes hardly tell the count, colours do
not tell the shape. `n` is the number of training examples; validation and test have a quarter of it each. Every
example is a function of (question, seed, split, index) alone, so it does not depend on `n`, and at another
`image_size` it is the same scene. Each split has its own random stream. Classes are balanced: every run
of as many examples as there are classes holds each class once.

A picture is a background, strokes, then for each thing its shadow and its colour through a mask. A mask is drawn by
Pillow at SUPERSAMPLE times the size and reduced by averaging, which smooths edges.
"""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from vitrail.data.readers.fingerprint import digest
from vitrail.data.sources import Example, Source, take_options
from vitrail.data.splits import SPLITS, find_split
from vitrail.errors import ConfigError

OPTIONS = {  # name -> (default, least, most)
    "n": (4000, 4, 100_000_000),
    "image_size": (64, 8, 2048),
    "seed": (0, 0, 2**32 - 1),
}
DRAWING = 1  # counts the changes to what is drawn: part of the fingerprint
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
SUPERSAMPLE = 4
Points = list[tuple[float, float]]


class ShapesSource(Source):
    """`count` drawings."""

    def __init__(self, question: str, split: str, count: int, image_size: int, seed: int) -> None:
        self.name = f"shapes:{question}:{split}"
        self.class_names = list(QUESTIONS[question])
        self.question, self.split, self.image_size, self.seed = question, split, image_size, seed
        # Seed of the random streams; a first word separates that of the labels from those of the scenes.
        self.stream = [list(QUESTIONS).index(question), seed, SPLITS.index(split)]
        classes = len(self.class_names)
        runs = -(-count // classes)
        words = np.random.PCG64([1, *self.stream]).random_raw(runs * classes)
        self.labels = words.reshape(runs, classes).argsort(axis=1).reshape(-1)[:count]  # (n,)

    def scene(self, index: int) -> Scene:
        """Return the scene of example `index`."""
        rng = np.random.default_rng([2, *self.stream, index])
        return sample_scene(self.question, int(self.labels[index]), rng)

    def read(self, index: int) -> Example:
        key = self.key(index)
        return Example(draw(self.scene(index), self.image_size), int(self.labels[index]), key)

    def fingerprint(self) -> str:
        return digest("shapes", DRAWING, self.question, self.split, len(self), self.image_size, self.seed)


def open_shapes(where: str, split: str, options: dict[str, str]) -> ShapesSource:
    """Open one split of `shapes:question` with options n, image_size and seed."""
    question = where.removeprefix("shapes").removeprefix(":") or "shape"
    if question not in QUESTIONS:
        raise ConfigError(
            f"{where!r}: no question {question!r} about shapes; there are: {', '.join(QUESTIONS)}"
        )
    take_options(where, options, tuple(OPTIONS))
    values = {}
    for name, (default, least, most) in OPTIONS.items():
        text = options.get(name, str(default))
        if not text.isdecimal() or not least <= int(text) <= most:
            raise ConfigError(f"{where!r}: {name}={text}; a whole number from {least} to {most} is allowed")
        values[name] = int(text)
    split = find_split(split, SPLITS, where)
    count = values["n"] if split == "train" else values["n"] // 4
    return ShapesSource(question, split, count, values["image_size"], values["seed"])


@dataclass(frozen=True)
class Thing:
    """One object. Lengths in units of the picture's side, y downwards; angle in degrees, anticlockwise."""

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
    """Draw a scene at random to which `label` is the answer to `question`."""
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
    """Place `count` things that do not touch; their sizes hardly depend on their number."""
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
    """Convert hue in degrees, saturation and value in [0, 1] to bytes."""
    red, green, blue = colorsys.hsv_to_rgb(hue % 360 / 360, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)


def draw(scene: Scene, image_size: int) -> np.ndarray:
    """Draw a scene: uint8 (S, S, 3), S = image_size."""
    canvas = _draw_background(scene.background, image_size)
    for thing in scene.things:
        radius = max(thing.radius * image_size, 1.5)
        side = 2 * math.ceil(radius * 1.25) + 2  # of the window that is touched, in pixels
        left, top = round(thing.x * image_size - side / 2), round(thing.y * image_size - side / 2)
        x, y = thing.x * image_size - left, thing.y * image_size - top

        lift = 0.1 * radius
        shadow = _mask(thing, x + lift, y + lift, radius, side)
        blurred = shadow.filter(ImageFilter.GaussianBlur(0.12 * radius))
        canvas.paste((0, 0, 0), (left, top), blurred.point(lambda level: round(0.4 * level)))

        # The colour, a little lighter towards the top left.
        slope = np.linspace(1.12, 0.88, side)
        light = (slope[:, None, None] + slope[None, :, None]) / 2  # (side, side, 1)
        shaded = np.clip(np.array(thing.rgb) * light, 0, 255).astype(np.uint8)  # (side, side, 3)
        canvas.paste(Image.fromarray(shaded), (left, top), _mask(thing, x, y, radius, side))
    return np.array(canvas)  # (S, S, 3)


def _mask(thing: Thing, x: float, y: float, radius: float, side: int) -> Image.Image:
    """Return how much of each pixel the thing at (x, y) covers, 0..255, in a window of side x side pixels."""
    fine = Image.new("L", (side * SUPERSAMPLE, side * SUPERSAMPLE))
    pen = ImageDraw.Draw(fine)
    turn = math.radians(thing.angle)
    cos, sin = math.cos(turn) * radius, math.sin(turn) * radius
    for number, outline in enumerate(outlines(thing.shape)):
        points = [
            ((x + u * cos - v * sin) * SUPERSAMPLE, (y - u * sin - v * cos) * SUPERSAMPLE) for u, v in outline
        ]
        pen.polygon(points, fill=0 if number else 255)
    return fine.reduce(SUPERSAMPLE)


@cache
def outlines(shape: str) -> tuple[Points, ...]:
    """Polygons in the unit circle, y upwards, pointing to the right; a second one is cut out of the first."""
    curve = np.linspace(0, 2 * math.pi, 48, endpoint=False)
    match shape:
        case "circle":
            return (_arc(1.0),)
        case "ring":
            return _arc(1.0), _arc(0.58)
        case "crescent":
            return _arc(1.0), [(x + 0.42, y) for x, y in _arc(0.84)]
        case "square":
            return ([(0.7, 0.7), (-0.7, 0.7), (-0.7, -0.7), (0.7, -0.7)],)
        case "triangle":
            return ([(1.0, 0.0), (-0.62, 0.78), (-0.62, -0.78)],)
        case "star":  # its first point is at the top
            turns = [math.pi / 2 + math.pi * corner / 5 for corner in range(10)]
            radii = [1.0, 0.42] * 5
            return ([(r * math.cos(turn), r * math.sin(turn)) for r, turn in zip(radii, turns, strict=True)],)
        case "cross":
            a, b = 0.94, 0.32
            arms = [(a, b), (b, b), (b, a), (-b, a), (-b, b), (-a, b)]
            return ([*arms, *((-x, -y) for x, y in arms)],)
        case "heart":
            x = 16 * np.sin(curve) ** 3
            y = 13 * np.cos(curve) - 5 * np.cos(2 * curve) - 2 * np.cos(3 * curve) - np.cos(4 * curve)
            return ([(float(u) / 18.3, float(v + 2.5) / 18.3) for u, v in zip(x, y, strict=True)],)
        case "drop":
            x, y = np.cos(curve), 0.72 * np.sin(curve) * np.sin(curve / 2) ** 1.4
            return ([(float(u), float(v)) for u, v in zip(x, y, strict=True)],)
        case "dart":
            return ([(1.0, 0.0), (-0.79, 0.6), (-0.4, 0.0), (-0.79, -0.6)],)
        case "arrow":
            half = [(1.0, 0.0), (0.15, 0.72), (0.15, 0.27), (-0.95, 0.27)]
            return ([*half, *((x, -y) for x, y in reversed(half[1:]))],)
        case _:
            raise AssertionError(shape)


def _arc(radius: float) -> Points:
    turns = [2 * math.pi * step / 48 for step in range(48)]
    return [(radius * math.cos(turn), radius * math.sin(turn)) for turn in turns]


def _draw_background(background: Background, size: int) -> Image.Image:
    place = (np.arange(size) + 0.5) / size
    turn = math.radians(background.angle)
    u = place[None, :] * math.cos(turn) + place[:, None] * math.sin(turn)  # (S, S), along the pattern
    v = place[:, None] * math.cos(turn) - place[None, :] * math.sin(turn)  # (S, S), across it
    match background.kind:
        case "plain":
            height = np.zeros((size, size))  # (S, S)
        case "slope":
            height = (u - u.min()) / (u.max() - u.min())
        case "glow":
            away = np.hypot(
                place[None, :] - background.clouds[0][0], place[:, None] - background.clouds[0][1]
            )
            height = np.clip(away, 0, 1)  # (S, S)
        case "stripes":
            height = _smooth_step(np.sin(2 * math.pi * u / background.period), background.period * size)
        case "checks":
            wave = np.sin(math.pi * u / background.period) * np.sin(math.pi * v / background.period)
            height = _smooth_step(wave, background.period * size)
        case _:
            rough = Image.fromarray(np.array(background.clouds, dtype=np.float32))  # (5, 5)
            height = np.clip(np.array(rough.resize((size, size), Image.Resampling.BICUBIC)), 0, 1)  # (S, S)
    near, far = (np.array(rgb, dtype=np.float64) for rgb in background.rgb)
    pixels = near + height[:, :, None] * (far - near)  # (S, S, 3)
    canvas = Image.fromarray(np.round(pixels).astype(np.uint8))

    # Thin lines in the second colour, made stronger: clutter that is no thing.
    if background.strokes:
        fine = Image.new("L", (size * SUPERSAMPLE, size * SUPERSAMPLE))
        pen = ImageDraw.Draw(fine)
        for stroke in np.array(background.strokes) * fine.width:
            pen.line(stroke.tolist(), 200, fine.width // 100)
        ink = tuple(int(c) for c in np.clip(np.round(far + 0.8 * (far - near)), 0, 255))
        canvas.paste(ink, (0, 0), fine.reduce(SUPERSAMPLE))
    return canvas


def _smooth_step(wave: np.ndarray, period: float) -> np.ndarray:
    """Turn a wave in [-1, 1] into bands of 0 and 1 with edges about a pixel wide; `period` in pixels."""
    return np.clip(wave * period / (2 * math.pi) + 0.5, 0, 1)
