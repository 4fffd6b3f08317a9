"""What the comparisons with other libraries share."""

from __future__ import annotations

import pytest

from tests.parity.comparing import drawn_jpeg, real_photos


@pytest.fixture(scope="session")
def photos() -> list[bytes]:
    """JPEG files: one drawn here, and real ones where they are at hand."""
    return [drawn_jpeg(), *real_photos()]
