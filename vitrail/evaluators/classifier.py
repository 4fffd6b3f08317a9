"""A probe of frozen features -> a model that predicts: the body as it is, and the probe as its classifier.

Outputs of least squares are between -1 and 1 for the classes, closer together the larger its l2 is. The factor that
makes logits of them is the one with the lowest loss on examples that were held out. D width, K classes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrail.checkpoints.formats import check_new
from vitrail.checkpoints.license import inherit_license
from vitrail.errors import ConfigError
from vitrail.inference.exported import Exported, Runnable
from vitrail.models.calibration import Calibration
from vitrail.models.names import Model

SCALES = np.geomspace(0.5, 64, 22)  # of outputs whose standard deviation within a row is 1
UNMEASURED = 4.0  # scale, where nothing can be measured


def check_writable(model: Runnable, which: str, out: str | Path) -> Model:
    """Raise an error, before anything is computed, if a probe of these features cannot be written as a model."""
    if isinstance(model, Exported):
        raise ConfigError(
            f"{out}: an exported file cannot get another classifier: use the model it was made from"
        )
    if which != "pre_logits":
        raise ConfigError(f"{out}: a model's classifier reads pre_logits, not {which}: leave out --which")
    check_new(Path(out))
    return model


def with_classifier(
    model: Model, weight: np.ndarray, bias: np.ndarray, class_names: Sequence[str], provenance: dict[str, Any]
) -> Model:
    """Return a model that shares the body of another, with a classifier of weight (D, K) and bias (K,)."""
    learned, head = copy.copy(model), copy.copy(model.head)
    learned._modules, head._modules = dict(model._modules), dict(model.head._modules)
    D, K = weight.shape
    parameter = next(model.parameters())
    classifier = nn.Linear(D, K, device=parameter.device, dtype=parameter.dtype)
    with torch.no_grad():
        classifier.weight.copy_(torch.from_numpy(weight.T.copy()))  # (K, D)
        classifier.bias.copy_(torch.from_numpy(bias))
    head.classifier = classifier
    learned.head, learned.config = head, replace(model.config, classes=K)
    learned.class_names, learned.fp8, learned.metrics = list(class_names), {}, {}
    learned.calibration = Calibration()
    learned.license = inherit_license(model.license)
    learned.provenance = {**provenance, "start": model.provenance}
    return learned.eval()


def best_scale(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Return the factor of SCALES by which outputs (n, K) of held-out examples become the best logits."""
    spread = float(outputs.std(axis=1).mean())
    scales = SCALES / spread if spread > 0 else SCALES
    return float(min(scales, key=lambda scale: loss(scale * outputs, labels)))


def loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean cross-entropy of logits (n, K)."""
    logits = logits - logits.max(axis=1, keepdims=True)
    return float((np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]).mean())
