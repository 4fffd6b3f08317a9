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
    from vitrail.checkpoints.formats import create, list_models, load, save
    from vitrail.evaluators.accuracy import evaluate
    from vitrail.evaluators.probes import fewshot, knn, linear
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
    "features",
    "fewshot",
    "finetune",
    "inspect",
    "knn",
    "linear",
    "list_models",
    "load",
    "predict",
    "pretrain",
    "save",
    "transform",
]

# name: the module that has it
PUBLIC = {
    "create": "vitrail.checkpoints.formats",
    "list_models": "vitrail.checkpoints.formats",
    "load": "vitrail.checkpoints.formats",
    "save": "vitrail.checkpoints.formats",
    "evaluate": "vitrail.evaluators.accuracy",
    "features": "vitrail.inference.features",
    "fewshot": "vitrail.evaluators.probes",
    "knn": "vitrail.evaluators.probes",
    "linear": "vitrail.evaluators.probes",
    "finetune": "vitrail.api",
    "pretrain": "vitrail.api",
    "inspect": "vitrail.inspection.inspect",
    "predict": "vitrail.inference.predict",
    "transform": "vitrail.inference.engine",
}


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'vitrail' has no attribute {name!r}")
    return getattr(importlib.import_module(PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
