"""vitrail: the Vision Transformer paper as working software.

    model = vitrail.load("ViT-B_16.npz")          anyone's checkpoint
    vitrail.predict(model, "photo.jpg")           [[("tabby", 0.61), ...]]
    vitrail.save(model, "tabby/", to="bundle")

Each name is imported when it is first used, so that `import vitrail` and the command line start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vitrail.errors import CheckpointError, ConfigError, DataError, ImageError, VitrailError

if TYPE_CHECKING:
    from vitrail.api import finetune, pretrain
    from vitrail.checkpoints.formats import create, list_models, load, push, save
    from vitrail.evaluators.accuracy import evaluate
    from vitrail.evaluators.probes import fewshot, knn, linear
    from vitrail.exporting.export import export
    from vitrail.inference.bulk import predict_to
    from vitrail.inference.engine import transform
    from vitrail.inference.features import features
    from vitrail.inference.predict import predict
    from vitrail.inspection.inspect import inspect

__version__ = "0.1.0"
__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "ImageError",
    "VitrailError",
    "create",
    "evaluate",
    "export",
    "features",
    "fewshot",
    "finetune",
    "inspect",
    "knn",
    "linear",
    "list_models",
    "load",
    "predict",
    "predict_to",
    "pretrain",
    "push",
    "save",
    "transform",
]

# module: the names that are taken from it
PUBLIC = {
    "vitrail.api": ("finetune", "pretrain"),
    "vitrail.checkpoints.formats": ("create", "list_models", "load", "push", "save"),
    "vitrail.evaluators.accuracy": ("evaluate",),
    "vitrail.evaluators.probes": ("fewshot", "knn", "linear"),
    "vitrail.exporting.export": ("export",),
    "vitrail.inference.bulk": ("predict_to",),
    "vitrail.inference.engine": ("transform",),
    "vitrail.inference.features": ("features",),
    "vitrail.inference.predict": ("predict",),
    "vitrail.inspection.inspect": ("inspect",),
}


def __getattr__(name: str) -> Any:
    for module, names in PUBLIC.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'vitrail' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
