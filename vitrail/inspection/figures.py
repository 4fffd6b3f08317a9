"""An inspection, a run, an evaluation -> figures as PNG files in a folder, by name.

Inspection ──► filters.png  positions.png  attention_distance.png  image-01.png  image-01-heads.png ...
a run      ──► loss.png
evaluation ──► confusion.png  right.png  wrong.png
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitrail.checkpoints.run import metrics
from vitrail.data.readers.class_names import readable
from vitrail.data.sources import Source
from vitrail.evaluators.accuracy import Evaluation
from vitrail.evaluators.score import Gallery, format_accuracy
from vitrail.inference.images import decode_example
from vitrail.inspection import drawing, pictures
from vitrail.inspection.inspect import Inspection, Subject
from vitrail.inspection.occlusion import cell_size
from vitrail.inspection.record import layer_names
from vitrail.models.names import Config
from vitrail.models.vit import ViTConfig

EXAMPLES = 12  # right answers and mistakes, each
PAIRS = 30  # of confused classes beside a large matrix
SIDE = 160  # pixels of an example
HOT = 0.5  # fall of the probability that has the brightest colour of occlusion, whatever the image

Figures = dict[str, Path]


def draw_inspection(inspection: Inspection, folder: Path) -> Figures:
    """Draw all figures of an inspection; return their files by name."""
    figures = {"filters": folder / "filters.png"}
    filters = inspection.filters
    n, share = len(filters.components), filters.variance.sum()
    title = f"{n} principal components of {filters.layer}: {share:.0%} of its variance"
    drawing.labelled(pictures.filter_page(filters.components), figures["filters"], title=title)
    if inspection.positions is not None:
        figures["positions"] = folder / "positions.png"
        draw_positions(inspection.positions, figures["positions"])
    if inspection.distances:
        figures["attention_distance"] = folder / "attention_distance.png"
        draw_distances(inspection, figures["attention_distance"])
    for number, subject in enumerate(inspection.subjects, 1):
        name = f"image-{number:02}"
        figures[name] = folder / f"{name}.png"
        views = draw_views(subject, inspection.config)
        drawing.captioned(list(views.values()), list(views), figures[name], title=heading(subject))
        if subject.maps is not None:
            figures[f"{name}-heads"] = folder / f"{name}-heads.png"
            draw_heads(subject, inspection.layers, figures[f"{name}-heads"])
    return figures


def draw_gallery(gallery: Gallery, folder: Path) -> None:
    """Draw the pictures of an evaluator; the captions say what each row shows."""
    masked, predicted, truth = gallery.rows.values()
    drawing.masked_patches(masked, predicted, truth, folder / f"{gallery.name}.png")


def draw_run(run: Path, path: Path | None = None, title: str = "") -> Figures:
    """Draw the loss curve of a run folder from its metrics.jsonl, into its figures/loss.png; nothing without rows."""
    rows = metrics.read_rows(run / "metrics.jsonl")
    if not rows:
        return {}
    path = run / "figures" / "loss.png" if path is None else path
    drawing.loss_curve(rows, path, title=title or run.name)
    return {"training": path}


def draw_evaluation(evaluation: Evaluation, source: Source, folder: Path) -> Figures:
    """Draw the confusion matrix, where data and model have the same classes, and the most confident answers."""
    figures: Figures = {}
    names = evaluation.class_names
    if names == evaluation.model_class_names and len(names) <= drawing.MOST_CLASSES:
        figures["confusion"] = folder / "confusion.png"
        pairs = [
            (readable(true), readable(predicted), n, total)
            for true, predicted, n, total in evaluation.confused_pairs(PAIRS)
        ]
        drawing.confusion_matrix(
            evaluation.confusion, [*map(readable, names)], figures["confusion"], pairs=pairs
        )
    p = evaluation.predictions
    right = np.flatnonzero(p.right)
    right = right[np.argsort(-p.confidence[right], kind="stable")]
    titles = {"right": "Most confident right answers", "wrong": "Most confident mistakes"}
    for name, chosen in (("right", right[:EXAMPLES]), ("wrong", p.mistakes()[:EXAMPLES])):
        if len(chosen):
            figures[name] = folder / f"{name}.png"
            images = [pictures.thumbnail(decode_example(source, int(i)), SIDE) for i in p.index[chosen]]
            captions = [caption(evaluation, source, int(k)) for k in chosen]
            drawing.captioned(images, captions, figures[name], title=titles[name])
    return figures


def caption(evaluation: Evaluation, source: Source, k: int) -> str:
    """Return which image it is, and what was answered; below a mistake its true class."""
    p = evaluation.predictions
    answer = readable(evaluation.model_class_names[p.predicted[k]])
    lines = [
        drawing.shorten(source.key(int(p.index[k])), drawing.LINE),
        f"{format_accuracy(float(p.confidence[k]))} {answer}",
    ]
    if not p.right[k]:
        lines.append(f"true: {readable(evaluation.class_names[p.label[k]])}")
    return "\n".join(lines)


def draw_positions(similarity: np.ndarray, path: Path) -> None:
    rows, columns = similarity.shape[:2]
    down, across = (pictures.evenly(n, pictures.MOST_TILES) + 1 for n in (rows, columns))
    drawing.labelled(
        pictures.position_page(similarity),
        path,
        title=f"Similarity of position embeddings\na tile for {count_tiles(rows, columns)} positions",
        rows=[str(i) for i in down],
        columns=[str(i) for i in across],
        axes=("row", "column"),
        scale=(float(similarity.min()), 1.0, "cosine similarity"),
    )


def count_tiles(rows: int, columns: int) -> str:
    """Return which of the positions have a tile: all of a small grid, some of a large one."""
    most = pictures.MOST_TILES
    tiles = "each" if max(rows, columns) <= most else f"{min(rows, most)} x {min(columns, most)}"
    return f"{tiles} of {rows} x {columns}"


def draw_distances(inspection: Inspection, path: Path) -> None:
    """Draw a panel for each model; where there are more than one, each names its image size: pixels are compared."""
    panels = {}
    for name, distances in inspection.distances.items():
        c = inspection.compared[name]
        size = f"\n{c.image_size[0]} x {c.image_size[1]} pixels" if len(inspection.distances) > 1 else ""
        panels[f"{name}{size}"] = distances, layer_names(c)
    drawing.attention_distances(panels, path)


def draw_heads(subject: Subject, layers: Sequence[str], path: Path) -> None:
    assert subject.maps is not None
    heads, rows, columns = subject.maps.shape[1:]
    drawing.labelled(
        pictures.map_page(subject.maps),
        path,
        title=f"{subject.name}\nattention of the output to {rows} x {columns} patches",
        rows=[f"layer {layer}" for layer in layers],
        columns=[str(head + 1) for head in range(heads)],
        axes=("", "head"),
        scale=(0.0, 1.0, "share of the tile's greatest weight"),
    )


def draw_views(subject: Subject, config: Config) -> dict[str, np.ndarray]:
    """Return the image and what was computed of it as pictures, uint8 (H, W, 3), by caption."""
    H, W = config.image_size
    views = {f"input of the model\n{H} x {W} pixels": subject.picture}
    if isinstance(config, ViTConfig):
        rows, columns = config.grid
        caption = f"{rows} x {columns} patches\nof {config.stride} x {config.stride} pixels"
        views[caption] = pictures.gridded(subject.picture, config.stride)
    if subject.rollout is not None:
        views["attention rollout:\nbright patches count most"] = pictures.lit(
            subject.picture, subject.rollout
        )
    size = cell_size(config)
    change = "probability falls" if subject.top else "features turn"
    most = max(0.0, float(subject.occlusion.max()))
    by = "< 0.01" if most < 0.01 else f"up to {most:.2f}"
    caption = f"occlusion of {size} x {size} pixels:\n{change} by {by}\n(yellow: {HOT} or more)"
    return views | {caption: pictures.heated(subject.picture, subject.occlusion, size, HOT)}


def heading(subject: Subject) -> str:
    top = ", ".join(f"{readable(name)} {format_accuracy(p)}" for name, p in subject.top)
    true = "" if subject.true is None else f"true: {readable(subject.true)}"
    return "\n".join(filter(None, (subject.name, true, top)))
