import pytest
import torch

import vitrail
from tests.randomise import randomise
from vitrail.data.sources import open_source
from vitrail.errors import CheckFailed, ConfigError
from vitrail.evaluators import fp8_check
from vitrail.evaluators.fp8_check import calibrate_and_check

DATA = "shapes?image_size=16&n=40"


@pytest.fixture
def model():
    torch.manual_seed(0)
    made = randomise(vitrail.create("mu/8", classes=10, image_size=16)).eval()
    made.class_names = list(open_source(DATA, "train").class_names)
    return made


def test_scales_and_their_evidence_are_stored(model):
    train, test = open_source(DATA, "train"), open_source(DATA, "test")
    compared = calibrate_and_check(model, train, test, count=8, max_drop=1.0)
    assert model.fp8["calibrated"] == {"data": train.name, "n": 8}
    assert model.fp8["checked"]["top1_fp8"] == compared.top1_fp8
    assert compared.n == len(test) and 0 <= compared.agreement <= 1
    in_fp8 = vitrail.evaluate(model, test, precision="fp8")
    assert in_fp8.top1 == compared.top1_fp8


def test_the_same_images_give_the_same_scales(model):
    train, test = open_source(DATA, "train"), open_source(DATA, "test")
    scales = []
    for batch_size in (3, 8):
        calibrate_and_check(model, train, test, count=8, max_drop=1.0, batch_size=batch_size)
        scales.append(model.fp8["largest"])
    assert scales[0] == pytest.approx(scales[1], rel=1e-4)


def test_too_great_a_loss_fails_and_leaves_no_scales(model, monkeypatch):
    monkeypatch.setattr(fp8_check.Comparison, "drop", 0.02)
    train, test = open_source(DATA, "train"), open_source(DATA, "test")
    with pytest.raises(CheckFailed, match=r"allowed are 1\.00"):
        calibrate_and_check(model, train, test, count=8, max_drop=0.01)
    assert model.fp8 == {}


def test_no_images_are_too_few(model):
    with pytest.raises(ConfigError, match="at least 1"):
        calibrate_and_check(model, open_source(DATA, "train"), open_source(DATA, "test"), count=0)
