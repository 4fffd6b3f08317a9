"""The choice of a regularisation on held-out examples, from a grid that grows until its best is not at an end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vitrail.runtime.progress import progress


def choose_l2(right: Callable[[float], int], values: Sequence[float], factor: float = 0.0) -> float:
    """Return the value with the most right answers; of equals the largest, from strong to weak.

    With a `factor`, while the best is an end of the grid, the value beyond it is tried too: what is returned is no
    worse than its neighbour on either side.
    """
    counts = {value: right(value) for value in progress(sorted(set(values), reverse=True), len(values), "l2")}
    while True:
        best = max(counts, key=lambda value: (counts[value], value))
        if not factor or min(counts) < best < max(counts):
            return best
        beyond = best * factor if best == max(counts) else best / factor
        counts[beyond] = right(beyond)
        if counts[beyond] <= counts[best]:
            return best
