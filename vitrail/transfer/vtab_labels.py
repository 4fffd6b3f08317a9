"""The labels of VTAB's structured tasks: from what a data set annotates to a class.

    annotation of one example (a row's value of one column) ──rule──► label 0 .. classes - 1

Annotations are as TFDS has them. Objects of a scene are a list of records, or a record of lists: both are what
Parquet writers make of TFDS's sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vitrail.errors import DataError

Rule = Callable[[Any], int]

CLEVR_LEAST = 3  # objects in a scene; ten are the most
CLEVR_DISTANCES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
KITTI_DISTANCES = (-100.0, 8.0, 20.0, 999.0)
KITTI_VEHICLES = (0, 1, 2, "Car", "Van", "Truck")
NO_VEHICLE = 1000.0  # metres: its own class, the last one
DSPRITES_X, DSPRITES_ORIENTATIONS, DSPRITES_CLASSES = 32, 40, 16


def clevr_count(objects: Any) -> int:
    """3 to 10 objects -> 0 to 7."""
    return count(objects) - CLEVR_LEAST


def clevr_distance(objects: Any) -> int:
    """By the third of the pixel coordinates, the depth, of the closest object: 6 classes."""
    return interval(min(float(p[2]) for p in field(objects, "pixel_coords")), CLEVR_DISTANCES)


def kitti_distance(objects: Any) -> int:
    """By the depth in metres of the closest car, van or truck: 3 intervals, and no vehicle at all."""
    kinds, places = field(objects, "type"), field(objects, "location")
    depths = [float(p[2]) for kind, p in zip(kinds, places, strict=True) if kind in KITTI_VEHICLES]
    return interval(min(depths, default=NO_VEHICLE), KITTI_DISTANCES)


def dsprites_x(position: Any) -> int:
    """32 positions -> 16 classes."""
    return binned(position, DSPRITES_X)


def dsprites_orientation(orientation: Any) -> int:
    """40 orientations -> 16 classes, by turns of three and of two."""
    return binned(orientation, DSPRITES_ORIENTATIONS)


def interval(distance: float, thresholds: Sequence[float]) -> int:
    """The last threshold that lies below; a distance that equals one belongs to the class before."""
    below = [i for i, threshold in enumerate(thresholds) if threshold < distance]
    if not below:
        raise DataError(f"a distance of {distance:g}; more than {thresholds[0]:g} is possible")
    return below[-1]


def binned(value: int, values: int) -> int:
    """0 .. values - 1 -> 0 .. 15: neighbours share a class."""
    if not 0 <= value < values:
        raise DataError(f"the value {value}; 0 to {values - 1} are possible")
    return math.floor(value / (values / DSPRITES_CLASSES))


def count(objects: Any) -> int:
    if isinstance(objects, Mapping):
        lengths = {len(values) for values in objects.values()}
        if len(lengths) != 1:
            raise DataError(
                f"objects whose fields have {sorted(lengths)} values; as many as there are objects"
            )
        return int(lengths.pop())
    return len(objects)


def field(objects: Any, name: str) -> Sequence[Any]:
    """One value of each object."""
    try:
        return objects[name] if isinstance(objects, Mapping) else [each[name] for each in objects]
    except (KeyError, TypeError) as error:
        raise DataError(f"its objects have no field {name!r}") from error
