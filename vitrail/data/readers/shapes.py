"""`shapes`: a data set that the package draws itself, of any size and resolution; for the demo and the tests.

    shapes   shapes:count   shapes:position   shapes:orientation   shapes:colour   shapes:shape
    shapes:shape?n=2000&image_size=64&seed=0

The word after the colon is what the label tells (scenes.py has the classes); plain `shapes` is
`shapes:shape`. `n` is the number of training examples; validation and test have a quarter of it each. Every
example is a function of (question, seed, split, index) alone, so it does not depend on `n`, and at another
`image_size` it is the same scene. The three splits are disjoint by construction: each draws from random
streams of its own. Classes are balanced: every run of as many examples as there are classes holds each class
once.
"""

from __future__ import annotations

import numpy as np

from vitrail.data.readers.fingerprint import digest
from vitrail.data.readers.scenes import QUESTIONS, Scene, draw, sample_scene
from vitrail.data.sources import Example, Source, take_options
from vitrail.data.splits import find_split
from vitrail.errors import ConfigError

SPLITS = ("train", "validation", "test")
OPTIONS = {  # name -> (default, least, most)
    "n": (4000, 4, 100_000_000),
    "image_size": (64, 8, 2048),
    "seed": (0, 0, 2**32 - 1),
}
DRAWING = 1  # counts the changes to what is drawn: part of the fingerprint


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
