"""A model and some images -> everything that the figures show, as arrays.

    model ──► filters, position similarity ──┐
    images ──► attention distance of all ────┼──► Inspection ──► figures.py (PNG), report.py (HTML)
           └─► maps, rollout, occlusion of a few ┘

What a kind of model does not have is None, and `notes` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from vitrail.errors import ConfigError
from vitrail.inference.engine import BATCH_SIZE, evaluation_pipeline
from vitrail.inference.images import ImageLike, pixels
from vitrail.inference.predict import Prediction, predict
from vitrail.inspection.attention import attention_distances, attention_maps, rollout
from vitrail.inspection.embeddings import Filters, filters, position_similarity
from vitrail.inspection.occlusion import occlusion
from vitrail.inspection.record import NOT_FOR_RESNETS, layer_names
from vitrail.models.names import Config, Model
from vitrail.models.vit import ViT, ViTConfig
from vitrail.runtime.progress import progress


@dataclass(frozen=True)
class Subject:
    """One image, looked at closely."""

    name: str
    picture: np.ndarray  # uint8 (H, W, 3): what the model sees, before its values are scaled
    top: Prediction  # the five most probable classes; none without a classifier
    occlusion: np.ndarray  # (cells down, cells across)
    maps: np.ndarray | None  # (L, h, rows, columns)
    rollout: np.ndarray | None  # (rows, columns)
    true: str | None = None  # its class, where that is known


@dataclass(frozen=True)
class Inspection:
    """All that there is to see of a model."""

    name: str
    config: Config
    preprocess: str
    filters: Filters
    positions: np.ndarray | None  # (rows, columns, rows, columns)
    layers: list[str]  # names of the L layers of attention; none for a ResNet
    distances: dict[str, np.ndarray]  # model: (n, L, h) pixels; this one first, then those beside it
    compared: dict[str, ViTConfig]  # the same models: what they are
    subjects: list[Subject]
    metrics: dict[str, object] = field(default_factory=dict)  # what the model's file says was measured of it
    notes: list[str] = field(default_factory=list)  # what is not there, and why


def inspect(
    model: Model,
    images: Sequence[ImageLike] = (),
    *,
    names: Sequence[str] | None = None,
    truths: Sequence[str] | None = None,
    name: str = "model",
    beside: Mapping[str, Model] | None = None,
    closely: int = 8,
) -> Inspection:
    """Look at a model. Without images, at its weights only.

    `names`: of the images; `truths`: their classes, where they are known. `beside`: other models, by name, whose
    attention distances are to be compared. `closely`: how many of the images, the first ones, get maps, rollout and
    occlusion.
    """
    if name in (beside or {}):
        raise ConfigError(f"the model and one beside it are both called {name!r}: give them different names")
    names = [name_of(image, i) for i, image in enumerate(images)] if names is None else names
    known = [None] * len(images) if truths is None else truths
    assert len(names) == len(images) == len(known)
    positions, notes = positions_or_why(model)
    layers = layer_names(model.config) if isinstance(model, ViT) else []
    distances, compared = {}, {}
    for label, one in {name: model, **(beside or {})}.items():
        if isinstance(one, ViT) and len(images):
            distances[label], compared[label] = all_distances(one, images, label), one.config
        elif not isinstance(one, ViT) and one is not model:
            notes.append(f"{label}: {NOT_FOR_RESNETS}")
    near = list(zip(images, names, known, strict=True))[:closely]
    subjects = [look(model, *one) for one in progress(near, len(near), "images, closely")]
    if not len(images):
        notes.append("no images were given: attention, rollout and occlusion are of images")
    return Inspection(
        name,
        model.config,
        model.preprocess,
        filters(model),
        positions,
        layers,
        distances,
        compared,
        subjects,
        dict(model.metrics),
        notes,
    )


def positions_or_why(model: Model) -> tuple[np.ndarray | None, list[str]]:
    try:
        return position_similarity(model), []
    except ConfigError as error:
        return None, [str(error)]


def all_distances(model: Model, images: Sequence[ImageLike], label: str) -> np.ndarray:
    """attention_distances with a bar that shows how far it is."""
    groups = [images[start : start + BATCH_SIZE] for start in range(0, len(images), BATCH_SIZE)]
    what = f"attention of {label}"
    return np.concatenate([attention_distances(model, part) for part in progress(groups, len(groups), what)])


def look(model: Model, image: ImageLike, name: str, true: str | None = None) -> Subject:
    with_attention = isinstance(model, ViT)
    return Subject(
        name,
        picture_of(model, image),
        predict(model, [image])[0] if model.config.classes else [],
        occlusion(model, image),
        attention_maps(model, [image])[0] if with_attention else None,
        rollout(model, [image])[0] if with_attention else None,
        true,
    )


def picture_of(model: Model, image: ImageLike) -> np.ndarray:
    """What the model sees, uint8 (H, W, 3)."""
    seen = replace(evaluation_pipeline(model), value_op=None)(pixels(image))  # (3, H, W), 0 to 255
    return seen.permute(1, 2, 0).round().clamp(0, 255).byte().numpy()  # (H, W, 3)


def name_of(image: ImageLike, number: int) -> str:
    return Path(image).name if isinstance(image, str | Path) else f"image {number + 1}"
