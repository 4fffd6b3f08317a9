"""What the demo works with: model, data, pictures. All of it is opened and checked before anything is written.

Data of any size is cut down to what can be measured in seconds: some examples of each class for few-shot, a part of
the test split in which every class keeps its share. Fine-tuning draws from all of train: there the steps are bounded.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import vitrail
from vitrail.checkpoints.formats import load
from vitrail.data.sources import Source, open_source, split_options, test_split_of
from vitrail.demo.drawings import DRAWINGS, drawing
from vitrail.demo.settings import Demo
from vitrail.errors import ConfigError, DataError, ImageError
from vitrail.inference.feature_cache import model_digest
from vitrail.inference.images import decode_example, find_images, pixels
from vitrail.inspection.pictures import evenly
from vitrail.models.vit import ViT
from vitrail.runtime.device import Device, pick
from vitrail.runtime.log import note
from vitrail.transfer.protocols import check_counts


@dataclass(frozen=True)
class Picture:
    """One to classify."""

    name: str  # for people
    path: Path  # where it is, or will be written
    pixels: np.ndarray  # uint8 (H, W, 3)
    meant: str | None  # what it shows, where that is known


@dataclass(frozen=True)
class Material:
    """Everything that the stages use."""

    settings: Demo
    folder: Path
    device: Device
    model: ViT  # on its device
    train: Source
    few: Source  # the part of train that few-shot draws from
    test: Source
    test_split: str
    shots: tuple[int, ...]  # those that every class has examples for
    pictures: list[Picture]

    @classmethod
    def open(cls, settings: Demo, folder: Path, device: Device) -> Material:
        settings.check()
        model = load(settings.model).to(pick(device))
        if not isinstance(model, ViT) or not model.config.classes:
            raise ConfigError(f"--model {settings.model}: the demo needs a ViT with a classifier")
        train = open_source(settings.data, "train")
        check_counts(train)
        few = open_source(settings.data, few_split(train, settings))
        name = test_split_of(settings.data)
        test_split = share_split(name, open_source(settings.data, name), settings.most)
        test = open_source(settings.data, test_split)
        if train.class_names != test.class_names:
            raise DataError(f"{train.name} and {test.name} do not have the same classes")
        least = int(np.bincount(few.labels).min())
        shots = tuple(n for n in settings.shots if n <= least)
        if not shots:
            raise ConfigError(f"shots {settings.shots}: {train.name} allows at most {least}")
        if dropped := [str(n) for n in settings.shots if n > least]:
            note(f"{train.name} has a class of {least} images: no {', '.join(dropped)}-shot")
        pictures = pictures_of(settings, test, folder)
        return cls(settings, folder, device, model, train, few, test, test_split, shots, pictures)

    @property
    def is_drawn(self) -> bool:
        return is_drawn(self.settings.data)

    @property
    def pictures_are(self) -> str:
        """In words."""
        if self.settings.images:
            return "your images"
        return "pictures that the package drew" if self.is_drawn else f"images of {self.test.name}"

    @property
    def batch(self) -> int | None:
        """None: few images, for which the protocol of fine-tuning has a smaller one."""
        return self.settings.batch if len(self.train) >= 8 * self.settings.batch else None

    def identity(self) -> dict[str, Any]:
        """What has to be the same for a folder to be gone on with."""
        version = {"weights": model_digest(self.model), "vitrail": vitrail.__version__}
        return dataclasses.asdict(self.settings) | version


def few_split(train: Source, settings: Demo) -> str:
    """So many of each class that all have as many: about `most` together, and enough for the most shots."""
    classes = len(train.class_names)
    least = int(np.bincount(train.labels, minlength=classes).min())
    each = min(least, max(settings.most // classes, *settings.shots))
    return "train" if each * classes == len(train) else f"train[:{each} per class]"


def share_split(name: str, source: Source, most: int) -> str:
    """About `most` of a split, every class in proportion; at least one of the largest class."""
    if len(source) <= most:
        return name
    part = 100 * max(most / len(source), 1 / int(np.bincount(source.labels).max()))
    return f"{name}[:{part:.3g}% per class]"


def pictures_of(settings: Demo, test: Source, folder: Path) -> list[Picture]:
    """The person's own; else, for a data set of drawings, drawings of things; else some of the test split."""
    if settings.images:
        found = find_images(settings.images)
        chosen = [found[i] for i in evenly(len(found), settings.pictures)]
        return [Picture(path.name, path, pixels(path), None) for path in chosen]
    if is_drawn(settings.data):
        places = {name: folder / "pictures" / f"{name}.png" for name in list(DRAWINGS)[: settings.pictures]}
        return [
            Picture(name, path, pixels(path) if path.is_file() else drawing(name), name)
            for name, path in places.items()
        ]
    shown = some_of(test, settings.pictures)
    return [
        Picture(test.key(i), folder / "pictures" / f"{number:02}.png", x, test.class_names[test.labels[i]])
        for number, (i, x) in enumerate(shown.items(), 1)
    ]


def is_drawn(data: str) -> bool:
    """By the package, so that its images show nothing that a model of photographs could name."""
    return split_options(data)[0].split(":")[0] == "shapes"


def some_of(source: Source, most: int) -> dict[int, np.ndarray]:
    """Index -> pixels of at most `most` examples: the first of each class, then the second; no broken ones."""
    labels = source.labels
    made: dict[int, np.ndarray] = {}
    order = np.argsort(labels, kind="stable")  # class by class
    first = np.searchsorted(labels[order], labels[order])  # where the class begins
    for i in order[np.argsort(np.arange(len(labels)) - first, kind="stable")].tolist():
        if len(made) == most:
            break
        try:
            made[i] = decode_example(source, i)
        except (ImageError, DataError):
            continue  # training and evaluation count them
    if not made:
        raise DataError(f"{source.name}: none of its images can be read")
    return made
