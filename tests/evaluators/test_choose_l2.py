"""A regularisation is chosen by what was held out, and never because the grid ended there."""

import pytest

from vitrail.evaluators.choose_l2 import choose_l2

GRID = (1.0, 10.0, 100.0)


@pytest.mark.parametrize("best", [1e-7, 1e-3, 1.0, 10.0, 1e3, 1e6])
def test_the_grid_grows_to_the_best(best):
    def right(l2):
        return round(
            100 - 10 * abs(float(f"{l2:e}".partition("e")[2]) - float(f"{best:e}".partition("e")[2]))
        )

    assert choose_l2(right, GRID, 10.0) == pytest.approx(best)
    assert choose_l2(right, GRID) == pytest.approx(min(max(best, 1.0), 100.0))


def test_of_equals_the_largest_and_a_plateau_ends_the_search():
    tried = []

    def right(l2):
        tried.append(l2)
        return 5

    assert choose_l2(right, GRID, 10.0) == 100.0
    assert tried == [100.0, 10.0, 1.0, 1000.0]
