"""demo.png, the demo on one page: what the model says and attends to, before and after fine-tuning.

answers of the model         ┐
pictures                     │ columns: a picture each
the same, lit by its rollout ┘
test images                  ┐
the same, lit by its rollout │ columns: a test image each
answers, fine-tuned          ┘
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.checkpoints.formats import load
from vitrail.data.readers.class_names import readable
from vitrail.demo.material import Material, some_of
from vitrail.inference.predict import Prediction, predict
from vitrail.inspection import drawing, pictures
from vitrail.inspection.attention import rollout
from vitrail.inspection.inspect import Inspection, picture_of
from vitrail.runtime.device import pick

SIDE = 160  # pixels of a picture on the page
LETTERS = 18  # of a caption, as wide as a picture


def draw_summary(material: Material, seen: Inspection, path: Path) -> None:
    """`seen`: the pictures of the material, looked at closely."""
    m = material
    tuned = load(m.folder / "finetuned" / "model").to(pick(m.device))
    tests = some_of(m.test, m.settings.pictures)
    images, labels = list(tests.values()), [m.test.class_names[m.test.labels[i]] for i in tests]
    columns = max(len(images), len(seen.subjects))
    page = np.full((4, columns, SIDE, SIDE, 3), pictures.PAPER, np.uint8)
    for k, one in enumerate(seen.subjects):
        assert one.rollout is not None  # the model is a ViT
        page[:2, k] = lit_and_unlit(one.picture, one.rollout)
    for k, (image, weights) in enumerate(zip(images, rollout(tuned, images), strict=True)):
        page[2:, k] = lit_and_unlit(picture_of(tuned, image), weights)
    shown = [one.meant or one.name for one in m.pictures]
    drawing.labelled(
        pictures.tiled(page, SIDE),
        path,
        title=f"{m.settings.model}: what it says and what it looks at; below, fine-tuned on {m.train.name}",
        rows=["picture", "attention", "test image", "attention"],
        above=captions(shown, [one.top for one in seen.subjects], columns),
        columns=captions(labels, predict(tuned, images, 1), columns),
    )


def lit_and_unlit(picture: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """uint8 (H, W, 3) and a map over it -> the picture, and the same as bright as the map says: (SIDE, SIDE, 3)."""
    large = np.asarray(Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    return large, pictures.lit(large, weights)


def captions(shown: Sequence[str], answers: Sequence[Prediction], columns: int) -> list[str]:
    """What is there, and in a second line the answer."""
    made = []
    for what, ((name, probability), *_) in zip(shown, answers, strict=True):
        made.append(f"{cut(readable(what), LETTERS)}\n→ {cut(readable(name), LETTERS - 7)} {probability:.0%}")
    return made + [""] * (columns - len(made))


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
