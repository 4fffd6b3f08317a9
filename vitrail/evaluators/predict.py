"""A model and images -> the most probable classes of each, by name.

An image that cannot be read does not stop the others, in Python and on the command line alike: it has its place among
the results, without classes, and what is wrong with it is said. Only where none can be read is that an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from vitrail.checkpoints.box import ASSETS
from vitrail.checkpoints.formats import as_model
from vitrail.data.foreign_files import read_json, read_text
from vitrail.data.sources import Source
from vitrail.errors import ConfigError, DataError, ImageError
from vitrail.evaluators.features import BATCH, ImageLike, each_image, outputs, pixels, pixels_of
from vitrail.models.names import Model
from vitrail.runtime.log import note

Prediction = list[tuple[str, float]]  # (class name, probability), the most probable first
NAMED = 5  # images that cannot be read, in a note


def predict(
    model: Model | str | Path, images: ImageLike | Iterable[ImageLike] | Source, top: int = 5
) -> list[Prediction]:
    """For each image the `top` classes with their probabilities (a softmax over all classes).

    `images`: files, folders (the images in them, sorted) or glob patterns; bytes, PIL images, arrays. The list of an
    image that cannot be read is empty, and a note says why; ImageError where none can be read.
    """
    results = _predict(as_model(model), _readers(images), top)
    errors = [result for result in results if isinstance(result, ImageError)]
    if errors and len(errors) == len(results):
        more = f" (nor can the {len(errors) - 1:,} others)" if len(errors) > 1 else ""
        raise ImageError(f"{errors[0]}{more}")
    if errors:
        named = "; ".join(map(str, errors[:NAMED])) + ("; ..." if len(errors) > NAMED else "")
        note(f"{len(errors):,} of {len(results):,} images cannot be read and have no classes: {named}")
    return [[] if isinstance(result, ImageError) else result for result in results]


def predict_each(
    model: Model, paths: Sequence[Path], top: int = 5
) -> Iterator[tuple[Path, Prediction | ImageError]]:
    """The same for files, one after the other; one that cannot be read gives its error."""
    for start in range(0, len(paths), BATCH):
        group = paths[start : start + BATCH]
        yield from zip(group, _predict(model, (partial(pixels, path) for path in group), top), strict=True)


def _predict(
    model: Model, readers: Iterable[Callable[[], np.ndarray]], top: int
) -> list[Prediction | ImageError]:
    """Of each image, which its reader reads, the classes, or what is wrong with it."""
    if top < 1:
        raise ConfigError(f"top must be at least 1, not {top}")
    if not model.config.classes:
        raise ConfigError("this model has no classifier: load it with classes=, and train it, to predict")
    names = names_of(model)
    results: list[Prediction | ImageError] = []
    made: list[Prediction] = []

    def readable() -> Iterator[np.ndarray]:
        for read in readers:
            try:
                image = read()
            except DataError as error:
                results.append(error if isinstance(error, ImageError) else ImageError(str(error)))
            else:
                results.append([])  # to be filled in
                yield image

    for logits in outputs(model, readable()):
        probability, index = logits.softmax(dim=1).topk(min(top, len(names)))  # (B, top) each
        for p, i in zip(probability.tolist(), index.tolist(), strict=True):
            made.append([(names[k], value) for k, value in zip(i, p, strict=True)])
    answers = iter(made)
    return [result if isinstance(result, ImageError) else next(answers) for result in results]


def _readers(images: ImageLike | Iterable[ImageLike] | Source) -> Iterator[Callable[[], np.ndarray]]:
    """One call for each image, which reads it or says in a DataError why that cannot be."""
    if isinstance(images, Source):
        return (partial(_read, images, i) for i in range(len(images)))
    return (partial(pixels, image) for image in each_image(images))


def _read(source: Source, index: int) -> np.ndarray:
    return pixels_of(source.read(index))


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
