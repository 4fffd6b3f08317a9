"""Before anything here is collected: torchvision, which timm and transformers import in their turn."""

from __future__ import annotations

import pytest

from benchmarks.peers import import_torchvision
from tests.parity.comparing import drawn_jpeg, real_photos

import_torchvision()


@pytest.fixture(scope="session")
def photos() -> list[bytes]:
    """JPEG files: one drawn here, and real ones where they are at hand."""
    return [drawn_jpeg(), *real_photos()]
