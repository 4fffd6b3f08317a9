"""An inspection, a run, an evaluation -> figures as PNG files in a folder, by name.

Inspection ──► filters.png  positions.png  attention_distance.png  image-01.png  image-01-heads.png ...
a run      ──► training.png
evaluation ──► confusion.png  right.png  wrong.png
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.checkpoints.run import metrics
from vitrail.data.readers.class_names import readable
from vitrail.data.sources import Source
from vitrail.evaluators.accuracy import Evaluation
from vitrail.evaluators.score import Gallery
from vitrail.inference.images import decode_example
from vitrail.inspection import drawing, pictures
from vitrail.inspection.inspect import Inspection, Subject
from vitrail.inspection.occlusion import cell_size
from vitrail.inspection.record import layer_names
from vitrail.models.names import Config
from vitrail.models.vit import ViTConfig

EXAMPLES = 12  # best and worst, each
SIDE = 160  # pixels of an example

Figures = dict[str, Path]


def draw_inspection(seen: Inspection, folder: Path) -> Figures:
    """All figures of an inspection; what each is of, by the name of its file."""
    made = {"filters": folder / "filters.png"}
    shown, part = len(seen.filters.components), seen.filters.variance.sum()
    title = f"{shown} principal components of {seen.filters.of}: {part:.0%} of its variance"
    drawing.labelled(pictures.filter_page(seen.filters.components), made["filters"], title=title)
    if seen.positions is not None:
        made["positions"] = folder / "positions.png"
        draw_positions(seen.positions, made["positions"])
    if seen.distances:
        made["attention_distance"] = folder / "attention_distance.png"
        draw_distances(seen, made["attention_distance"])
    for number, subject in enumerate(seen.subjects, 1):
        name = f"image-{number:02}"
        made[name] = folder / f"{name}.png"
        views = views_of(subject, seen.config)
        drawing.captioned(list(views.values()), list(views), made[name], title=heading(subject))
        if subject.maps is not None:
            made[f"{name}-heads"] = folder / f"{name}-heads.png"
            draw_heads(subject, seen.layers, made[f"{name}-heads"])
    return made


def draw_progress(folder: Path) -> None:
    """Draw the curves of a run's metrics into its figures/loss.png."""
    drawing.loss_curve(
        metrics.rows(folder / "metrics.jsonl"), folder / "figures" / "loss.png", title=folder.name
    )


def draw_gallery(gallery: Gallery, folder: Path) -> None:
    """Draw the pictures of an evaluator; the captions say what each row shows."""
    masked, predicted, truth = gallery.rows.values()
    drawing.masked_patches(masked, predicted, truth, folder / f"{gallery.name}.png")


def draw_run(rows: Sequence[Mapping[str, Any]], folder: Path, title: str) -> Figures:
    drawing.loss_curve(rows, folder / "training.png", title=title)
    return {"training": folder / "training.png"}


def draw_evaluation(evaluation: Evaluation, source: Source, folder: Path) -> Figures:
    """The confusion matrix (where data and model have the same classes), the surest right answers and mistakes."""
    made: Figures = {}
    names = evaluation.class_names
    if names == evaluation.model_class_names and len(names) <= drawing.MOST_CLASSES:
        made["confusion"] = folder / "confusion.png"
        drawing.confusion_matrix(evaluation.confusion, [*map(readable, names)], made["confusion"])
    given = evaluation.predictions
    right = np.flatnonzero(given.right)
    right = right[np.argsort(-given.confidence[right], kind="stable")]
    titles = {"right": "Right, and the most confident", "wrong": "Wrong, and the most confident"}
    for name, chosen in (("right", right[:EXAMPLES]), ("wrong", given.mistakes()[:EXAMPLES])):
        if len(chosen):
            made[name] = folder / f"{name}.png"
            shown = [pictures.thumbnail(decode_example(source, int(i)), SIDE) for i in given.index[chosen]]
            captions = [caption(evaluation, source, int(k)) for k in chosen]
            drawing.captioned(shown, captions, made[name], title=titles[name])
    return made


def caption(evaluation: Evaluation, source: Source, k: int) -> str:
    """Which image it is, and below it what was said of it."""
    given = evaluation.predictions
    said = readable(evaluation.model_class_names[given.predicted[k]])
    true = readable(evaluation.class_names[given.label[k]])
    answer = said if given.right[k] else f"{said}, but it is {true}"
    name = without_middle(source.key(int(given.index[k])), drawing.LINE)
    return f"{name}\n{answer} ({given.confidence[k]:.0%})"


def without_middle(text: str, most: int) -> str:
    """Of a long name the beginning and the end, which tells one file from the next."""
    end = (most - 1) * 2 // 3
    return text if len(text) <= most else f"{text[: most - 1 - end]}…{text[-end:]}"


def draw_positions(similarity: np.ndarray, path: Path) -> None:
    rows, columns = similarity.shape[:2]
    down, across = (pictures.evenly(n, pictures.MOST_TILES) + 1 for n in (rows, columns))
    some = "each" if len(down) == rows and len(across) == columns else f"{len(down)} x {len(across)}"
    drawing.labelled(
        pictures.position_page(similarity),
        path,
        title=f"Similarity of position embeddings\na tile for {some} of {rows} x {columns} positions",
        rows=[str(i) for i in down],
        columns=[str(i) for i in across],
        axes=("row", "column"),
        scale=(float(similarity.min()), 1.0, "cosine similarity"),
    )


def draw_distances(seen: Inspection, path: Path) -> None:
    """Pixels are compared across models: where there are more than one, each panel says of which image size."""
    panels = {}
    for name, distances in seen.distances.items():
        c = seen.compared[name]
        title = name if len(seen.distances) == 1 else f"{name}\n{c.image_size[0]} x {c.image_size[1]} pixels"
        panels[title] = distances, layer_names(c)
    drawing.attention_distances(panels, path)


def draw_heads(subject: Subject, layers: Sequence[str], path: Path) -> None:
    assert subject.maps is not None
    drawing.labelled(
        pictures.map_page(subject.maps),
        path,
        title=f"{subject.name}\nwhat the output looks at",
        rows=[f"layer {layer}" for layer in layers],
        columns=[str(head + 1) for head in range(subject.maps.shape[1])],
        axes=("", "head"),
        scale=(0.0, 1.0, "part of the tile's greatest weight"),
    )


def views_of(subject: Subject, config: Config) -> dict[str, np.ndarray]:
    """The image and what was found on it, by caption; uint8 (H, W, 3) each."""
    views = {"what the model sees": subject.picture}
    if isinstance(config, ViTConfig):
        rows, columns = config.grid
        views[f"{rows} x {columns} patches"] = pictures.gridded(subject.picture, config.stride)
    if subject.rollout is not None:
        views["attention rollout"] = pictures.lit(subject.picture, subject.rollout)
    falls = "probability falls" if subject.top else "features turn"
    most = f"occlusion: {falls} by up to {max(0.0, subject.occlusion.max()):.2g}"
    return views | {most: pictures.heated(subject.picture, subject.occlusion, cell_size(config))}


def heading(subject: Subject) -> str:
    said = ", ".join(f"{readable(name)} {p:.1%}" for name, p in subject.top)
    true = "" if subject.true is None else f"true: {readable(subject.true)}"
    return "\n".join(filter(None, (subject.name, true, said)))
