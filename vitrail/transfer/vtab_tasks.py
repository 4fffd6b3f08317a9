"""The 19 tasks of VTAB-1k as task_adaptation and TFDS define them, and the accuracies of the paper's Table 9.

    annotation of one example (a row's value of one column) ──rule──► label 0 .. classes - 1

A task trains on 800 examples, chooses by 200 and tests on a full test set, all by their positions in the order of
TFDS. Annotations are as TFDS stores them; the objects of a scene are a list of records or a record of lists, the two
forms that Parquet writers give to the sequences of TFDS.
"""

from __future__ import annotations

import difflib
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from vitrail.errors import ConfigError

Group = Literal["natural", "specialized", "structured"]
GROUPS: tuple[Group, ...] = ("natural", "specialized", "structured")
Rule = Callable[[Any], int]  # annotation -> label; ValueError, KeyError or TypeError: not what TFDS stores

CLEVR_FEWEST = 3  # objects in a scene; ten are the most
CLEVR_DISTANCES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
KITTI_DISTANCES = (-100.0, 8.0, 20.0, 999.0)
KITTI_VEHICLES = (0, 1, 2, "Car", "Van", "Truck")
NO_VEHICLE = 1000.0  # metres, which is in the last class
DSPRITES_CLASSES = 16


@dataclass(frozen=True)
class Task:
    """A data set and a question about its images."""

    group: Group
    classes: int
    tfds: str  # name and version of the data set in TFDS
    folder: str  # name of the data set's folder, where the task has none of its own
    val: str = "validation"  # split whose first 200 examples are the ones to choose by
    test: str = "test"
    column: str | None = None  # column of the annotation; None: the label column
    rule: Rule | None = None  # computes the label; None: the annotation is the label
    flip: bool = True  # a mirror image keeps the label true, unless the task is structured
    binary: bool = False  # TFDS stores pixels as 0 and 1


def clevr_count(objects: Any) -> int:
    """Map 3 to 10 objects to 0 to 7."""
    return len(records(objects)) - CLEVR_FEWEST


def clevr_distance(objects: Any) -> int:
    """Return the class of the closest object's depth, its third pixel coordinate; 6 classes."""
    return interval(min(float(item["pixel_coords"][2]) for item in records(objects)), CLEVR_DISTANCES)


def kitti_distance(objects: Any) -> int:
    """Return the class of the closest vehicle's depth in metres; 3 intervals, and no vehicle at all."""
    vehicles = [item for item in records(objects) if item["type"] in KITTI_VEHICLES]
    return interval(
        min((float(item["location"][2]) for item in vehicles), default=NO_VEHICLE), KITTI_DISTANCES
    )


def records(objects: Any) -> list[Mapping[str, Any]]:
    """Return one record for each object of a scene."""
    if not isinstance(objects, Mapping):
        return list(objects)
    return [dict(zip(objects, values, strict=True)) for values in zip(*objects.values(), strict=True)]


def interval(distance: float, thresholds: Sequence[float]) -> int:
    """Return the index of the last threshold below a distance."""
    index = bisect_left(thresholds, distance) - 1
    if index < 0:
        raise ValueError(f"a distance of {distance:g}; it must be above {thresholds[0]:g}")
    return index


def coarse(value: int, values: int) -> int:
    """Map 0 .. values - 1 to 0 .. 15; neighbours share a class."""
    if not 0 <= value < values:
        raise ValueError(f"the value {value}; it must be 0 to {values - 1}")
    return math.floor(value / (values / DSPRITES_CLASSES))


dsprites_x = partial(coarse, values=32)  # two positions to a class
dsprites_orientation = partial(coarse, values=40)  # alternately three and two orientations to a class


