"""A model and images -> the most probable classes of each, by name.

An image that cannot be read does not stop the others, in Python and on the command line: it keeps its place among the
results, without classes, and a note gives the reason. It is an error only if no image can be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from vitrail.checkpoints.included import ASSETS
from vitrail.data.bounded_files import read_json, read_text
from vitrail.errors import ConfigError, DataError, ImageError
from vitrail.inference.engine import BATCH_SIZE, RunnableLike, image_loaders, outputs
from vitrail.inference.exported import Runnable, as_runnable
from vitrail.inference.images import Images
from vitrail.inference.precision import Precision
from vitrail.inference.zero_shot import with_texts
from vitrail.runtime.log import note


class Prediction(list[tuple[str, float]]):
    """(class name, probability) of the most probable classes, the most probable first.

    `answer`: the names of those that the model is sure of (models/calibration.py): the first class; none if its
    probability is below the threshold of the class; of a model for several labels, any number.
    """

    def __init__(self, classes: Iterable[tuple[str, float]] = (), answer: Iterable[str] = ()) -> None:
        super().__init__(classes)
        self.answer = tuple(answer)


NAMED = 5  # images that cannot be read, in a note


def predict(
    model: RunnableLike,
    images: Images,
    top: int = 5,
    *,
    batch_size: int = BATCH_SIZE,
    num_workers: int = 0,
    precision: Precision = "float32",
    text_embeddings: str | Path | None = None,
) -> list[Prediction]:
    """Return for each image the `top` classes with their probabilities, and as `.answer` those that the model is sure
    of (models/calibration.py).

    `images`: files, folders (the images in them, sorted) or glob patterns; bytes, PIL images, arrays. The list of an
    image that cannot be read is empty, and a note says why; ImageError if none can be read. `text_embeddings`: a file
    of embedded texts, which are the classes instead of the model's own (zero_shot.py).
    """
    model = as_runnable(model)
    model = model if text_embeddings is None else with_texts(model, text_embeddings)
    results = list(predict_each(model, images, top, batch_size, num_workers, precision=precision))
    errors = [result for result in results if isinstance(result, ImageError)]
    if errors and len(errors) == len(results):
        more = f" (nor can the {len(errors) - 1:,} others)" if len(errors) > 1 else ""
        raise ImageError(f"{errors[0]}{more}")
    if errors:
        first = "; ".join(map(str, errors[:NAMED])) + ("; ..." if len(errors) > NAMED else "")
        note(f"{len(errors):,} of {len(results):,} images cannot be read and have no classes: {first}")
    return [Prediction() if isinstance(result, ImageError) else result for result in results]


def predict_each(
    model: Runnable,
    images: Images,
    top: int = 5,
    batch_size: int = BATCH_SIZE,
    num_workers: int | None = 0,
    *,
    precision: Precision = "float32",
    task: str = "",
) -> Iterator[Prediction | ImageError]:
    """Yield the prediction of each image in turn, or what is wrong with it. `task` names a progress bar."""
    if top < 1:
        raise ConfigError(f"top must be at least 1, not {top}")
    if not model.config.classes:
        raise ConfigError("this model has no classifier: load it with classes=, and train it, to predict")
    names, calibration = class_names(model), model.calibration
    for loader in image_loaders(model, images, batch_size, num_workers):
        source, bad, done = loader.stream.source, loader.bad_files.examples, 0
        for logits, batch in outputs(model, loader, precision=precision, task=task):
            p, sure = calibration.decide(logits)  # (b, K) each
            k = logits.argsort(dim=1, descending=True, stable=True)  # (b, K)
            k = k if calibration.multi_label else k[:, :top]  # every answer is shown
            columns = (batch["index"], k, p.gather(1, k), sure.gather(1, k))
            for i, *row in zip(*(t.tolist() for t in columns), strict=True):
                yield from (ImageError(bad[source.key(j)].reason) for j in range(done, i))
                ranked = [(names[c], value, one) for c, value, one in zip(*row, strict=True)]
                yield Prediction(
                    [(name, value) for n, (name, value, one) in enumerate(ranked) if n < top or one],
                    [name for name, _, one in ranked if one],
                )
                done = i + 1
        yield from (ImageError(bad[source.key(j)].reason) for j in range(done, len(source)))


def class_names(model: Runnable) -> list[str]:
    """Return the model's own class names; else ImageNet-1k's for 1,000 outputs; else the indices, as text."""
    if model.class_names is not None:
        if len(model.class_names) != model.config.classes:
            raise ConfigError(f"{len(model.class_names)} class names for {model.config.classes} classes")
        return model.class_names
    if model.config.classes == 1000:
        names: list[str] = json.loads((ASSETS / "imagenet-1k.json").read_text(encoding="utf-8"))["names"]
        return names
    return [str(i) for i in range(model.config.classes)]


def read_class_names(path: str | Path, classes: int) -> list[str]:
    """Read one name for each class: a JSON list (`.json`), or a name on each line."""
    path, what = Path(path), "a list of class names"
    names = read_json(path, what) if path.suffix == ".json" else read_text(path, what).splitlines()
    if not isinstance(names, list) or not all(type(name) in (str, int) for name in names):
        raise DataError(f"class names {path}: expected a JSON list of names, not {str(names)[:60]!r}")
    names = [str(name).strip() for name in names if str(name).strip()]
    if len(names) != classes:
        raise DataError(f"class names {path}: {len(names)} names for the model's {classes} classes")
    return names
