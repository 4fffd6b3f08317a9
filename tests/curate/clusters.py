"""Features of classes that are well apart, some of them with a label of another class."""

import numpy as np


def clusters(n=120, classes=4, width=8, wrong=6, seed=0):
    """Return x float16 (n, D), labels (n,) of which the first `wrong` are not right, and the right ones."""
    rng = np.random.default_rng(seed)
    right = np.arange(n) % classes
    x = 4 * np.eye(classes, width)[right] + rng.normal(size=(n, width))
    labels = right.copy()
    labels[:wrong] = (right[:wrong] + 1) % classes
    return x.astype(np.float16), labels, right
