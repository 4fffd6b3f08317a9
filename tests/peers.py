"""Other libraries, for the tests that compare with them or read through them."""

from __future__ import annotations

from types import ModuleType

import pytest

from vitrail.bench.peers import import_torchvision


def torchvision_or_skip() -> ModuleType:
    """torchvision, which timm and transformers import in their turn; a test or a module skips where it does not
    import."""
    try:
        return import_torchvision()
    except Exception as error:  # absent, or built for another torch
        pytest.skip(f"torchvision does not import: {error}", allow_module_level=True)
