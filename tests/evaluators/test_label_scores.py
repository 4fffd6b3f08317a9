import numpy as np
import pytest
import torch

import vitrail
from tests.evaluators.split import Split, named, small_model
from vitrail.errors import ConfigError, DataError
from vitrail.evaluators.label_scores import average_precision, evaluate_labels, score_labels
from vitrail.evaluators.temperature import best_f1, calibrate_model, choose_label_thresholds
from vitrail.models.calibration import Calibration


class Several(Split):
    """Pictures with targets that are drawn from what a model gives them at a temperature of 2."""

    def __init__(self, n, model, **settings):
        super().__init__(n, named(7), **settings)
        self.targets = np.zeros((n, 7), np.uint8)
        loader = Split(n, named(7))
        y = torch.cat([model(vitrail.transform(model)(loader.read(i).image)[None]) for i in range(n)])
        p = (y / 2).sigmoid().detach().numpy()
        self.targets[:] = np.random.default_rng(0).random((n, 7)) < p


@pytest.fixture
def model():
    made = small_model(class_names=named(7))
    made.calibration = Calibration(multi_label=True)
    return made


def test_the_average_precision_of_a_worked_example():
    assert average_precision(np.array([0.9, 0.8, 0.7, 0.6]), np.array([1, 0, 1, 0])) == pytest.approx(
        (1 + 2 / 3) / 2
    )
    assert (
        average_precision(np.array([0.5, 0.5, 0.5, 0.5]), np.array([1, 0, 0, 0])) == 0.25
    )  # nothing is told apart
    assert average_precision(np.zeros(3), np.zeros(3)) is None


def test_scores_of_a_worked_example():
    y = torch.tensor([[2.0, -2.0, -1.0], [1.0, 3.0, -1.0], [-1.0, 1.0, -1.0]])
    truth = torch.tensor([[1, 0, 0], [1, 0, 0], [1, 1, 0]])
    scores, each = score_labels(y, truth, Calibration(multi_label=True), named(3))
    assert scores["f1"] == pytest.approx(2 * 3 / (4 + 4))
    assert scores["f1_macro"] == pytest.approx((2 * 2 / (2 + 3) + 2 * 1 / (2 + 1)) / 2)
    assert scores["map"] == pytest.approx((1 + 1 / 2) / 2)
    assert [(one.n, one.precision, one.recall) for one in each] == [
        (3, 1.0, pytest.approx(2 / 3)),
        (1, 0.5, 1.0),
        (0, None, None),
    ]


def test_images_are_judged_by_the_names_of_their_classes(model):
    source = Several(60, model, broken=(5,))
    expected = evaluate_labels(model, source, max_bad=0.1)
    assert (expected.n, expected.broken) == (59, 1)
    source.class_names, source.targets = source.class_names[::-1], source.targets[:, ::-1]
    again = evaluate_labels(model, source, max_bad=0.1)
    assert [vars(one) for one in again.per_class] == [vars(one) for one in expected.per_class]
    assert expected.as_json()["map"] == expected.map


def test_others_are_refused(model):
    source = Several(20, model)
    with pytest.raises(ConfigError, match="one class"):
        evaluate_labels(small_model(class_names=named(7)), source)
    model.class_names = named(8)[1:]
    with pytest.raises(DataError, match="must be the same"):
        evaluate_labels(model, source)


def test_temperature_and_thresholds_are_fitted(model):
    source = Several(400, model)
    before = evaluate_labels(model, source)
    calibration = calibrate_model(model, source)
    after = evaluate_labels(model, source)
    assert calibration.multi_label and calibration.temperature == pytest.approx(2, rel=0.25)
    assert len(calibration.thresholds) == 7
    assert (
        after.loss < before.loss
        and after.f1_macro >= before.f1_macro
        and after.map == pytest.approx(before.map)
    )
    precise = calibrate_model(model, source, wanted_precision=0.9)
    assert np.mean(precise.thresholds) > np.mean(calibration.thresholds)
    known = [one.precision for one in evaluate_labels(model, source).per_class if one.precision is not None]
    assert np.mean(known) > 0.85


def test_the_threshold_with_the_highest_f1():
    assert best_f1(np.array([0.9, 0.8, 0.3, 0.1]), np.array([True, True, False, False])) == pytest.approx(
        0.55
    )
    assert best_f1(np.array([0.9, 0.8]), np.array([False, False])) == 0.5


def test_a_class_with_few_images_has_the_threshold_of_all():
    rng = np.random.default_rng(0)
    p = rng.random((200, 2))
    truth = rng.random((200, 2)) < p
    truth[:, 1] = False
    truth[0, 1] = True
    often, rare = choose_label_thresholds(p, truth, 0.0)
    assert rare == best_f1(p.ravel(), truth.ravel()) and often == best_f1(p[:, 0], truth[:, 0])
