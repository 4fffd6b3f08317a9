"""Outputs and models -> the JSON of the answers. K classes."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.checkpoints.license import complete_license
from vitrail.checkpoints.run.records import replace_nonfinite
from vitrail.data.readers.class_names import readable
from vitrail.inference.exported import Exported
from vitrail.models.calibration import Calibration
from vitrail.models.cost import cost
from vitrail.models.vit import ViT
from vitrail.serve.explain import methods_of
from vitrail.serve.served import Served


def prediction(
    logits: np.ndarray | None, names: list[str], calibration: Calibration, top: int, whole: bool
) -> dict[str, Any]:
    """Return the `top` classes of logits (K,), the most probable first, and the answer: those that the model is sure
    of; with `whole`, all probabilities too."""
    assert logits is not None
    y = torch.from_numpy(np.asarray(logits, np.float32))[None]  # (1, K)
    p, sure = (t[0].numpy() for t in calibration.decide(y))  # (K,) each
    ranked = np.argsort(-logits, kind="stable").tolist()
    best = [c for n, c in enumerate(ranked) if n < top or sure[c]]
    result: dict[str, Any] = {
        "top": [
            {
                "class": int(c),
                "name": names[c],
                "label": readable(names[c]),
                "probability": round(float(p[c]), 6),
            }
            for c in best
        ],
        "answer": [names[c] for c in best if sure[c]],
    }
    if whole:
        result["probabilities"] = [float(f"{value:.6g}") for value in p.tolist()]
    return result


def describe_model(served: Served, refused: dict[str, str]) -> dict[str, Any]:
    """Return the entry of a model in the list of models."""
    model = served.model
    config = model.config
    architecture: dict[str, Any] = {"image_size": list(config.image_size)}
    if isinstance(model, Exported):
        architecture |= {"parameters": None, "family": "exported"}
    elif isinstance(model, ViT):
        c = model.config
        architecture |= {"parameters": cost(c).parameters, "family": "vit"}
        architecture |= {"width": c.width, "depth": c.depth, "heads": c.heads}
        architecture |= {"patch_size": c.stride, "grid": list(c.grid)}
    else:
        architecture |= {"parameters": cost(model.config).parameters, "family": "resnet"}
    return {
        "name": served.name,
        "kind": served.kind,
        "source": Path(served.source).name,
        "base": served.base or None,
        "classes": len(served.class_names),
        "architecture": architecture,
        "preprocess": model.preprocess,
        "temperature": model.calibration.temperature,
        "multi_label": model.calibration.multi_label,
        "explain": methods_of(model, served.index),
        "metrics": replace_nonfinite(model.metrics),
        "license": complete_license(model.license),
        "opened": datetime.fromtimestamp(served.opened, UTC).isoformat(timespec="seconds"),
        "refused": refused.get(served.name),
    }
