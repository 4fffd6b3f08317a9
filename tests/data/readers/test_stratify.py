"""Splitting class by class: balanced, disjoint, and a function of the keys alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.readers.stratify import stratified

files = st.lists(
    st.tuples(st.binary(min_size=1, max_size=6), st.integers(0, 4)), min_size=1, unique_by=lambda f: f[0]
)


def split(
    found: list[tuple[bytes, int]], seed: int = 0, validation: float = 0.1, test: float = 0.2
) -> dict[str, set[bytes]]:
    labels = np.array([label for _, label in found])
    parts = stratified([name for name, _ in found], labels, seed=seed, validation=validation, test=test)
    return {part: {found[i][0] for i in indices} for part, indices in parts.items()}


@given(files, st.integers(0, 2**64))
def test_every_example_in_one_part_and_every_class_in_train(
    found: list[tuple[bytes, int]], seed: int
) -> None:
    parts = split(found, seed)
    assert sorted(name for part in parts.values() for name in part) == sorted(name for name, _ in found)
    assert {label for name, label in found if name in parts["train"]} == {label for _, label in found}


@given(files, st.randoms())
def test_the_order_of_the_files_does_not_matter(found: list[tuple[bytes, int]], random: object) -> None:
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert split(found) == split(shuffled)


def test_shares_of_each_class_and_the_seed() -> None:
    found = [(f"{label}/{i}".encode(), label) for label, n in enumerate((100, 50, 7, 1)) for i in range(n)]
    parts = split(found)
    counts = {
        part: [sum(name.startswith(f"{c}/".encode()) for name in names) for c in range(4)]
        for part, names in parts.items()
    }
    assert counts == {"train": [70, 35, 5, 1], "validation": [10, 5, 1, 0], "test": [20, 10, 1, 0]}
    assert split(found, seed=1) != parts
    assert split(found, validation=0, test=0)["train"] == {name for name, _ in found}


def test_a_new_file_moves_few_others() -> None:
    found = [(f"{i}".encode(), 0) for i in range(1000)]
    before, after = split(found), split([*found, (b"new", 0)])
    moved = sum(len(before[part] - after[part]) for part in before)
    assert moved <= 2
