"""A model and some images -> everything that the figures show, as arrays.

    model ──► filters, position similarity ──┐
    images ──► attention distance of all ────┼──► Inspection ──► figures.py (PNG), report.py (HTML)
           └─► maps, rollout, occlusion, patch features of a few ┘

If a kind of model lacks something, the field is None, and `notes` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from vitrail.checkpoints.formats import as_model
from vitrail.data.sources import Source
from vitrail.errors import ConfigError
from vitrail.inference.engine import ModelLike, evaluation_pipeline
from vitrail.inference.images import ImageLike, Images, each_image, pixels
from vitrail.inference.predict import Prediction, predict
from vitrail.inspection.attention import (
    NOT_FOR_RESNETS,
    attention_distances,
    attention_maps,
    layer_names,
    rollout,
)
from vitrail.inspection.embeddings import Filters, filters, position_similarity
from vitrail.inspection.occlusion import occlusion
from vitrail.inspection.patches import Patches, patch_features
from vitrail.models.names import Config, Model
from vitrail.models.vit import ViT, ViTConfig
from vitrail.runtime.progress import progress

# Groups of figures: filters and positions; attention distance; maps, rollout and occlusion of images; principal
# components of patches, and which are alike; patches of the first two images that correspond.
Group = Literal["weights", "attention", "images", "pca", "correspondence"]
GROUPS: tuple[Group, ...] = get_args(Group)
USUAL: tuple[Group, ...] = ("weights", "attention", "images", "pca")


@dataclass(frozen=True)
class Subject:
    """One image, inspected in detail."""

    name: str
    picture: np.ndarray  # uint8 (H, W, 3): the model's input, before its values are scaled
    top: Prediction  # the five most probable classes; none without a classifier
    occlusion: np.ndarray  # (cells down, cells across)
    maps: np.ndarray | None  # (L, h, rows, columns)
    rollout: np.ndarray | None  # (rows, columns)
    true: str | None = None  # its class, where that is known


@dataclass(frozen=True)
class Inspection:
    """The results of inspecting a model."""

    name: str
    config: Config
    preprocess: str
    filters: Filters | None
    positions: np.ndarray | None  # (rows, columns, rows, columns)
    layers: list[str]  # names of the L layers of attention; none for a ResNet
    distances: dict[str, np.ndarray]  # model: (n, L, h) pixels; this one first, then those beside it
    compared: dict[str, ViTConfig]  # the configs of the same models
    subjects: list[Subject]
    figures: tuple[Group, ...] = USUAL  # the groups to draw
    patches: Patches | None = None  # of the same images as the subjects
    metrics: dict[str, object] = field(default_factory=dict)  # measured scores, from the model's file
    notes: list[str] = field(default_factory=list)  # what is missing, and why


def inspect(
    model: ModelLike,
    images: Images = (),
    *,
    names: Sequence[str] | None = None,
    truths: Sequence[str] | None = None,
    name: str | None = None,
    beside: Mapping[str, Model] | None = None,
    closely: int = 8,
    figures: Sequence[Group] = USUAL,
) -> Inspection:
    """Look inside a model. Without images, at its weights only.

    `images`: as for predict, or a data source. `names`, `truths`: of the images, and their classes where they are
    known; a source has its own. `name`: of the model. `beside`: other models, by name, to compare attention distances
    with. `closely`: how many of the images, the first ones, get maps, rollout, occlusion and colours of patches.
    `figures`: groups of figures, of GROUPS.
    """
    if unknown := [group for group in figures if group not in GROUPS]:
        raise ConfigError(f"figures {', '.join(unknown)}: not among {', '.join(GROUPS)}")
    if name is None:
        name = Path(model).name if isinstance(model, str | Path) else "model"
    if name in (beside or {}):
        raise ConfigError(f"the model and one in `beside` are both called {name!r}: use different names")
    model = as_model(model)
    named = gather_images(images, names, truths)
    near, pictures = named[:closely], [image for image, _, _ in named]
    models: dict[str, Model] = {name: model, **(beside or {})}
    notes, positions, subjects, patches = [], None, [], None
    if "weights" in figures:
        try:
            positions = position_similarity(model)
        except ConfigError as error:
            notes.append(str(error))
    measured = {label: one for label, one in models.items() if isinstance(one, ViT)}
    measured = measured if pictures and "attention" in figures else {}
    distances = {
        label: attention_distances(one, pictures, task=f"attention of {label}")
        for label, one in measured.items()
    }
    if "images" in figures:
        subjects = [look(model, *one) for one in progress(near, len(near), "images, closely")]
    if near and isinstance(model, ViT) and {"pca", "correspondence"} & set(figures):
        patches = look_at_patches(model, near)
    return Inspection(
        name=name,
        config=model.config,
        preprocess=model.preprocess,
        filters=filters(model) if "weights" in figures else None,
        positions=positions,
        layers=layer_names(model.config) if isinstance(model, ViT) else [],
        distances=distances,
        compared={label: one.config for label, one in measured.items()},
        subjects=subjects,
        figures=tuple(figures),
        patches=patches,
        metrics=dict(model.metrics),
        notes=notes + note_missing(name, models, len(named), len(near), figures),
    )


def gather_images(
    images: Images, names: Sequence[str] | None, truths: Sequence[str] | None
) -> list[tuple[ImageLike, str, str | None]]:
    """Return each image with its name and, where that is known, its class."""
    if isinstance(images, Source):
        names = names or [images.key(i) for i in range(len(images))]
        truths = truths or [images.class_names[label] for label in images.labels]
        images = [images.read(i).image for i in range(len(images))]
    images = list(each_image(images))
    if names is None:
        names = [
            Path(image).name if isinstance(image, str | Path) else f"image {number}"
            for number, image in enumerate(images, 1)
        ]
    return list(zip(images, names, [None] * len(images) if truths is None else truths, strict=True))


def note_missing(
    name: str, models: Mapping[str, Model], images: int, near: int, figures: Sequence[Group]
) -> list[str]:
    """Return which figures are missing, and why; `name`: of the model among those that are compared."""
    resnets = [label for label, one in models.items() if not isinstance(one, ViT)]
    notes = [f"{label}: {NOT_FOR_RESNETS}" for label in resnets if label != name]
    if near and name in resnets and "pca" in figures and "weights" not in figures:
        notes.append(NOT_FOR_RESNETS)
    if "correspondence" in figures and near < 2:
        notes.append("correspondence needs two images")
    if not images:
        notes.append("attention, rollout, occlusion and patches need images, and none were passed")
    return notes


def look_at_patches(model: ViT, near: Sequence[tuple[ImageLike, str, str | None]]) -> Patches:
    images, names, _ = zip(*near, strict=True)
    pictures = np.stack([model_input(model, image) for image in images])
    return Patches(list(names), pictures, patch_features(model, list(images)))


def look(model: Model, image: ImageLike, name: str, true: str | None = None) -> Subject:
    with_attention = isinstance(model, ViT)
    return Subject(
        name=name,
        picture=model_input(model, image),
        top=predict(model, [image])[0] if model.config.classes else Prediction(),
        occlusion=occlusion(model, image),
        maps=attention_maps(model, [image])[0] if with_attention else None,
        rollout=rollout(model, [image])[0] if with_attention else None,
        true=true,
    )


def model_input(model: Model, image: ImageLike) -> np.ndarray:
    """Return the image as the model gets it, except for the range of its values: uint8 (H, W, 3)."""
    x = replace(evaluation_pipeline(model), value_op=None)(pixels(image))  # (3, H, W), 0 to 255
    return x.permute(1, 2, 0).round().clamp(0, 255).byte().numpy()  # (H, W, 3)
