"""Pictures whose class is seen at a glance: any features tell them apart."""

import numpy as np

from tests.evaluators.split import Split, named
from vitrail.data.sources import Example

CLASSES = 6


class Tinted(Split):
    """A colour for each class, and noise; `seed` tells one split from another."""

    def __init__(self, n, seed=0):
        super().__init__(n, named(CLASSES))
        self.seed, self.name = seed, f"tinted:{seed}"

    def read(self, index):
        label = int(self.labels[index])
        colour = np.random.default_rng(label).uniform(40, 215, 3)
        noise = np.random.default_rng((self.seed, index)).normal(0, 10, (16, 16, 3))
        return Example((colour + noise).clip(0, 255).astype(np.uint8), label, self.key(index))

    def fingerprint(self):
        return f"{self.seed} {len(self)}"
