import numpy as np
import pytest
import torch

from tests.curate.clusters import clusters
from vitrail.curate.folds import assign_folds
from vitrail.curate.out_of_fold import (
    CLASSIFIERS,
    Discriminant,
    Labelled,
    number_of_folds,
    predict_out_of_fold,
    temperature,
)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_label_of_an_image_has_no_part_in_its_prediction(name):
    x, labels, right = clusters()
    prepare, settings = CLASSIFIERS[name]
    folds = assign_folds(labels, np.arange(len(x)), 10)
    rows = np.arange(len(x))
    f = prepare(Labelled(x, labels, folds, 4))(rows, settings[2])
    assert (f.argmax(dim=1).numpy() == right).mean() > 0.95  # in spite of wrong labels
    here = np.flatnonzero(folds == 3)
    others = labels.copy()
    others[here] = (others[here] + 2) % 4
    g = prepare(Labelled(x, others, folds, 4))(rows, settings[2])
    torch.testing.assert_close(g[here], f[here], atol=1e-6, rtol=1e-6)
    assert (g - f).abs().max() > 1e-4  # others do see it
    some = np.array([5, 99, 17])  # rows in any order
    few = prepare(Labelled(x, labels, folds, 4))(some, settings[2])
    torch.testing.assert_close(few, f[some], atol=1e-6, rtol=1e-6)


def test_large_and_small_folds_of_the_kernel_agree_with_a_solution_without_the_fold(monkeypatch):
    x, labels, _ = clusters()
    prepare, _ = CLASSIFIERS["kernel"]
    folds = np.where(np.arange(120) < 70, 0, np.where(np.arange(120) < 74, 1, 2))
    monkeypatch.setattr(
        "vitrail.curate.out_of_fold.LANDMARKS", 12
    )  # so that fold 0 is larger than r, fold 1 is not
    f = prepare(Labelled(x, labels, folds, 4))(np.arange(120), (0.3, 0.5)).numpy()
    # The same by augmented least squares with rows of the fold left out.
    u = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    landmarks = u[np.random.PCG64([0]).random_raw(120).argsort()[:12]]
    e, Q = np.linalg.eigh(np.exp((landmarks @ landmarks.T - 1) / 0.3))
    features = np.concatenate(
        [np.exp((u @ landmarks.T - 1) / 0.3) @ Q / np.sqrt(e), np.full((120, 1), 10)], 1
    )
    for fold in range(3):
        rest = folds != fold
        A = np.concatenate([features[rest], np.sqrt(0.5) * np.eye(features.shape[1])])
        B = np.concatenate([np.eye(4)[labels[rest]], np.zeros((features.shape[1], 4))])
        W = np.linalg.lstsq(A, B, rcond=None)[0]
        np.testing.assert_allclose(f[~rest], features[~rest] @ W, atol=1e-7)


def test_a_class_without_images_is_the_least_probable():
    x, labels, _ = clusters()
    f = Discriminant(x, labels, 5)(x[:10], 0.5)
    assert f.shape == (10, 5) and (f[:, 4] <= f.min(dim=1).values).all()


def test_predictions_are_probabilities_of_the_right_classes():
    x, labels, right = clusters()
    folds = assign_folds(labels, np.arange(len(x)), 10)
    predictions = predict_out_of_fold(x, labels, folds, 4)
    np.testing.assert_allclose(np.exp(predictions.log_p).sum(axis=1), 1)
    assert (predictions.log_p.argmax(axis=1) == right).mean() > 0.97
    assert set(predictions.settings) == set(CLASSIFIERS)
    # Calibrated: as confident as it is right.
    assert abs(np.exp(predictions.log_p.max(axis=1)).mean() - (labels == right).mean()) < 0.06


def test_a_temperature_is_that_of_the_labels():
    rng = np.random.default_rng(0)
    f = torch.from_numpy(rng.normal(size=(4000, 3)) * 2)
    labels = torch.multinomial(torch.softmax(0.5 * f, 1), 1, generator=torch.manual_seed(0))[:, 0]
    _, T = temperature(f, labels)
    assert 0.42 < T < 0.6


def test_few_images_have_many_folds():
    assert [number_of_folds(n) for n in (1, 800, 2500, 100_000)] == [50, 50, 20, 10]
