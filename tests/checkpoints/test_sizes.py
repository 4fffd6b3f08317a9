from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.checkpoints.sizes import count, grid_of, heads_of, pair
from vitrail.errors import CheckpointError, ConfigError

B = (768, 12, 3072)


def heads(
    sizes: tuple[int, int, int], asked: int | None = None, configured: int | None = None
) -> tuple[int, str]:
    return heads_of(*sizes, asked=asked, configured=configured, where="a.pth")


def test_the_argument_then_the_config_file_then_the_variant() -> None:
    assert heads(B, asked=8) == (8, "argument")
    assert heads(B, asked=8, configured=8) == (8, "argument")
    assert heads(B, configured=6) == (6, "config file")
    assert heads(B) == (12, "the known variant B")


def test_s_wins_over_the_half_of_b_and_it_is_said() -> None:
    assert heads((384, 12, 1536)) == (6, "the known variant S; B-half has 12: heads=12")


def test_a_conflict_is_an_error() -> None:
    with pytest.raises(CheckpointError, match=r"a\.pth: heads=8 was asked for, but its config file says 12"):
        heads(B, asked=8, configured=12)


def test_unknown_sizes_ask() -> None:
    with pytest.raises(CheckpointError, match="width 768, depth 11 and mlp_dim 3072: say heads="):
        heads((768, 11, 3072))


def test_a_square_needs_nothing() -> None:
    assert grid_of((9,), 16, None, None, "a") == (3, 3)
    assert grid_of((9, 10), 16, None, (32, 32), "a") == (3, 3)
    assert grid_of((8, 9), 16, None, None, "a") == (3, 3)  # the class token has no position


def test_another_grid_asks() -> None:
    with pytest.raises(
        CheckpointError, match=r"15 patches of 16 pixels, which are not a square: say image_size="
    ):
        grid_of((15,), 16, None, None, "a")
    with pytest.raises(CheckpointError, match="say image_size="):
        grid_of((15,), 16, None, (48, 48), "a")
    assert grid_of((15,), 16, None, (48, 80), "a") == (3, 5)
    assert grid_of((15,), 16, (80, 48), None, "a") == (5, 3)
    assert grid_of((14, 15), 16, None, (48, 80), "a") == (3, 5)


def test_a_config_file_that_does_not_fit() -> None:
    with pytest.raises(CheckpointError, match=r"4 patches .* says images of \(224, 224\), which have 196"):
        grid_of((4,), 16, 224, None, "a")
    assert grid_of((4,), 16, 224, 32, "a") == (2, 2)  # what is asked for settles it


@given(rows=st.integers(1, 40), columns=st.integers(1, 40), stride=st.integers(1, 32))
def test_a_size_that_is_said_gives_its_grid(rows: int, columns: int, stride: int) -> None:
    size = (rows * stride, columns * stride)
    assert grid_of((rows * columns,), stride, size, None, "a") == (rows, columns)


def test_pairs() -> None:
    assert pair(3) == (3, 3)
    with pytest.raises(ConfigError, match="neither one number nor"):
        pair((1, 2, 3))  # type: ignore[arg-type]


def test_layers_are_counted_without_gaps() -> None:
    assert count(["blocks.0.a", "blocks.1.a", "blocks.1.b", "norm"], r"blocks\.(\d+)\.", "a") == 2
    with pytest.raises(CheckpointError, match=r"counts \[0, 2\]"):
        count(["blocks.0.a", "blocks.2.a"], r"blocks\.(\d+)\.", "a")
