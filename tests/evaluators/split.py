"""A small labelled split of random pixels, and a model for it, for the tests of the evaluators."""

import numpy as np

import vitrail
from tests.randomise import randomise
from vitrail.data.sources import Example
from vitrail.errors import ImageError


def named(classes):
    return [f"class {k}" for k in range(classes)]


def small_model(classes=7, class_names=None):
    """Random weights, with logits large enough that confidences fill several bins."""
    model = randomise(vitrail.create("mu/8", classes=classes, image_size=16)).eval()
    if classes:
        model.head.classifier.weight.data *= 6
    model.class_names = class_names
    return model


class Split:
    """n pictures in memory, some of them broken; labels as given, else k = index % classes."""

    name = "pictures:test"

    def __init__(self, n, class_names, *, broken=(), labels=None, keys="picture-{:03}"):
        self.class_names, self.broken, self.keys = class_names, frozenset(broken), keys
        self.labels = np.arange(n) % len(class_names) if labels is None else np.asarray(labels)

    def __len__(self):
        return len(self.labels)

    def key(self, index):
        return self.keys.format(index + 1)

    def read(self, index):
        if index in self.broken:
            raise ImageError(f"{self.key(index)}: scribbled over")
        rng = np.random.default_rng(index)
        pixels = rng.integers(0, 256, (16, 16, 3), np.uint8) // rng.integers(1, 9)
        return Example(pixels.astype(np.uint8), int(self.labels[index]), self.key(index))

    def fingerprint(self):
        return str(len(self))
