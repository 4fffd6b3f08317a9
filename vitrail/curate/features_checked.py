"""Label errors, outliers, confused classes and the learning curve: everything that features tell of a data set.

Rows are the images that could be read: n of them; `index` (n,) is the place of each in the source. D width,
C classes, k neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitrail.checkpoints.json_files import Count, Number
from vitrail.curate.findings import ConfusedPair, Curve, Finding, SimilarImage
from vitrail.curate.folds import assign_folds
from vitrail.curate.label_errors import ambiguous_pairs, suspect
from vitrail.curate.learning_curve import learning_curve
from vitrail.curate.odd_images import Odd, find_outliers
from vitrail.curate.out_of_fold import number_of_folds, predict_out_of_fold
from vitrail.data.readers.class_names import readable
from vitrail.data.sources import Source
from vitrail.evaluators.knn import neighbours

NEAREST = 30  # neighbours that are looked at
FOR_OUTLIERS = 10  # of them, whose similarity tells an outlier
SHOWN = 5  # of them, that disagree with a label, are named with it


@dataclass(frozen=True)
class FeatureChecks:
    """The results."""

    labels: list[Finding]  # the most suspicious first
    outliers: Odd  # by the index in the source
    pairs: list[ConfusedPair]
    curve: Curve | None
    accuracy: float | None  # out of fold; None with one class, or one group
    folds: np.ndarray  # int64 (n,)
    neighbours: dict[int, list[SimilarImage]]  # of the outliers


def check_features(
    source: Source, x: np.ndarray, index: np.ndarray, groups: np.ndarray, most: int
) -> FeatureChecks:
    """Check features x (n, D); `groups` (n,), `most`: label errors to return."""
    labels, names = source.labels[index], source.class_names
    folds = assign_folds(labels, groups, number_of_folds(len(labels)))
    s, near = neighbours(x, x, min(NEAREST + 1, len(x)))  # (n, k) each
    s = np.where(groups[near] == groups[:, None], np.nan, s)  # neither itself nor its copies

    def similar(row: int, *, disagreeing: bool) -> list[SimilarImage]:
        places = np.flatnonzero(~np.isnan(s[row]) & (~disagreeing | (labels[near[row]] != labels[row])))
        return [
            {
                "key": source.key(int(index[near[row, place]])),
                "index": Count(int(index[near[row, place]])),
                "label": names[labels[near[row, place]]],
                "similarity": Number(round(float(s[row, place]), 4)),
            }
            for place in places[:SHOWN]
        ]

    similarity = mean_of_first(s, FOR_OUTLIERS)  # (n,)
    odd = find_outliers(similarity)
    outliers = {int(index[row]): value for row, value in odd.items()}
    shown = {int(index[row]): similar(row, disagreeing=False) for row in odd}
    if min(len(np.unique(labels)), len(np.unique(folds))) < 2:
        return FeatureChecks([], outliers, [], None, None, folds, shown)

    predictions = predict_out_of_fold(x, labels, folds, len(names))
    log_p, predicted = predictions.log_p, predictions.log_p.argmax(axis=1)
    suspicions = suspect(log_p, labels, folds)
    found: list[Finding] = []
    for row in suspicions.listed[:most].tolist():
        own, other = labels[row], suspicions.suggested[row]
        found.append(
            {
                "key": source.key(int(index[row])),
                "index": Count(int(index[row])),
                "kind": "label",
                "label": names[own],
                "suggested": names[other],
                "score": Number(round(float(suspicions.score[row]), 6)),
                "reason": reason(
                    names[own], names[other], np.exp(log_p[row, own]), np.exp(log_p[row, other])
                ),
                "neighbours": similar(row, disagreeing=True),
                "copy_of": None,
                "thumbnail": None,
            }
        )
    curve = learning_curve(x, labels, groups, names, predictions.settings["discriminant"])
    pairs = ambiguous_pairs(predicted, labels, names)
    return FeatureChecks(found, outliers, pairs, curve, float((predicted == labels).mean()), folds, shown)


def reason(own: str, other: str, p_own: float, p_other: float) -> str:
    return (
        f"More like {readable(other)} ({p_other:.0%}) than {readable(own)} ({p_own:.1%}), by the other images"
    )


def mean_of_first(s: np.ndarray, count: int) -> np.ndarray:
    """Return the mean of the first numbers of each row that are not NaN; NaN for a row without any: (n,)."""
    usable = ~np.isnan(s)
    usable &= np.cumsum(usable, axis=1) <= count
    counts = usable.sum(axis=1)
    return np.where(counts > 0, np.where(usable, s, 0).sum(axis=1) / np.maximum(counts, 1), np.nan)
