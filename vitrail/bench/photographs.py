"""Photographs that are drawn: JPEG files with the size and the detail of real ones, from a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.runtime.progress import progress

WIDTH, HEIGHT = 500, 375
COUNT, CLASSES = 64, 4
QUALITY = 94  # files of about 100 kB
LARGEST = 256  # pixels between the points of the coarsest noise; halved down to 1
ROUGHNESS = 0.82  # amplitude of noise of half the size


def write_photographs(folder: Path, seed: int, count: int = COUNT) -> Path:
    """Write photographs as folder/train/CLASS/NUMBER.jpg; return the folder."""
    for i in progress(range(count), count, "drawing photographs"):
        place = folder / "train" / f"class{i % CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw(np.random.default_rng((seed, i)))).save(place / f"{i:04}.jpg", quality=QUALITY)
    return folder


def draw(rng: np.random.Generator) -> np.ndarray:
    """Return uint8 (H, W, 3): noise of all sizes, as natural images have, little of it in the colour."""
    total = np.zeros((HEIGHT, WIDTH, 3), np.float32)
    size, amplitude = LARGEST, 1.0
    while size:
        grid = rng.standard_normal((HEIGHT // size + 2, WIDTH // size + 2, 3)).astype(np.float32)
        grey = grid.mean(axis=2, keepdims=True) * 3**0.5
        grid = grey + (grid - grey) * min(0.4, size / 32)
        for c in range(3):
            layer = Image.fromarray(np.ascontiguousarray(grid[..., c]))
            total[..., c] += amplitude * np.asarray(layer.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))
        size, amplitude = size // 2, amplitude * ROUGHNESS
    spread = 128 + 50 * (total - total.mean()) / total.std()
    return spread.clip(0, 255).astype(np.uint8)
