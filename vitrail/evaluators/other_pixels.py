"""Preprocessing compared: how far a model's predictions change if another library resizes the images differently.

image ──► the model's own line         ──► logits ──► probabilities ┐
      ──► the line of another library  ──► logits ──► probabilities ┴──► Change
"""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.data.preprocess import parse
from vitrail.data.readers.shapes import ShapesSource
from vitrail.data.sources import Source
from vitrail.inference.engine import evaluation_loader, evaluation_pipeline, outputs
from vitrail.models.names import Model

DRAWN, SIDE = 16, 480  # pictures to measure on where nobody names any, and their pixels: about a photograph's
BATCH_SIZE = 8


@dataclass(frozen=True)
class Change:
    """Differences of probabilities."""

    images: int
    largest: float  # of one class of one image
    labels: int  # images whose most probable class changes
    errors: list[str]  # images that cannot be read


def measure_change(model: Model, line: str, images: Source) -> Change:
    """Compare images prepared by the model's own line with images prepared by another."""
    ours = evaluation_loader(images, evaluation_pipeline(model), BATCH_SIZE, max_bad=1.0)
    theirs = evaluation_loader(images, parse(line), BATCH_SIZE, max_bad=1.0)
    n, largest, labels = 0, 0.0, 0
    task = "preprocessing"
    for (y, _), (z, _) in zip(outputs(model, ours, task=task), outputs(model, theirs), strict=True):
        if len(y):
            p, q = model.calibration.probabilities(y), model.calibration.probabilities(z)  # (b, classes)
            largest = max(largest, float((p - q).abs().max()))
            labels += int((p.argmax(dim=1) != q.argmax(dim=1)).sum())
            n += len(y)
    return Change(n, largest, labels, [bad.reason for bad in ours.bad_files.examples.values()])


def drawn_pictures() -> Source:
    """Return DRAWN pictures of SIDE pixels, always the same ones."""
    return ShapesSource("shape", "test", DRAWN, SIDE, seed=0)
