"""Zero-shot classification: classes are texts, which the text tower of the model has embedded beforehand.

    logits = scale cos(f, t_k) + bias       f: features of an image, t_k: embedding of class k

Text towers are no part of this package: a file has what they give, for CLIP (arXiv:2103.00020; probabilities by a
softmax over the classes) and SigLIP (arXiv:2303.15343; it has a bias, and a sigmoid for each class).

    .safetensors    embeddings (K, E), scale, bias: tensors; class_names: a JSON list in the metadata
    .npz            the same and class_names as arrays; never pickled

`scale` is the factor itself: checkpoints store its logarithm. f is the output of the model where that has E numbers,
such as CLIP's projection, which is read as a classifier; else the input of the classifier. K classes, B images.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vitrail.checkpoints.npz import read_npz
from vitrail.checkpoints.torch_files import read_safetensors
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.inference.exported import Exported, Runnable
from vitrail.models.calibration import Calibration
from vitrail.models.names import Model
from vitrail.models.vit import Head

NAMES = {"embeddings", "scale", "bias", "class_names"}


@dataclass(frozen=True)
class Texts:
    """Classes and the embeddings of their texts."""

    class_names: list[str]  # K
    embeddings: Tensor  # float32 (K, E)
    scale: float
    bias: float | None = None  # None: CLIP; a number: SigLIP


def read_texts(path: str | Path) -> Texts:
    """Read a file of text embeddings; raise DataError for what is missing or does not fit."""
    path = Path(path)
    try:
        stored, names = read_numpy(path) if path.suffix == ".npz" else read_tensors(path)
    except CheckpointError as error:
        raise DataError(f"text embeddings: {error}") from error
    if unknown := stored.keys() - NAMES:
        raise DataError(
            f"{path} has {', '.join(sorted(unknown)[:4])}; text embeddings are {', '.join(sorted(NAMES))}"
        )
    if missing := [name for name in ("embeddings", "scale") if name not in stored]:
        raise DataError(f"{path} has no {' and no '.join(missing)}")
    embeddings = stored["embeddings"].float()
    if embeddings.ndim != 2 or not embeddings.numel():
        raise DataError(f"{path}: embeddings are {tuple(embeddings.shape)}, not (classes, numbers of each)")
    names = names if isinstance(names, list) else []
    if len(names) != len(embeddings) or not all(isinstance(name, str) and name for name in names):
        raise DataError(f"{path}: {len(names)} class_names, for {len(embeddings)} embeddings; each needs one")
    numbers = {name: stored[name] for name in ("scale", "bias") if name in stored}
    if wrong := [name for name, t in numbers.items() if t.numel() != 1 or not t.isfinite().all()]:
        raise DataError(f"{path}: {' and '.join(wrong)} must be one finite number")
    scale, bias = float(numbers["scale"]), float(numbers["bias"]) if "bias" in numbers else None
    if scale <= 0:
        raise DataError(f"{path}: scale {scale:g} must be above 0: the factor itself, not its logarithm")
    if not embeddings.isfinite().all() or not embeddings.any(dim=1).all():
        raise DataError(f"{path}: embeddings must be finite, and none of them zero")
    return Texts(names, embeddings, scale, bias)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], object]:
    tensors = read_safetensors(path)
    try:
        with safe_open(path, framework="pt") as file:
            return tensors, json.loads((file.metadata() or {}).get("class_names", "null"))
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: class_names in the metadata are no JSON list ({error})") from error


def read_numpy(path: Path) -> tuple[dict[str, Tensor], object]:
    arrays = read_npz(path)
    names = arrays.pop("class_names", np.array([], "U1"))
    if wrong := [name for name, array in arrays.items() if array.dtype.kind not in "fiu"]:
        raise CheckpointError(f"{path}: {wrong[0]} is no array of numbers")
    tensors = {name: torch.from_numpy(np.array(array, np.float64)) for name, array in arrays.items()}
    return tensors, names.tolist() if names.ndim == 1 and names.dtype.kind == "U" else None


class EachByItself(Calibration):
    """Probabilities of a model with a bias: a sigmoid for each class; the most probable one is still the answer."""

    def probabilities(self, y: Tensor) -> Tensor:
        return y.sigmoid()


class TextHead(nn.Module):
    """y (B, D) -> logits (B, K)."""

    def __init__(self, head: Head, texts: Texts, projected: bool) -> None:
        """`projected`: f are the outputs of the head, else its representation."""
        super().__init__()
        self.head, self.projected = head, projected
        self.scale, self.bias = texts.scale, texts.bias
        self.register_buffer("texts", F.normalize(texts.embeddings, dim=1), persistent=False)  # (K, E)

    def forward(self, y: Tensor) -> Tensor:
        f = self.head(y) if self.projected else self.head.representation(y)
        f = F.normalize(f.float(), dim=1)  # (B, E)
        assert isinstance(self.texts, Tensor)
        return self.scale * f @ self.texts.T + (self.bias or 0.0)  # (B, K)


def with_texts(model: Runnable, texts: str | Path | Texts) -> Model:
    """Return a classifier by texts that shares the weights of a model; it cannot be saved or trained."""
    if isinstance(model, Exported):
        raise ConfigError("an exported file has its own classes: pass the model that it was exported from")
    texts = texts if isinstance(texts, Texts) else read_texts(texts)
    config, E = model.config, texts.embeddings.shape[1]
    width = getattr(config, "pre_logits", 0) or config.width
    if E not in (config.classes, width):
        of_classifier = f"{config.classes} (its outputs) or " if config.classes else ""
        raise ConfigError(
            f"text embeddings of {E} numbers, but the model has features of {of_classifier}{width}"
        )
    classifier = copy.copy(model)
    vars(classifier)["_modules"] = dict(model._modules)  # its own, to have another head
    head = TextHead(model.head, texts, projected=config.classes == E)
    vars(classifier)["_modules"]["head"] = head.to(next(model.parameters()).device)
    classifier.config = replace(config, classes=len(texts.class_names))
    classifier.class_names, classifier.metrics = texts.class_names, {}
    classifier.calibration = Calibration() if texts.bias is None else EachByItself()
    return classifier
