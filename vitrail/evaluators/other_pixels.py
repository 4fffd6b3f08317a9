"""How far a model's answers move where another library prepares the images, and resizes them otherwise.

image ──► the model's own line   ──► logits ──► probabilities ┐
      ──► what its reader runs   ──► logits ──► probabilities ┴──► Change
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.data import preprocess as pp
from vitrail.data.drawn.shapes import ShapesSource
from vitrail.evaluators.features import (
    ImageLike,
    check_finite,
    evaluation_mode,
    in_batches,
    pipeline_of,
    pixels,
)
from vitrail.models.names import Model

DRAWN, SIDE = 16, 480  # pictures where nobody gives any, and their pixels: about a photograph's
PAIRS = 8  # images at a time


@dataclass(frozen=True)
class Change:
    """Of the probabilities of some images."""

    images: int
    largest: float  # of one class of one image
    labels: int  # images whose most probable class is another one


def change(model: Model, line: str, images: Iterable[ImageLike]) -> Change:
    """Between images prepared by the model's own line and by another one."""
    ours, theirs = pipeline_of(model), pp.parse(line)
    device = next(model.parameters()).device
    seen, largest, labels = 0, 0.0, 0

    def probabilities(pipeline: pp.Pipeline, group: list[np.ndarray]) -> Tensor:
        x = torch.stack([pipeline.host(image) for image in group])  # (B, 3, H, W)
        logits = model(pipeline.device(x.to(device))).float().cpu()
        check_finite(logits, "outputs")
        return logits.softmax(dim=1)  # (B, classes)

    with evaluation_mode(model), torch.inference_mode():
        for group in in_batches((pixels(image) for image in images), PAIRS):
            p, q = probabilities(ours, group), probabilities(theirs, group)
            seen += len(group)
            largest = max(largest, float((p - q).abs().max()))
            labels += int((p.argmax(dim=1) != q.argmax(dim=1)).sum())
    return Change(seen, largest, labels)


def drawn_pictures() -> Iterator[np.ndarray]:
    """Uint8 (SIDE, SIDE, 3) each, always the same ones."""
    source = ShapesSource("shape", "test", DRAWN, SIDE, seed=0)
    return (np.asarray(source.read(i).image) for i in range(DRAWN))