TASKS: dict[str, Task] = {
    "caltech101": Task("natural", 102, "caltech101:3.*", "caltech101", "train[90%:]"),
    "cifar100": Task("natural", 100, "cifar100:3.*", "cifar100", "train[90%:]"),
    "dtd": Task("natural", 47, "dtd:3.*", "dtd"),
    "flowers102": Task("natural", 102, "oxford_flowers102:2.*", "oxford_flowers102"),
    "pets": Task("natural", 37, "oxford_iiit_pet:3.*", "oxford_iiit_pet", "train[80%:]"),
    "sun397": Task("natural", 397, "sun397/tfds:4.*", "sun397"),
    "svhn": Task("natural", 10, "svhn_cropped:3.*", "svhn_cropped", "train[90%:]", flip=False),
    "camelyon": Task("specialized", 2, "patch_camelyon:2.*", "patch_camelyon"),
    "eurosat": Task("specialized", 10, "eurosat/rgb:2.*", "eurosat", "train[60%:]", "train[80%:]"),
    "resisc45": Task("specialized", 45, "resisc45:3.*", "resisc45", "train[60%:]", "train[80%:]"),
    "retinopathy": Task(
        "specialized", 5, "diabetic_retinopathy_detection/btgraham-300:3.*", "diabetic_retinopathy_detection"
    ),
    "clevr_count": Task(
        "structured", 8, "clevr:3.*", "clevr", "train[90%:]", "validation", "objects", clevr_count
    ),
    "clevr_distance": Task(
        "structured", 6, "clevr:3.*", "clevr", "train[90%:]", "validation", "objects", clevr_distance
    ),
    "dmlab": Task("structured", 6, "dmlab:2.0.1", "dmlab"),
    "dsprites_location": Task(
        "structured", 16, "dsprites:2.*", "dsprites", "train[80%:]", "train[90%:]", "label_x_position",
        dsprites_x, binary=True,
    ),
    "dsprites_orientation": Task(
        "structured", 16, "dsprites:2.*", "dsprites", "train[80%:]", "train[90%:]", "label_orientation",
        dsprites_orientation, binary=True,
    ),
    "kitti_distance": Task("structured", 4, "kitti:3.1.0", "kitti", column="objects", rule=kitti_distance),
    "smallnorb_azimuth": Task(
        "structured", 18, "smallnorb:2.*", "smallnorb", "test", "test[50%:]", "label_azimuth"
    ),
    "smallnorb_elevation": Task(
        "structured", 9, "smallnorb:2.*", "smallnorb", "test", "test[50%:]", "label_elevation"
    ),
}  # fmt: skip

# Table 9: percentages, in the order of TASKS.
PAPER = {
    "H/14 JFT": (
        95.3, 85.5, 75.2, 99.7, 97.2, 65.0, 88.9, 83.3, 96.7, 91.4, 76.6,
        91.7, 63.8, 53.1, 79.4, 63.3, 84.5, 33.2, 51.2,
    ),
    "L/16 JFT": (
        95.4, 81.9, 74.3, 99.7, 96.7, 63.5, 87.4, 83.6, 96.5, 89.7, 77.1,
        86.4, 63.1, 49.7, 74.5, 60.5, 82.2, 36.2, 51.1,
    ),
    "L/16 i21k": (
        90.8, 84.1, 74.1, 99.3, 92.7, 61.0, 80.9, 82.5, 95.6, 85.2, 75.3,
        70.3, 56.1, 41.9, 74.7, 64.9, 79.9, 30.5, 41.7,
    ),
}  # fmt: skip


def select_tasks(names: Sequence[str]) -> list[str]:
    """Return tasks by their names and groups, in the order of TASKS; all of them if none is named."""
    known = [*TASKS, *GROUPS]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(
                f"unknown task {name!r}{hint}; tasks: {', '.join(TASKS)}; groups: {', '.join(GROUPS)}"
            )
    return [name for name, task in TASKS.items() if not names or name in names or task.group in names]


def paper_accuracies(model: str) -> dict[str, float]:
    """Return the accuracy on each task of a model of the paper's Table 9."""
    if model not in PAPER:
        raise ConfigError(f"the paper's Table 9 has no {model!r}; it has: {', '.join(PAPER)}")
    return {task: value / 100 for task, value in zip(TASKS, PAPER[model], strict=True)}
