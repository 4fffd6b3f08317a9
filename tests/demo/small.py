"""The demo in small: a tiny model that knows nothing, few images, few steps."""

import vitrail
from tests.randomise import randomise
from vitrail.demo import Demo

DATA = "shapes:colour?n=80&image_size=16"
FLAGS = ["--data", DATA, "--steps", "3", "--shots", "1", "5", "--seeds", "2", "--pictures", "2"]


def small(model, **fields):
    """The settings that FLAGS mean."""
    given = {"data": DATA, "steps": 3, "shots": (1, 5), "seeds": 2, "pictures": 2}
    return Demo(model=str(model), **given | fields)


def write_model(path):
    vitrail.save(randomise(vitrail.create("mu/8", classes=12, image_size=16)), path)
    return path
