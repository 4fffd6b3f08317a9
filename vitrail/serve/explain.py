"""Explanations of one answer as JSON: attention by layer and head, rollout, occlusion, nearest training images.

They cost many forward passes, so one thread computes them, one after the other, beside the predictors; a few may
wait. Numbers are rounded to four digits. L layers, h heads.
"""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from vitrail.curate.index import Index
from vitrail.curate.search_images import nearest_images, stored_picture
from vitrail.data.decode import decode
from vitrail.data.readers.class_names import readable
from vitrail.errors import ConfigError
from vitrail.inference.exported import Exported, Runnable
from vitrail.inspection.attention import attention_maps, layer_names, rollout
from vitrail.inspection.inspect import model_input
from vitrail.inspection.occlusion import cell_size, occlusion
from vitrail.models.vit import ViT
from vitrail.serve.computation import EXPLAINING
from vitrail.serve.predictor import Overloaded

METHODS = ("rollout", "attention", "occlusion", "neighbours")
MOST_WAITING = 8
SECONDS = 2  # after which a refused explanation may be asked for again, for each that waits
NEAREST = 6  # images of an index
LARGEST = 1_000_000  # numbers of the attention of one image; more is refused


class Explainer:
    """One thread that explains, with a bounded queue."""

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        self.most_waiting, self.waiting = most_waiting, 0
        self.lock = threading.Lock()
        self.pool = ThreadPoolExecutor(1, "vitrail explain")

    def submit(
        self, model: Runnable, image: bytes, methods: Sequence[str], index: Index | None = None
    ) -> Future[dict[str, Any]]:
        """Queue one image; raise Overloaded if too many wait."""
        with self.lock:
            if self.waiting >= self.most_waiting:
                raise Overloaded(
                    f"{self.waiting} explanations wait already, and at most {self.most_waiting} may: try again "
                    "later",
                    SECONDS * self.waiting,
                )
            self.waiting += 1
        future = self.pool.submit(explain, model, image, methods, index)
        future.add_done_callback(self.done)
        return future

    def done(self, future: Future[dict[str, Any]]) -> None:
        with self.lock:
            self.waiting -= 1

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


def methods_of(model: Runnable, index: Index | None) -> list[str]:
    """Return the explanations that exist for a model, and for its training images."""
    exists = {
        "rollout": isinstance(model, ViT),
        "attention": isinstance(model, ViT),
        "occlusion": not isinstance(model, Exported),
        "neighbours": index is not None,
    }
    return [name for name in METHODS if exists[name]]


def check_methods(words: Sequence[str], model: Runnable, index: Index | None) -> list[str]:
    known = methods_of(model, index)
    if not known:
        raise ConfigError("this is an exported file, which gives answers and features, and no explanations")
    if wrong := [word for word in words if word not in known]:
        raise ConfigError(f"explanation {wrong[0]!r}: this model has {', '.join(known)}")
    return list(words) or known


def explain(
    model: Runnable, image: bytes, methods: Sequence[str], index: Index | None = None
) -> dict[str, Any]:
    """Return the picture that the model gets, and each map over it; see docs/serving.md."""
    pixels = decode(image, name="the image")
    config = model.config
    result: dict[str, Any] = {"image_size": list(config.image_size)}
    if not isinstance(model, Exported):
        result["picture"] = picture_uri(model_input(model, pixels))
    with EXPLAINING:
        if isinstance(model, ViT):
            result["grid"] = list(model.config.grid)
            if "rollout" in methods:
                result["rollout"] = numbers(rollout(model, [pixels])[0])
            if "attention" in methods:
                layers, heads = layer_names(model.config), model.config.heads
                rows, columns = model.config.grid
                if len(layers) * heads * rows * columns > LARGEST:
                    raise ConfigError(f"the attention of this model has more than {LARGEST:,} numbers")
                maps = attention_maps(model, [pixels])[0]  # (L, h, rows, columns)
                result["attention"] = {"layers": layers, "heads": heads, "maps": numbers(maps)}
        if "occlusion" in methods:
            assert not isinstance(model, Exported)
            falls = occlusion(model, pixels)
            result["occlusion"] = {"cell": cell_size(model.config), "falls": numbers(falls)}
        if "neighbours" in methods:
            assert index is not None
            result["neighbours"] = neighbours(index, model, pixels)
    return result


def neighbours(index: Index, model: Runnable, pixels: np.ndarray) -> list[dict[str, Any]]:
    """Return the images of an index that are nearest, with the pictures that it keeps of them."""
    (nearest,), _ = nearest_images(index, model, [pixels], NEAREST)
    results: list[dict[str, Any]] = []
    for one in nearest:
        picture = stored_picture(index, one.row)  # made anew: the index may be a stranger's
        results.append(
            {
                "key": one.key,
                "name": one.label_name,
                "label": None if one.label_name is None else readable(one.label_name),
                "similarity": round(one.similarity, 4),
                "picture": None if picture is None else picture_uri(np.asarray(picture)),
            }
        )
    return results


def numbers(values: np.ndarray) -> Any:
    """Return an array as nested lists, each number with four digits."""
    if values.ndim > 1:
        return [numbers(part) for part in values]
    return [float(f"{value:.4g}") for value in values.tolist()]


def picture_uri(picture: np.ndarray) -> str:
    """Return pixels (H, W, 3) as a data URI of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
