"""An inspection, a run, an evaluation -> figures as PNG files in a folder, by name.

Inspection ──► filters.png  positions.png  attention_distance.png  pca.png  image-01.png  image-01-heads.png ...
a run      ──► loss.png
gallery    ──► NAME.png
evaluation ──► confusion.png  right.png  wrong.png

A new figure: a row in PERFORMANCE or INSIDE, its heading and caption on the page, and a line that draws it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.checkpoints.run.records import read_rows
from vitrail.data.readers.class_names import readable
from vitrail.data.sources import Source
from vitrail.evaluators.accuracy import Evaluation
from vitrail.evaluators.score import Gallery, format_accuracy
from vitrail.inference.images import ImageLike, decode_example
from vitrail.inference.predict import predict
from vitrail.inspection import drawing, pictures
from vitrail.inspection.attention import layer_names, rollout
from vitrail.inspection.embeddings import Filters, filters
from vitrail.inspection.inspect import Inspection, Subject, model_input
from vitrail.inspection.occlusion import cell_size
from vitrail.inspection.patches import Patches, correspondences, principal_colours
from vitrail.models.names import Config, Model
from vitrail.models.vit import ViT, ViTConfig

EXAMPLES = 12  # right answers and mistakes, each
PAIRS = 30  # of confused classes beside a large matrix
SIDE = 160  # pixels of an example
BAND = 8  # examples of a gallery side by side
MOST_TILES = 16  # positions along a side that have a tile; of more, so many are taken evenly
LINES = 24  # between patches that correspond
HOT = 0.5  # fall of the probability that has the brightest colour of occlusion, whatever the image

# name of a figure: its heading and its caption, in the order of the page
PERFORMANCE = {
    "confusion": ("Confusions", "Rows are true classes, columns are predicted classes."),
    "wrong": ("Mistakes", "The most confident wrong predictions."),
    "right": ("Right answers", "The most confident right predictions."),
    "training": ("Training", "Loss, scores and learning rate over the steps of the run."),
}
INSIDE = {
    "attention_distance": (
        "Attention distance",
        "How far each head looks: distance in pixels from a patch to the patches that it attends to, "
        "mean over images (Fig. 7, right).",
    ),
    "pca": (
        "Patches as colours",
        "The three first principal components of the patch features, jointly over the images, as red, green and "
        "blue: equal colours are equal features. Black: background, by the first component of all patches.",
    ),
    "correspondence": (
        "Correspondence",
        "Patches of two images that are each other's nearest by the cosine of their features, the most alike ones.",
    ),
    "filters": ("Filters", "The principal components of the filters of the first layer (Fig. 7, left)."),
    "positions": (
        "Position embeddings",
        "A tile for each patch position: how similar its embedding is to those of all positions (Fig. 7, centre).",
    ),
}

Figures = dict[str, Path]


def draw_inspection(inspection: Inspection, folder: Path) -> Figures:
    """Draw all figures of an inspection; return their files by name."""
    figures: Figures = {}

    def place(name: str) -> Path:
        figures[name] = folder / f"{name}.png"
        return figures[name]

    if inspection.filters is not None:
        draw_filters(inspection.filters, place("filters"))
    if inspection.positions is not None:
        draw_positions(inspection.positions, place("positions"))
    if inspection.distances:
        panels = {}
        for name, distances in inspection.distances.items():
            c = inspection.compared[name]
            # Pixels of different models are compared: each panel says of what image size.
            size = f"\n{c.image_size[0]} x {c.image_size[1]} pixels" if len(inspection.distances) > 1 else ""
            panels[f"{name}{size}"] = distances, layer_names(c)
        drawing.draw_attention_distances(panels, place("attention_distance"))
    patches = inspection.patches
    if patches is not None and "pca" in inspection.figures:
        draw_components(patches, place("pca"))
    if patches is not None and "correspondence" in inspection.figures and len(patches.names) > 1:
        draw_correspondence(patches, place("correspondence"))
    for number, subject in enumerate(inspection.subjects, 1):
        name = f"image-{number:02}"
        views = draw_views(subject, inspection.config)
        true = [] if subject.true is None else [f"true: {readable(subject.true)}"]
        top = ", ".join(f"{readable(answer)} {format_accuracy(p)}" for answer, p in subject.top)
        title = "\n".join([subject.name, *true, top])
        drawing.captioned(list(views.values()), list(views), place(name), title=title)
        if subject.maps is not None:
            draw_heads(subject.name, subject.maps, inspection.layers, place(f"{name}-heads"))
    return figures


def draw_components(patches: Patches, path: Path) -> None:
    """Draw each image above the principal components of its patches."""
    colours, objects, variance = principal_colours(patches.features)
    H, W = patches.pictures.shape[1:3]
    large = colours.repeat(H // colours.shape[1], axis=1).repeat(
        W // colours.shape[2], axis=2
    )  # (n, H, W, 3)
    draw_gallery(
        Gallery(path.stem, {"image": patches.pictures, "patches": large}),
        path.parent,
        title=(
            f"Principal components of the patch features: {variance.sum():.0%} of the variance of "
            f"{objects.mean():.0%} of the patches"
        ),
    )


def draw_correspondence(patches: Patches, path: Path) -> None:
    """Draw the patches of the first two images that correspond, joined by lines."""
    first, second, cosine = correspondences(*patches.features[:2])
    H = patches.pictures.shape[1] / patches.features.shape[1]  # pixels of a patch
    W = patches.pictures.shape[2] / patches.features.shape[2]
    ends = [(places[:LINES] + 0.5) * (H, W) for places in (first, second)]
    title = f"{len(first)} pairs of nearest patches; the {min(LINES, len(first))} most alike"
    if len(cosine):
        title += f", cosines from {cosine[:LINES][-1]:.2f} to {cosine[0]:.2f}"
    drawing.joined(list(patches.pictures[:2]), ends, path, names=patches.names[:2], title=title)


def draw_gallery(gallery: Gallery, folder: Path, title: str = "") -> None:
    """Draw the pictures of an evaluator: its rows below one another, examples side by side in bands of at most 8."""
    rows = np.stack(list(gallery.rows.values()))  # (rows, n, H, W, 3)
    n = rows.shape[1]
    bands = math.ceil(n / BAND)
    columns = math.ceil(n / bands)  # evenly: no band has more than one empty place
    page = np.full((bands, len(rows), columns, *rows.shape[2:]), pictures.PAPER, np.uint8)
    for i in range(n):
        page[i // columns, :, i % columns] = rows[:, i]
    page = page.reshape(-1, columns, *rows.shape[2:])  # (bands * rows, columns, H, W, 3)
    path = folder / f"{gallery.name}.png"
    drawing.labelled(pictures.tiled(page, SIDE), path, title=title, rows=[*gallery.rows] * bands)


def draw_run(run: Path, path: Path | None = None, title: str = "") -> Figures:
    """Draw the loss curve of a run folder from its metrics.jsonl, into its figures/loss.png; nothing without rows."""
    rows = list(read_rows(run / "metrics.jsonl"))
    if not rows:
        return {}
    path = run / "figures" / "loss.png" if path is None else path
    drawing.loss_curve(rows, path, title=title or run.name)
    return {"training": path}


def draw_evaluation(evaluation: Evaluation, source: Source, folder: Path) -> Figures:
    """Draw the confusion matrix, if data and model have the same classes, and the most confident answers."""
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
            images = [pictures.shrink(decode_example(source, int(i)), SIDE) for i in p.index[chosen]]
            captions = []
            for k in chosen:
                key = drawing.shorten(source.key(int(p.index[k])), drawing.LINE)
                answer = readable(evaluation.model_class_names[p.predicted[k]])
                true = "" if p.right[k] else f"\ntrue: {readable(names[p.label[k]])}"
                captions.append(f"{key}\n{format_accuracy(float(p.confidence[k]))} {answer}{true}")
            drawing.captioned(images, captions, figures[name], title=titles[name])
    return figures


def draw_card(model: Model, images: Sequence[ImageLike], path: Path) -> None:
    """Draw the picture of a model's card: what it answers for a few images and, for a ViT, where it looks.

    Without images: its filters.
    """
    if not images:
        draw_filters(filters(model), path)
        return
    inputs = [model_input(model, image) for image in images]
    shown, captions = [*inputs], [""] * len(images)
    if model.config.classes:
        captions = [f"{readable(name)} {p:.0%}" for ((name, p),) in predict(model, images, 1)]
    if isinstance(model, ViT):
        maps = rollout(model, images)  # (n, rows, columns)
        shown += [pictures.lit(image, weights) for image, weights in zip(inputs, maps, strict=True)]
        captions += [""] * len(images)
    large = [np.asarray(Image.fromarray(one).resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for one in shown]
    drawing.captioned(large, captions, path)


def draw_filters(filters: Filters, path: Path, columns: int = 7) -> None:
    """Draw components (k, P, P, C) as tiles, each from its least to its greatest value; C other than 3: grey."""
    components, k = filters.components, len(filters.components)
    if components.shape[-1] != 3:
        components = components.mean(axis=-1, keepdims=True).repeat(3, axis=-1)  # (k, P, P, 3)
    tiles = pictures.to_bytes(pictures.spread(components, (1, 2, 3)))
    rows = math.ceil(k / columns)
    blank = np.full((rows * columns - k, *tiles.shape[1:]), pictures.PAPER, np.uint8)
    tiles = np.concatenate([tiles, blank]).reshape(rows, columns, *tiles.shape[1:])
    title = f"{k} principal components of {filters.layer}: {filters.variance.sum():.0%} of its variance"
    drawing.labelled(pictures.tiled(tiles, 96), path, title=title)


def draw_positions(similarity: np.ndarray, path: Path) -> None:
    """Draw similarities (rows, columns, rows, columns): a tile for each position, of a large grid for some."""
    rows, columns = similarity.shape[:2]
    down, across = (pictures.evenly(n, MOST_TILES) for n in (rows, columns))
    least = float(similarity.min())
    tiles = similarity[down][:, across]  # (at most 16, at most 16, rows, columns)
    which = "each" if max(rows, columns) <= MOST_TILES else f"{len(down)} x {len(across)}"
    drawing.labelled(
        pictures.tiled(pictures.heat((tiles - least) / max(1 - least, 1e-12)), 56),
        path,
        title=f"Similarity of position embeddings\na tile for {which} of {rows} x {columns} positions",
        rows=[str(i + 1) for i in down],
        columns=[str(i + 1) for i in across],
        axes=("row", "column"),
        scale=(least, 1.0, "cosine similarity"),
    )


def draw_heads(name: str, maps: np.ndarray, layers: Sequence[str], path: Path) -> None:
    """Draw maps (L, h, rows, columns): a row of tiles for each layer, one for each head, each up to its own most."""
    heads, rows, columns = maps.shape[1:]
    shares = maps / np.maximum(maps.max(axis=(2, 3), keepdims=True), 1e-12)
    drawing.labelled(
        pictures.tiled(pictures.heat(shares), 48),
        path,
        title=f"{name}\nattention of the output to {rows} x {columns} patches",
        rows=[f"layer {layer}" for layer in layers],
        columns=[str(head + 1) for head in range(heads)],
        axes=("", "head"),
        scale=(0.0, 1.0, "weight, relative to the largest of the tile"),
    )


def draw_views(subject: Subject, config: Config) -> dict[str, np.ndarray]:
    """Return the image and its maps as pictures, uint8 (H, W, 3), by caption."""
    H, W = config.image_size
    views = {f"input of the model:\n{H} x {W} pixels": subject.picture}
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
