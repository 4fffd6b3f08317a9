"""The 19 tasks of VTAB-1k, as task_adaptation and TFDS define them; and what the paper reached on them (Table 9).

A task takes 800 examples to train on, 200 to choose by, and a full test set, all by their positions in the order
of TFDS. `val` names where the 200 begin: they are its first ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vitrail.errors import ConfigError
from vitrail.transfer.vtab_labels import (
    Rule,
    clevr_count,
    clevr_distance,
    dsprites_orientation,
    dsprites_x,
    kitti_distance,
)

Group = Literal["natural", "specialized", "structured"]
GROUPS: tuple[Group, ...] = ("natural", "specialized", "structured")


@dataclass(frozen=True)
class Task:
    """One data set with one question about its images."""

    group: Group
    classes: int
    tfds: str  # the data set in TFDS, and its version
    folder: str  # what its folder is called, where it is not called as the task
    val: str = "validation"  # where the examples to choose by begin
    test: str = "test"
    column: str | None = None  # of the annotation; None: the one that is called the label
    rule: Rule | None = None  # annotation -> label; None: it is the label
    crop: bool = True  # whether a random crop keeps the label true
    flip: bool = True  # and a mirror image
    binary: bool = False  # TFDS stores the pixels as 0 and 1


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
        "structured", 8, "clevr:3.*", "clevr", "train[90%:]", "validation", "objects", clevr_count,
        crop=False, flip=False,
    ),
    "clevr_distance": Task(
        "structured", 6, "clevr:3.*", "clevr", "train[90%:]", "validation", "objects", clevr_distance,
        crop=False, flip=False,
    ),
    "dmlab": Task("structured", 6, "dmlab:2.0.1", "dmlab", crop=False, flip=False),
    "dsprites_location": Task(
        "structured", 16, "dsprites:2.*", "dsprites", "train[80%:]", "train[90%:]", "label_x_position",
        dsprites_x, crop=False, flip=False, binary=True,
    ),
    "dsprites_orientation": Task(
        "structured", 16, "dsprites:2.*", "dsprites", "train[80%:]", "train[90%:]", "label_orientation",
        dsprites_orientation, crop=False, flip=False, binary=True,
    ),
    "kitti_distance": Task(
        "structured", 4, "kitti:3.1.0", "kitti", column="objects", rule=kitti_distance, crop=False, flip=False
    ),
    "smallnorb_azimuth": Task(
        "structured", 18, "smallnorb:2.*", "smallnorb", "test", "test[50%:]", "label_azimuth",
        crop=False, flip=False,
    ),
    "smallnorb_elevation": Task(
        "structured", 9, "smallnorb:2.*", "smallnorb", "test", "test[50%:]", "label_elevation",
        crop=False, flip=False,
    ),
}  # fmt: skip

# Table 9: per cent, in the order of TASKS.
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


def chosen_tasks(names: Sequence[str]) -> list[str]:
    """Names of tasks and of groups, in the order of the table; nothing: all of them."""
    known = [*TASKS, *GROUPS]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(
                f"no task {name!r}{meant}; tasks: {', '.join(TASKS)}; groups: {', '.join(GROUPS)}"
            )
    return [name for name, task in TASKS.items() if not names or name in names or task.group in names]


def paper_scores(model: str) -> dict[str, float]:
    """Task -> the paper's accuracy, for a model of its Table 9."""
    if model not in PAPER:
        raise ConfigError(f"the paper's Table 9 has no {model!r}; it has: {', '.join(PAPER)}")
    return {task: value / 100 for task, value in zip(TASKS, PAPER[model], strict=True)}
