"""A data set as a map: a place in the plane for each image, its label, and what a classifier says of it.

    Source, model ──► features ──► projection.py ──► places
                         └──► out-of-fold predictions, or those of the model ──► Map ──► map_page.py, a figure

Out of fold (out_of_fold.py): an image is predicted by images of other folds, so no label vouches for itself.
"""

from __future__ import annotations

import colorsys
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from vitrail.curate.folds import assign_folds
from vitrail.curate.out_of_fold import number_of_folds, predict_out_of_fold
from vitrail.curate.projection import Method, choose_method, describe, project
from vitrail.data.sources import Source
from vitrail.data.splits import Subset, shuffled_classes
from vitrail.errors import ConfigError, DataError
from vitrail.evaluators.accuracy import evaluate
from vitrail.inference.exported import Runnable
from vitrail.inference.features import EXTRACTION, Extraction, extract_rows

MOST = 10_000  # images on a map
Predictions = Literal["out-of-fold", "model", "none"]


@dataclass(frozen=True)
class Map:
    """Images of a source that could be read, in its order."""

    source: Source
    index: np.ndarray  # int64 (n,): in the source
    xy: np.ndarray  # float64 (n, 2), from 0 to 1
    labels: np.ndarray  # int64 (n,)
    predicted: np.ndarray | None  # int64 (n,), of class_names
    class_names: list[str]  # those of the source first; more where the model predicts others
    projection: str  # how the places were found, for people
    images: int  # before some were chosen

    def __len__(self) -> int:
        return len(self.index)

    @property
    def errors(self) -> np.ndarray | None:
        """Return which predictions are not the label, bool (n,)."""
        return None if self.predicted is None else self.predicted != self.labels


def map_data(
    model: Runnable,
    source: Source,
    *,
    predictions: Predictions = "out-of-fold",
    projection: Method = "auto",
    most: int = MOST,
    seed: int = 0,
    extraction: Extraction = EXTRACTION,
) -> Map:
    """Place the images of a source; of more than `most`, so many chosen by the seed, of each class in proportion."""
    if predictions not in get_args(Predictions):
        raise ConfigError(f"predictions {predictions!r}: allowed are {', '.join(get_args(Predictions))}")
    if most < 2:
        raise ConfigError(f"a map has at least 2 images, not {most}")
    chosen = np.arange(len(source))
    if len(source) > most:
        members = shuffled_classes(source.labels, len(source.class_names), seed)
        # The place of each image within its class, as a share of the class: the lowest are taken.
        share = np.concatenate([(np.arange(len(m)) + 0.5) / max(1, len(m)) for m in members])
        chosen = np.sort(np.concatenate(members)[np.argsort(share, kind="stable")[:most]])
    part = Subset(source, chosen)
    choose_method(projection, len(part))  # which may be refused
    rows = list(extract_rows(model, part, extraction))
    x, index = (np.concatenate(arrays) for arrays in zip(*rows, strict=True))  # (n, D), (n,)
    if not len(index):
        raise DataError(f"{source.name}: none of its {len(source):,} images can be read")
    labels, names, predicted = part.labels[index], list(source.class_names), None
    if predictions == "out-of-fold" and len(np.unique(labels)) > 1:
        folds = assign_folds(labels, np.arange(len(labels)), number_of_folds(len(labels)))
        predicted = predict_out_of_fold(x, labels, folds, len(names)).log_p.argmax(axis=1)
    elif predictions == "model":
        e = evaluate(model, part, batch_size=extraction.batch_size, max_bad=extraction.max_bad)
        assert np.isin(index, e.predictions.index).all()
        number = {name: k for k, name in enumerate(names)}
        of_model = np.array([number.setdefault(name, len(number)) for name in e.model_class_names])
        names = list(number)
        predicted = of_model[e.predictions.predicted[np.searchsorted(e.predictions.index, index)]]
    method = choose_method(projection, len(index))
    xy = project(x, method, seed)
    return Map(source, chosen[index], xy, labels, predicted, names, describe(method), len(source))


def colours(n: int) -> list[str]:
    """Return colours of n classes, "#rrggbb": neighbours far apart, legible on light and on dark."""
    hex_colours = []
    for k in range(n):
        lightness, saturation = ((0.47, 0.72), (0.60, 0.58), (0.38, 0.62))[k % 3]
        rgb = colorsys.hls_to_rgb((0.58 + 0.618034 * k) % 1, lightness, saturation)
        hex_colours.append("#" + "".join(f"{round(255 * c):02x}" for c in rgb))
    return hex_colours
