"""Images -> those of an index that are nearest, as text and as a picture.

model, images ──► features of those that can be read ──► Index.search ──► Neighbours ──► draw_matches: PNG
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitrail.checkpoints.included import INCLUDED
from vitrail.curate.index import Index, Neighbour
from vitrail.data.contact_sheet import draw_sheet
from vitrail.data.decode import decode
from vitrail.data.readers.class_names import readable
from vitrail.errors import ConfigError, ImageError
from vitrail.inference.engine import image_loaders, outputs
from vitrail.inference.exported import Runnable
from vitrail.inference.features import representation
from vitrail.inference.images import ImageLike, pixels


def model_of(index: Index, named: str | None) -> str:
    """Return the model to search with: the one that is named, else that of the index if it is an included one.

    A path or a name on the hub that stands in an index is not opened: the index may come from a stranger.
    """
    if named is not None:
        return named
    name = index.card["model"]
    if name not in INCLUDED:
        raise ConfigError(f"{index.folder} was made with the model {name!r}: pass its path with --model")
    return name


def search_images(
    index: Index, model: Runnable, images: Sequence[ImageLike], top: int = 10
) -> tuple[list[list[Neighbour]], dict[int, str]]:
    """Return the neighbours of each image, none for one that cannot be read, and {its place: the reason}."""
    index.check_model(model)
    return nearest_images(index, model, images, top, task="search")


def nearest_images(
    index: Index, model: Runnable, images: Sequence[ImageLike], top: int, task: str = ""
) -> tuple[list[list[Neighbour]], dict[int, str]]:
    """Return the same for a model that is known to be the index's. `task` names a progress bar."""
    call, rows, places = representation(model, index.card["which"]), [], []
    errors: dict[int, str] = {}
    if not images:
        return [], {}
    for loader in image_loaders(model, images, batch_size=32):
        for y, batch in outputs(model, loader, call, task=task):
            rows.append(y.to(torch.float16).cpu().numpy())  # (b, D), rounded as in the index
            places += batch["index"].tolist()
        source = loader.stream.source
        errors = {
            i: loader.bad_files.examples[source.key(i)].reason for i in set(range(len(images))) - {*places}
        }
    matches: list[list[Neighbour]] = [[] for _ in images]
    if places:
        for place, found in zip(places, index.search(np.concatenate(rows), top), strict=True):
            matches[place] = found
    return matches, errors


def draw_matches(
    index: Index,
    images: Sequence[ImageLike],
    names: Sequence[str],
    matches: Sequence[list[Neighbour]],
    path: Path,
) -> None:
    """Draw each image, then those found: with their similarity and class."""
    cells: list[tuple[str, list[Image.Image | None]]] = []
    columns = 1 + max(map(len, matches))
    for image, name, found in zip(images, names, matches, strict=True):
        cells.append((name, [Image.fromarray(pixels(image))]))
        for one in found:
            label = one.key if one.label_name is None else readable(one.label_name)
            cells.append((f"{one.similarity:.2f} {label}", [stored_picture(index, one.row)]))
        cells += [("", [])] * (columns - 1 - len(found))
    draw_sheet(f"Nearest in {index.folder.name}", cells, 1, path, columns)


def stored_picture(index: Index, row: int) -> Image.Image | None:
    """Return the picture of an image that an index keeps; None where there is none, or it is damaged."""
    data = index.thumbnail(row)
    if not data:
        return None
    try:
        return Image.fromarray(decode(data, max_pixels=1 << 20))
    except ImageError:
        return None
