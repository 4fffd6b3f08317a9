import numpy as np

from tests.curate.clusters import clusters
from vitrail.curate.folds import assign_folds
from vitrail.curate.label_errors import ambiguous_pairs, suspect
from vitrail.curate.out_of_fold import predict_out_of_fold
from vitrail.data.groups import connect


def test_wrong_labels_come_first_with_the_right_suggestion():
    x, labels, right = clusters()
    folds = assign_folds(labels, np.arange(len(x)), 20)
    suspicions = suspect(predict_out_of_fold(x, labels, folds, 4).log_p, labels, folds)
    assert set(suspicions.listed[:6].tolist()) == set(range(6))
    assert (suspicions.suggested[:6] == right[:6]).all()
    assert len(suspicions.listed) <= 24  # a fifth
    scores = suspicions.score[suspicions.listed]
    assert (np.diff(scores) <= 0).all() and scores.max() <= 1 and suspicions.score.min() >= 0


def test_copies_do_not_vouch_for_each_other():
    """Eight copies of one image with a wrong label look right unless they are in one fold."""
    x, labels, _ = clusters(wrong=0)
    x, labels = np.concatenate([x, x[:1].repeat(8, axis=0)]), np.concatenate([labels, np.full(8, 2)])
    alone = assign_folds(labels, np.arange(128), 20)
    together = assign_folds(labels, connect(128, [(120, i) for i in range(121, 128)]), 20)
    ranks = []
    for folds in (alone, together):
        score = suspect(predict_out_of_fold(x, labels, folds, 4).log_p, labels, folds).score
        ranks.append(np.argsort(np.argsort(-score))[120:])
    assert ranks[1].max() < 10 < ranks[0].max()


def test_the_only_image_of_a_class_is_not_suspected():
    x, labels, _ = clusters(wrong=0)
    labels[0] = 4
    folds = assign_folds(labels, np.arange(120), 20)
    suspicions = suspect(predict_out_of_fold(x, labels, folds, 5).log_p, labels, folds)
    assert suspicions.score[0] == 0 and 0 not in suspicions.listed


def test_confused_classes_are_counted_in_both_directions():
    labels = np.repeat([0, 1, 2], 10)
    predicted = labels.copy()
    predicted[:3], predicted[10:12], predicted[20:22] = 1, 0, 0
    (pair,) = ambiguous_pairs(predicted, labels, ["a", "b", "c"])
    assert pair == {"classes": ["a", "b"], "confused": 5, "of": 20}
