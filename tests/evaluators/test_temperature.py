import math

import numpy as np
import pytest
import torch

import vitrail
from tests.evaluators.split import Split, named, small_model
from vitrail.errors import ConfigError, DataError
from vitrail.evaluators.temperature import (
    calibrate_model,
    choose_thresholds,
    fit_calibration,
    fit_temperature,
)
from vitrail.models.calibration import Calibration


def drawn(n, temperature, classes=6, seed=0):
    """Logits (n, K), and labels drawn from softmax(y / T)."""
    generator = torch.Generator().manual_seed(seed)
    y = 4 * torch.randn(n, classes, generator=generator)
    return y, torch.multinomial((y / temperature).softmax(dim=1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_finds_the_temperature_that_labels_were_drawn_with(temperature):
    assert fit_temperature(*drawn(8000, temperature)) == pytest.approx(temperature, rel=0.05)


def test_finds_the_temperature_of_several_labels():
    generator = torch.Generator().manual_seed(0)
    y = 4 * torch.randn(4000, 6, generator=generator)
    labels = torch.bernoulli((y / 2.5).sigmoid(), generator=generator)
    assert fit_temperature(y, labels) == pytest.approx(2.5, rel=0.05)


def test_a_few_images_that_are_all_right_or_wrong_give_no_extreme():
    y, _ = drawn(20, 1.0)
    assert 0.2 < fit_temperature(y, y.argmax(dim=1)) < 1
    assert 1 < fit_temperature(y, y.argmin(dim=1)) < math.exp(3) - 1


def test_the_loss_is_lower_there_and_on_other_images():
    y, labels = drawn(1000, 2.0)
    calibration = fit_calibration(y, labels)
    before, after = calibration.fitted["before"], calibration.fitted["after"]
    assert after["loss"] < before["loss"] and after["ece"] < before["ece"]
    y, labels = drawn(1000, 2.0, seed=1)
    assert torch.nn.functional.cross_entropy(
        calibration.scaled(y), labels
    ) < torch.nn.functional.cross_entropy(y, labels)
    assert torch.equal(calibration.probabilities(y).argmax(dim=1), y.argmax(dim=1))


def test_answers_above_the_thresholds_are_right_as_often_as_wanted():
    calibration = fit_calibration(*drawn(4000, 2.0), wanted_precision=0.9)
    assert len(calibration.thresholds) == 6 and calibration.fitted["precision"] >= 0.9
    y, labels = drawn(20_000, 2.0, seed=1)
    _, sure = calibration.decide(y)
    answered = sure.any(dim=1)
    right = (y.argmax(dim=1) == labels)[answered].double()
    assert float(right.mean()) == pytest.approx(0.9, abs=0.03)
    assert float((y.argmax(dim=1) == labels).double().mean()) < 0.8  # without thresholds
    assert float(answered.double().mean()) == pytest.approx(calibration.fitted["answered"], abs=0.03)


def test_a_class_with_few_answers_has_about_the_threshold_of_all():
    rng = np.random.default_rng(0)
    confidence = rng.random(5000)
    taken, right = (np.arange(5000) >= 4998).astype(int), rng.random(5000) < confidence
    often, rare = choose_thresholds(confidence, taken, right, 2, 0.8)
    assert 0.5 < often < 0.7 and rare == pytest.approx(often, abs=0.1)


def test_a_precision_that_is_not_reached_leaves_nothing_sure():
    confidence = np.linspace(0.1, 0.9, 50)
    assert choose_thresholds(confidence, np.zeros(50, int), np.zeros(50, bool), 3, 0.5) == (1.0, 1.0, 1.0)


def test_equal_confidences_are_taken_together():
    confidence, right = np.full(100, 0.5), np.arange(100) < 40
    assert choose_thresholds(confidence, np.zeros(100, int), right, 1, 0.9) == (1.0,)


def test_a_model_is_calibrated_on_the_images_that_can_be_read():
    model = small_model(class_names=named(7))
    model.metrics = {"test": {"top1": 0.5, "loss": 2.0, "ece": 0.1}, "val": None}
    held_out = Split(60, named(7), broken=(3, 50))
    before = vitrail.evaluate(model, held_out, max_bad=0.1)
    calibration = calibrate_model(model, held_out, wanted_precision=0.5, max_bad=0.1)
    after = vitrail.evaluate(model, held_out, max_bad=0.1)
    assert model.calibration is calibration and calibration.temperature != 1
    assert calibration.fitted["data"] == held_out.name and calibration.fitted["n"] == 58
    assert (after.predictions.predicted == before.predictions.predicted).all() and after.top1 == before.top1
    assert (
        after.loss == pytest.approx(calibration.fitted["after"]["loss"], rel=1e-3)
        and after.loss < before.loss
    )
    assert before.loss == pytest.approx(calibration.fitted["before"]["loss"], rel=1e-3)
    assert after.answered == pytest.approx(calibration.fitted["answered"]) and before.answered is None
    assert model.metrics == {"test": {"top1": 0.5}}  # measured with other probabilities


def test_classes_are_matched_by_name():
    model = small_model(class_names=named(7))
    names = named(7)[::-1]
    held_out = Split(70, names, labels=6 - np.arange(70) % 7)
    expected = calibrate_model(small_model(class_names=named(7)), Split(70, named(7)))
    assert calibrate_model(model, held_out).temperature == pytest.approx(expected.temperature, rel=1e-4)


@pytest.mark.parametrize("wanted", [-0.1, 1.0, math.nan])
def test_a_precision_is_a_share(wanted):
    with pytest.raises(ConfigError, match="wanted_precision"):
        calibrate_model(small_model(class_names=named(7)), Split(40, named(7)), wanted_precision=wanted)


def test_too_few_images_are_refused():
    with pytest.raises(DataError, match="19 held-out images are too few: 20 are needed"):
        calibrate_model(small_model(class_names=named(7)), Split(19, named(7)))
    model = small_model(class_names=named(7))
    with pytest.raises(DataError, match="19 images could be read, too few"):
        calibrate_model(model, Split(20, named(7), broken=(0,)), max_bad=1.0)
    assert model.calibration == Calibration()
