"""Before anything here is collected: torchvision, which timm and transformers import in their turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from benchmarks.peers import import_torchvision
from tests.parity.comparing import drawn_jpeg, real_photos

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
