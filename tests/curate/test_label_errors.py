import numpy as np
import pytest

from tests.curate.clusters import clusters
from vitrail.curate.folds import assign_folds
from vitrail.curate.label_errors import ambiguous_pairs, mistakes, suspect
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


def two_pairs():
    """Return p (40, 4) and labels: classes 0 and 1 are hard to tell apart, and 2 and 3."""
    labels = np.arange(40) % 4
    p = np.full((40, 4), 0.01)
    p[np.arange(40), labels ^ 1] = 0.2
    p[np.arange(40), labels] = 0.78
    return p, labels


def test_similar_classes_are_mistaken_more_often():
    r = mistakes(np.log(two_pairs()[0]))
    assert r[~np.eye(4, dtype=bool)].reshape(4, 3).mean(axis=1) == pytest.approx(np.ones(4))
    assert min(r[0, 1], r[1, 0], r[2, 3], r[3, 2]) > 1.5
    assert 0.5 <= r[0, 2] < 1 and 0.5 <= r[3, 1] < 1


def test_a_label_of_a_similar_class_is_more_suspicious_but_an_impossible_one_most():
    p, labels = two_pairs()
    labels[:3] = 2, 0, 2  # all look like class 1
    p[0], p[1], p[2] = (0.025, 0.9, 0.05, 0.025), (0.05, 0.9, 0.025, 0.025), (0.05, 0.9, 1e-4, 0.0499)
    suspicions = suspect(np.log(p), labels, np.arange(40))
    assert suspicions.listed.tolist() == [2, 1, 0]
    assert (suspicions.suggested[:3] == 1).all()


def test_of_two_classes_the_score_is_the_probability_of_the_other():
    p = np.array([0.3, 0.9, 0.2, 1e-300, 1 - 1e-16])
    labels = np.array([0, 0, 1, 1, 1])
    score = suspect(np.log(np.stack([p, 1 - p], axis=1)), labels, np.arange(5)).score
    np.testing.assert_allclose(score, np.where(labels == 0, 1 - p, p), rtol=1e-9, atol=1e-12)


def test_certain_predictions_and_classes_that_never_overlap():
    log_p = np.where(np.eye(3, dtype=bool)[np.arange(9) % 3], 0.0, -5000.0)
    labels = np.arange(9) % 3
    labels[0] = 1
    suspicions = suspect(log_p, labels, np.arange(9))
    assert suspicions.listed.tolist() == [0] and suspicions.suggested[0] == 0
    assert suspicions.score[0] == 1 and (suspicions.score[1:] == 0).all()


def test_confused_classes_are_counted_in_both_directions():
    labels = np.repeat([0, 1, 2], 10)
    predicted = labels.copy()
    predicted[:3], predicted[10:12], predicted[20:22] = 1, 0, 0
    (pair,) = ambiguous_pairs(predicted, labels, ["a", "b", "c"])
    assert pair == {"classes": ["a", "b"], "confused": 5, "of": 20}
