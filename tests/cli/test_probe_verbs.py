import json

import numpy as np
import pytest

import vitrail
from tests.evaluators.split import small_model
from vitrail.cli.probe_verbs import Probing, fewshot, knn, linear
from vitrail.cli.verb import Common
from vitrail.errors import ConfigError, DataError

DATA = "shapes:colour?n=60&image_size=16"
CPU = Common(device="cpu")


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    vitrail.save(small_model(), tmp_path / "model")
    return str(tmp_path / "model")


def scores(shown):
    return json.loads(json.dumps(shown.result, allow_nan=False))["scores"]


def test_fewshot(bundle, tmp_path):
    shown = fewshot(bundle, DATA, shots=(1, 4), seeds=2, common=CPU)
    assert [row[0] for row in shown.rows] == ["1-shot", "4-shot"]
    assert all(len(row) == len(shown.columns) for row in shown.rows)
    one = scores(shown)[0]
    assert (one["n"], one["seeds"], one["l2"]) == (15, 2, [1024.0])
    assert shown.after == ["shapes:colour:train (60) -> shapes:colour:test (15), features pre_logits"]
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_fewshot_with_a_sweep(bundle):
    made = scores(fewshot(bundle, DATA, shots=(4,), seeds=1, sweep=True, common=CPU))
    assert 2.0**-10 <= made[0]["l2"][0] <= 2.0**19
    assert made[0]["std"] is None


def test_knn(bundle):
    shown = knn(bundle, DATA, k=(1, 5), common=CPU)
    assert [row[0] for row in shown.rows] == ["knn weighted", "knn unweighted"]
    assert all(score["k"] in (1, 5) for score in scores(shown))


def test_linear(bundle, tmp_path):
    probing = Probing(which="mean", cache=str(tmp_path / "elsewhere"), test_split="validation")
    shown = linear(bundle, DATA, l2=(1.0, 0.01), probing=probing, common=CPU)
    assert scores(shown)[0]["l2"] in (1.0, 0.01)
    assert shown.result["test"] == "shapes:colour:validation"
    assert len(list((tmp_path / "elsewhere").iterdir())) == 2


def test_without_shots_as_many_as_every_class_has(bundle):
    assert [row[0] for row in fewshot(bundle, DATA, seeds=1, common=CPU).rows] == ["1-shot", "5-shot"]


def test_more_shots_than_there_are_examples(bundle, tmp_path):
    with pytest.raises(DataError, match=r"11-shot: class .* at most 7 shots"):
        fewshot(bundle, DATA, shots=(11,), common=CPU)
    assert not (tmp_path / "cache").exists()  # said before anything is computed


def test_a_data_set_without_a_test_split(bundle, tmp_path):
    np.savez(tmp_path / "one.npz", x_train=np.zeros((4, 16, 16, 3), np.uint8), y_train=np.array([0, 1, 0, 1]))
    with pytest.raises(ConfigError, match="no split test or validation; it has: train"):
        knn(bundle, str(tmp_path / "one.npz"), common=CPU)
