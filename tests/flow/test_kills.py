"""A run that is killed again and again ends where it would have ended. Twenty kills: benchmarks/faults.py."""

import pytest

from benchmarks.faults import survive


@pytest.mark.long
def test_three_kills_lose_nothing(tmp_path):
    told = survive(tmp_path, kills=3, steps=60)
    assert len(told) == 3
