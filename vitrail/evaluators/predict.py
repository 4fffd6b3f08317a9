"""A model and images -> the most probable classes of each, by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from vitrail.checkpoints.box import ASSETS
from vitrail.checkpoints.formats import as_model
from vitrail.data.foreign_files import read_json, read_text
from vitrail.errors import ConfigError, DataError, ImageError
from vitrail.evaluators.features import BATCH, ImageLike, each_image, outputs, pixels
from vitrail.models.names import Model

Prediction = list[tuple[str, float]]  # (class name, probability), the most probable first


def predict(
    model: Model | str | Path, images: ImageLike | Iterable[ImageLike], top: int = 5
) -> list[Prediction]:
    """For each image the `top` classes with their probabilities (a softmax over all classes).

    `images`: files, folders (the images in them, sorted) or glob patterns; bytes, PIL images, arrays.
    """
    if top < 1:
        raise ConfigError(f"top must be at least 1, not {top}")
    model = as_model(model)
    if not model.config.classes:
        raise ConfigError("this model has no classifier: load it with classes=, and train it, to predict")
    names = names_of(model)
    made: list[Prediction] = []
    for logits in outputs(model, each_image(images)):
        probability, index = logits.softmax(dim=1).topk(min(top, len(names)))  # (B, top) each
        for p, i in zip(probability.tolist(), index.tolist(), strict=True):
            made.append([(names[k], value) for k, value in zip(i, p, strict=True)])
    return made


def predict_each(
    model: Model, paths: Sequence[Path], top: int = 5
) -> Iterator[tuple[Path, Prediction | ImageError]]:
    """The same for files, in order; one that cannot be read gives its error instead of stopping the others."""
    for start in range(0, len(paths), BATCH):
        group = paths[start : start + BATCH]
        errors: dict[int, ImageError] = {}
        made = iter(predict(model, readable_of(group, errors), top))
        for i, path in enumerate(group):
            yield path, errors[i] if i in errors else next(made)


def readable_of(paths: Sequence[Path], errors: dict[int, ImageError]) -> Iterator[np.ndarray]:
    """The pixels of those that can be read, one after the other; of the others `errors` says what is wrong."""
    for i, path in enumerate(paths):
        image = pixels_or_error(path)
        if isinstance(image, ImageError):
            errors[i] = image
        else:
            yield image


def pixels_or_error(path: Path) -> np.ndarray | ImageError:
    try:
        return pixels(path)
    except ImageError as error:
        return error


def read_class_names(path: str | Path, classes: int) -> list[str]:
    """A JSON list (`.json`), or a name on each line; exactly one for each class."""
    path, what = Path(path), "a list of class names"
    names = read_json(path, what) if path.suffix == ".json" else read_text(path, what).splitlines()
    if not isinstance(names, list) or not all(type(name) in (str, int) for name in names):
        raise DataError(f"class names {path}: a JSON list of names is expected, not {str(names)[:60]!r}")
    names = [str(name).strip() for name in names if str(name).strip()]
    if len(names) != classes:
        raise DataError(f"class names {path}: {len(names)} names for the model's {classes} classes")
    return names


def names_of(model: Model) -> list[str]:
    """The model's own class names; else ImageNet-1k's for 1,000 outputs; else the indices, as text."""
    if model.class_names is not None:
        if len(model.class_names) != model.config.classes:
            raise ConfigError(f"{len(model.class_names)} class names for {model.config.classes} classes")
        return model.class_names
    if model.config.classes == 1000:
        return imagenet_names()
    return [str(i) for i in range(model.config.classes)]


def imagenet_names() -> list[str]:
    """In the order of ImageNet-1k's labels; the file says where they are from."""
    names: list[str] = json.loads((ASSETS / "imagenet-1k.json").read_text(encoding="utf-8"))["names"]
    return names
