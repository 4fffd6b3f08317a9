import json

import pytest
import torch

from vitrail.errors import ConfigError
from vitrail.models.calibration import Calibration


@pytest.fixture
def y():
    return 3 * torch.randn(40, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_a_temperature_changes_how_sure_a_model_is_and_no_order(y, temperature):
    p = Calibration(temperature).probabilities(y)
    torch.testing.assert_close(p, (y / temperature).softmax(dim=1))
    assert torch.equal(p.argsort(dim=1), y.argsort(dim=1))
    above = p.amax(dim=1) - y.softmax(dim=1).amax(dim=1)
    assert (above > 0).all() if temperature < 1 else (above < 0).all() if temperature > 1 else not above.any()


def test_without_thresholds_the_most_probable_class_is_the_answer(y):
    _, sure = Calibration(2.0).decide(y)
    assert torch.equal(sure.sum(dim=1), torch.ones(40, dtype=torch.long))
    assert torch.equal(sure.int().argmax(dim=1), y.argmax(dim=1))


def test_of_equal_classes_the_first_is_the_answer():
    _, sure = Calibration().decide(torch.zeros(2, 4))
    assert sure.tolist() == [[True, False, False, False]] * 2


def test_below_the_threshold_of_its_class_there_is_no_answer(y):
    calibration = Calibration(thresholds=(0.0, 0.5, 0.8, 1.0, 0.9))
    p, sure = calibration.decide(y)
    for row, answer in zip(p.tolist(), sure.tolist(), strict=True):
        first = row.index(max(row))
        assert answer == [c == first and max(row) >= calibration.thresholds[first] for c in range(5)]
    assert 0 < sure.sum() < 40
    _, fewer = calibration.decide(y, 0.85)
    assert torch.equal(fewer, sure & (p >= 0.85)) and fewer.sum() < sure.sum()


def test_of_several_labels_every_class_above_its_threshold_is_an_answer(y):
    p, sure = Calibration(2.0, (0.5, 0.5, 0.5, 0.9, 0.1), multi_label=True).decide(y)
    torch.testing.assert_close(p, (y / 2).sigmoid())
    assert torch.equal(sure, p >= torch.tensor([0.5, 0.5, 0.5, 0.9, 0.1]))
    assert sure.sum(dim=1).max() > 1 and sure.sum(dim=1).min() == 0


def test_comes_back_from_json():
    for one in (
        Calibration(),
        Calibration(1.5, (0.25, 1.0), True, {"n": 3, "before": {"loss": 1.0}}),
    ):
        assert Calibration.from_json(json.loads(json.dumps(one.as_json()))) == one
    assert Calibration().as_json() == {}


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({"temperature": 0.0}, "temperature 0"),
        ({"temperature": float("inf")}, "temperature inf"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"temperature": "2"}, "temperature is unknown or of a wrong type"),
        ({"temperature": True}, "temperature is unknown or of a wrong type"),
        ({"thresholds": [0.5, 1.5]}, r"threshold 1\.5"),
        ({"thresholds": [0.5, "x"]}, "numbers"),
        ({"thresholds": 0.5}, "thresholds is unknown or of a wrong type"),
        ({"heat": 1.0}, "heat is unknown"),
    ],
)
def test_other_entries_are_refused(entries, problem):
    with pytest.raises(ConfigError, match=problem):
        Calibration.from_json(entries)


def test_thresholds_belong_to_classes():
    Calibration(thresholds=(0.5, 0.5)).check(2)
    with pytest.raises(ConfigError, match="2 thresholds for 3 classes"):
        Calibration(thresholds=(0.5, 0.5)).check(3)
