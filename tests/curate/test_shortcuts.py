import numpy as np

from vitrail.curate.measures import Measures
from vitrail.curate.shortcuts import find_shortcuts, nearest_class, ranks


def measures(n, sizes=None, border=None, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1000, 9000, n) if sizes is None else sizes
    border = rng.random((n, 24)) if border is None else border
    return [
        Measures(int(s), 0.3, 0.1, 0.9, b.astype(np.float32), np.zeros(8, np.float32))
        for s, b in zip(sizes, border, strict=True)
    ]


def test_labels_that_follow_the_size_of_the_file_are_told():
    labels, folds = np.arange(300) % 3, np.arange(300) // 3 % 10
    rng = np.random.default_rng(1)
    sizes = np.full((300, 2), 64)
    assert find_shortcuts(measures(300), sizes, labels, folds, np.arange(300)) == []
    stored = 1000 * (labels + 1) + rng.integers(0, 900, 300)
    (shortcut,) = find_shortcuts(measures(300, stored), sizes, labels, folds, np.arange(300))
    assert shortcut["from"] == "file size" and shortcut["accuracy"] > 0.9
    low, high = shortcut["interval"]
    assert low < shortcut["accuracy"] <= high and abs(shortcut["chance"] - 1 / 3) < 1e-9
    assert "size of the file" in shortcut["reason"]


def test_copies_count_once_in_the_interval():
    labels, folds = np.arange(40) % 2, np.arange(40) // 4
    stored = np.where(labels == 0, 100, 900)
    sizes = np.full((40, 2), 64)
    assert find_shortcuts(measures(40, stored), sizes, labels, folds, np.arange(40))
    assert not find_shortcuts(measures(40, stored), sizes, labels, folds, np.arange(40) % 3)


def test_ranks_do_not_depend_on_units_and_ties_are_equal():
    values = np.array([[5.0], [1.0], [5.0], [100.0]])
    np.testing.assert_allclose(ranks(values)[:, 0], [0.5, 0.125, 0.5, 0.875])
    np.testing.assert_allclose(ranks(np.log(values)), ranks(values))


def test_images_of_the_own_fold_have_no_vote():
    x = np.array([[0.0], [0.01], [1.0], [1.01]])
    assert nearest_class(x, np.array([1, 1, 0, 0]), np.array([0, 0, 1, 1])).tolist() == [0, 0, 1, 1]
