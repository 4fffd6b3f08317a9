"""Importing what we compare with."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch


def import_torchvision() -> ModuleType:
    """torchvision, also where its compiled part was built for another torch than the one here.

    Without that part it cannot register two operators of its own, which it needs when it is imported and which
    nothing here uses: declaring them is enough.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        for name in ("nms", "qnms"):
            signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", signature)
        return importlib.import_module("torchvision")
