"""demo.png, the demo on one page: predictions and attention, before and after fine-tuning.

predictions of the model                 ┐
pictures                                 │ a picture in each column
pictures, lit by the attention rollout   ┘
test images                              ┐
test images, lit by the rollout          │ a test image in each column
predictions of the fine-tuned model      ┘
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.checkpoints.formats import load
from vitrail.data.readers.class_names import readable
from vitrail.demo.material import Material, read_some
from vitrail.inference.predict import Prediction, predict
from vitrail.inspection import drawing, pictures
from vitrail.inspection.attention import rollout
from vitrail.inspection.inspect import Inspection, model_input
from vitrail.runtime.device import pick

SIDE = 160  # pixels of a picture on the page
LETTERS = 18  # letters of a caption as wide as a picture


def draw_summary(material: Material, seen: Inspection, path: Path) -> None:
    """Draw the summary to `path`; `seen`: the inspection of the material's pictures."""
    m = material
    tuned = load(m.folder / "finetuned" / "model").to(pick(m.device))
    tests = read_some(m.test, m.settings.pictures)
    images, labels = list(tests.values()), [m.test.class_names[m.test.labels[i]] for i in tests]
    columns = max(len(images), len(seen.subjects))
    page = np.full((4, columns, SIDE, SIDE, 3), pictures.PAPER, np.uint8)
    for k, one in enumerate(seen.subjects):
        assert one.rollout is not None  # the model is a ViT
        page[:2, k] = plain_and_lit(one.picture, one.rollout)
    for k, (image, weights) in enumerate(zip(images, rollout(tuned, images), strict=True)):
        page[2:, k] = plain_and_lit(model_input(tuned, image), weights)
    names = [one.label or one.name for one in m.pictures]
    drawing.labelled(
        pictures.tiled(page, SIDE),
        path,
        title=f"{m.settings.model}: predictions and attention; below, after fine-tuning on {m.train.name}",
        rows=["picture", "attention", "test image", "attention"],
        above=captions(names, [one.top for one in seen.subjects], columns),
        columns=captions(labels, predict(tuned, images, 1), columns),
    )


def plain_and_lit(picture: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a picture, uint8 (H, W, 3), and a copy with the brightness of a map over it: (SIDE, SIDE, 3) each."""
    large = np.asarray(Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    return large, pictures.lit(large, weights)


def captions(names: Sequence[str], predictions: Sequence[Prediction], columns: int) -> list[str]:
    """Return a caption for each column: the name of the picture and, in a second line, the prediction."""
    texts = [""] * columns
    for k, (name, ((answer, probability), *_)) in enumerate(zip(names, predictions, strict=True)):
        name, answer = (
            drawing.shorten(readable(name), LETTERS),
            drawing.shorten(readable(answer), LETTERS - 7),
        )
        texts[k] = f"{name}\n→ {answer} {probability:.0%}"
    return texts
