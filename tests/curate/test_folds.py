import numpy as np

from vitrail.curate.folds import assign_folds
from vitrail.data.groups import connect


def test_each_class_is_spread_evenly_and_no_group_is_cut():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [40, 20, 7])
    groups = connect(67, [(0, 1), (1, 45), (20, 21)])
    folds = assign_folds(labels, groups, 5)
    assert set(folds.tolist()) == set(range(5))
    assert folds[0] == folds[1] == folds[45] and folds[20] == folds[21]
    for label, most in ((0, 9), (1, 5), (2, 2)):
        counts = np.bincount(folds[labels == label], minlength=5)
        assert counts.max() <= most and counts.min() >= counts.max() - 2
    other = assign_folds(labels, groups, 5, seed=1)
    assert (other != folds).any() and (assign_folds(labels, groups, 5) == folds).all()
    # The order of the data does not decide which images are together: a permutation spreads them as well.
    p = rng.permutation(67)
    counts = np.bincount(assign_folds(labels[p], np.arange(67), 5)[labels[p] == 2], minlength=5)
    assert counts.max() == 2
