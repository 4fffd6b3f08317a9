"""ReaL: reassessed labels of ImageNet's validation images, for each the set of classes that are right.

    real.json   a list of lists of class indices, in the order ILSVRC2012_val_00000001, 00000002, ...

(Beyer et al., "Are we done with ImageNet?", arXiv:2006.07159.) An answer is right if it is in the set; an image
whose set is empty is left out of the score. The indices are those of ImageNet's 1,000 classes in their usual
order, which must be the model's.
"""

from __future__ import annotations

import re
from pathlib import Path

from vitrail.data.bounded_files import read_json
from vitrail.data.sources import Source
from vitrail.errors import DataError
from vitrail.evaluators.class_mapping import ClassMapping
from vitrail.evaluators.outcomes import Predictions

NUMBER = re.compile(r"val_(\d{8})(?!\d)")  # in the name of a validation image


def real_sets(path: str | Path, source: Source, mapping: ClassMapping) -> list[set[int]]:
    """Return for each example of `source` the classes that are right; an empty set is not scored.

    Images are found by the number in their name; where no name has one, by order, if there are exactly as many.
    """
    sets = read_sets(Path(path), len(mapping.model_class_names))
    numbers = [NUMBER.search(source.key(i)) for i in range(len(source))]
    if any(numbers):
        for i, number in enumerate(numbers):
            if number is None or not 1 <= int(number[1]) <= len(sets):
                raise DataError(
                    f"{source.name}: {source.key(i)!r} has no number from val_00000001 to val_{len(sets):08} in its "
                    f"name to find its label in {path} by"
                )
        return [sets[int(number[1]) - 1] for number in numbers if number]
    if len(source) != len(sets):
        raise DataError(
            f"{path} has labels of {len(sets):,} images, {source.name} {len(source):,} images, whose names "
            f"({source.key(0)!r}) have no number val_00000001, ... to find their labels by"
        )
    check_order(path, source, mapping, sets)
    return sets


def real_accuracy(predictions: Predictions, sets: list[set[int]]) -> tuple[float, int]:
    """Return the share of right answers, and how many were scored."""
    answers = zip(predictions.predicted.tolist(), predictions.index.tolist(), strict=True)
    right = [predicted in sets[i] for predicted, i in answers if sets[i]]
    if not right:
        raise DataError("no example has a reassessed label: every set is empty")
    return sum(right) / len(right), len(right)


def read_sets(path: Path, K: int) -> list[set[int]]:
    table = read_json(path, "a file of reassessed labels")
    if not isinstance(table, list) or not table or not all(isinstance(row, list) for row in table):
        raise DataError(f"{path}: expected a list of lists of class indices, one for each image")
    for number, row in enumerate(table, 1):
        if not all(isinstance(k, int) and not isinstance(k, bool) and 0 <= k < K for k in row):
            raise DataError(
                f"{path}, image {number}: {str(row)[:60]} are not all of the model's {K:,} classes"
            )
    return [set(row) for row in table]


def check_order(path: str | Path, source: Source, mapping: ClassMapping, sets: list[set[int]]) -> None:
    """Raise DataError for another order of images: in the right one, most sets hold the image's first label."""
    right = [set(row.tolist()) for row in mapping.right]
    kept = [
        (right[row], s) for row, s in zip(mapping.row[source.labels], sets, strict=True) if s and row >= 0
    ]
    agree = sum(bool(own & s) for own, s in kept)
    if 2 * agree < len(kept):
        raise DataError(
            f"{path} is not in the order of {source.name}: only {agree:,} of {len(kept):,} labels agree. "
            "Images named as ImageNet's validation images are found in any order"
        )
