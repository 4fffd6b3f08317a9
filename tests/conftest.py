"""What all tests share."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """Reference numbers from the published code; not part of the project."""
    path = SHARED / "fixtures"
    if not path.is_dir():
        pytest.skip("the reference numbers of the published code are not on this machine")
    return path
