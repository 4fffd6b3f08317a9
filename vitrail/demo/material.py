"""The model, data and pictures of the demo, opened and checked before anything is written.

Data of any size is subsampled, so that evaluating takes seconds: some examples per class for few-shot, and a part of
the test split in which every class keeps its share. Fine-tuning uses all of train, for a fixed number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.checkpoints.formats import load
from vitrail.data.sources import Source, find_test_split, open_source, split_options
from vitrail.demo.settings import Demo
from vitrail.errors import ConfigError, DataError, ImageError
from vitrail.inference.images import decode_example, find_images, pixels
from vitrail.inspection.pictures import evenly
from vitrail.models.vit import ViT
from vitrail.runtime.device import Device, pick
from vitrail.runtime.log import note
from vitrail.transfer.protocols import check_counts

# Pictures of things that the included model was trained to name, rendered to look like photographs.
RENDERED = Path(__file__).parent / "pictures"
THINGS = ("orange", "banana", "lemon", "ladybug", "mushroom", "basketball", "obelisk", "dumbbell")


@dataclass(frozen=True)
class Picture:
    """A picture to classify."""

    name: str  # to show
    path: Path  # its file, which may not be written yet
    pixels: np.ndarray  # uint8 (H, W, 3)
    label: str | None  # its class, if known


@dataclass(frozen=True)
class Material:
    """Everything that the stages use."""

    settings: Demo
    folder: Path
    device: Device
    model: ViT  # on its device
    train: Source
    few: Source  # part of train for few-shot
    test: Source
    test_split: str
    shots: tuple[int, ...]  # those for which every class has enough examples
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
        name = find_test_split(settings.data)
        test_split = share_split(name, open_source(settings.data, name), settings.max_images)
        test = open_source(settings.data, test_split)
        if train.class_names != test.class_names:
            raise DataError(f"{train.name} and {test.name} do not have the same classes")
        least = int(np.bincount(few.labels).min())
        shots = tuple(n for n in settings.shots if n <= least)
        if not shots:
            raise ConfigError(f"shots {settings.shots}: {train.name} allows at most {least}")
        if dropped := [str(n) for n in settings.shots if n > least]:
            note(f"{train.name} has a class with {least} images only; skipping {', '.join(dropped)}-shot")
        pictures = choose_pictures(settings, test, folder)
        return cls(settings, folder, device, model, train, few, test, test_split, shots, pictures)


def few_split(train: Source, settings: Demo) -> str:
    """Return a part of train with equally many examples per class: about `max_images`, and enough for all shots."""
    classes = len(train.class_names)
    least = int(np.bincount(train.labels, minlength=classes).min())
    each = min(least, max(settings.max_images // classes, *settings.shots))
    return "train" if each * classes == len(train) else f"train[:{each} per class]"


def share_split(name: str, source: Source, max_images: int) -> str:
    """Return a part of a split with about `max_images` images, in proportion to its classes, and never none."""
    if len(source) <= max_images:
        return name
    percent = 100 * max(max_images / len(source), 1 / int(np.bincount(source.labels).max()))
    return f"{name}[:{percent:.3g}% per class]"


def choose_pictures(settings: Demo, test: Source, folder: Path) -> list[Picture]:
    """Return the user's images; without any, rendered pictures if the data are drawings, else test images."""
    if settings.images:
        paths = find_images(settings.images)
        chosen = [paths[i] for i in evenly(len(paths), settings.pictures)]
        return [Picture(path.name, path, pixels(path), None) for path in chosen]
    if is_drawn(settings.data):
        return [
            Picture(name, folder / "pictures" / f"{name}.png", pixels(RENDERED / f"{name}.png"), name)
            for name in THINGS[: settings.pictures]
        ]
    images = read_some(test, settings.pictures)
    return [
        Picture(test.key(i), folder / "pictures" / f"{number:02}.png", x, test.class_names[test.labels[i]])
        for number, (i, x) in enumerate(images.items(), 1)
    ]


def is_drawn(data: str) -> bool:
    """Return whether the package draws the data; a model trained on photographs has no name for such images."""
    return split_options(data)[0].split(":")[0] == "shapes"


def read_some(source: Source, count: int) -> dict[int, np.ndarray]:
    """Return index -> pixels of up to `count` readable examples: the first of each class, then the second, ..."""
    labels = source.labels
    images: dict[int, np.ndarray] = {}
    order = np.argsort(labels, kind="stable")  # class by class
    first = np.searchsorted(labels[order], labels[order])  # where the class begins
    for i in order[np.argsort(np.arange(len(labels)) - first, kind="stable")].tolist():
        if len(images) == count:
            break
        try:
            images[i] = decode_example(source, i)
        except (ImageError, DataError):
            continue  # training and evaluation count them
    if not images:
        raise DataError(f"{source.name}: none of its images can be read")
    return images
