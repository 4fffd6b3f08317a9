import json

import pytest

import vitrail
from tests.evaluators.split import small_model
from vitrail.data.sources import open_source

DATA = "shapes?image_size=16&n=80"


@pytest.fixture
def bundle(tmp_path):
    names = open_source(DATA, "train").class_names
    vitrail.save(small_model(len(names), names), tmp_path / "model")
    return tmp_path / "model"


def test_writes_a_model_that_is_as_right_and_as_sure_as_it_may_be(bundle, tmp_path, vitrail_command):
    words = ["calibrate", str(bundle), str(tmp_path / "sure"), "--data", DATA, "--verify", DATA]
    code, out, _ = vitrail_command(*words, "--wanted-precision", "0.3", "--json")
    assert code == 0
    result = json.loads(out)
    made = vitrail.load(tmp_path / "sure")
    assert made.calibration.as_json() == result["calibration"] and made.calibration.thresholds
    before, after = result["verified"]["before"], result["verified"]["after"]
    assert before["top1"] == after["top1"] and before["loss"] > after["loss"]
    for name, w in vitrail.load(bundle).state_dict().items():
        assert (made.state_dict()[name] == w).all()
    code, out, _ = vitrail_command("predict", str(tmp_path / "sure"), "photo.jpg", "--json")
    assert code == 2  # no such picture


def test_shows_a_table(bundle, tmp_path, vitrail_command):
    code, out, _ = vitrail_command("calibrate", str(bundle), str(tmp_path / "sure"), "--data", DATA)
    assert code == 0 and "temperature" in out and "->" in out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--data", DATA, "--wanted-precision", "1"], "wanted_precision 1"),
        (["--data", DATA, "--what", "fp8"], "--verify"),
        (["--data", DATA, "--what", "fp8", "--verify", DATA, "--wanted-precision", "0.5"], "not for fp8"),
        (["--data", DATA, "--split", "test", "--verify", DATA], "are in"),
        (["--data", DATA, "--split", "holiday"], "holiday"),
        (["--data", DATA, "--split", "validation[:5]"], "too few"),
    ],
)
def test_mistakes_are_one_line(bundle, tmp_path, vitrail_command, words, problem):
    code, _, err = vitrail_command("calibrate", str(bundle), str(tmp_path / "new"), *words)
    assert code == 2 and problem in err and err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_nothing_is_overwritten(bundle, vitrail_command):
    code, _, err = vitrail_command("calibrate", str(bundle), str(bundle), "--data", DATA)
    assert code == 2 and "overwritten" in err
