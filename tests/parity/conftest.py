"""Before anything here is collected: torchvision, which timm and transformers import in their turn.

A torchvision that was built for another torch (CUDA, beside a CPU one) cannot register two operators of its own,
which nothing here uses. Declaring them is enough for it to import.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
import torch

from tests.parity.comparing import drawn_jpeg, real_photos


def import_torchvision() -> None:
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return  # the tests that need it say so
    except RuntimeError:
        for name in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
        importlib.import_module("torchvision")


import_torchvision()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only wait for each other on several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def photos() -> list[bytes]:
    """JPEG files: one drawn here, and real ones where they are at hand."""
    return [drawn_jpeg(), *real_photos()]
