"""What a worker decides: the learning rate, the scores, which pieces are ready."""

import json

import pytest

import vitrail
from tests.evaluators.split import small_model
from tests.studies.quick import PATCHES
from vitrail.data.sources import DataSet
from vitrail.errors import ConfigError, TrainingError
from vitrail.studies import work
from vitrail.studies.plan import Choices, make_plan
from vitrail.transfer.tables import claim_piece

COLOURS = "shapes:colour?n=80&image_size=16"


def finish(folder, name, lr, top1, failed=""):
    results = work.failure(failed, lr, 1.0) | {"val": {"val_top1": top1}}
    with claim_piece(folder / "runs" / name, {"lr": lr}) as piece:
        piece.finish(results)


@pytest.fixture
def run_piece():
    plan = make_plan(PATCHES, Choices(seeds=1))
    return next(piece for piece in plan.pieces if piece.name == "8-pixels/seed-1")


@pytest.mark.parametrize(
    ("first", "second", "chosen"), [(0.3, 0.4, 3e-3), (0.4, 0.3, 1e-3), (0.4, 0.4, 1e-3), (None, 0.1, 3e-3)]
)
def test_the_best_trial_gives_the_lr(tmp_path, run_piece, first, second, chosen):
    for name, lr, top1 in zip(run_piece.trials, (1e-3, 3e-3), (first, second), strict=True):
        finish(tmp_path, name, lr, top1)
    assert work.best_lr(run_piece, tmp_path) == chosen


def test_failed_trials_give_none(tmp_path, run_piece):
    for name, lr in zip(run_piece.trials, (1e-3, 3e-3), strict=True):
        finish(tmp_path, name, lr, None, failed="the loss is not finite")
    with pytest.raises(TrainingError, match="none of its trials"):
        work.best_lr(run_piece, tmp_path)


def test_a_piece_waits_for_its_trials(tmp_path, run_piece, monkeypatch):
    plan = make_plan(PATCHES, Choices(seeds=1))
    monkeypatch.setattr(work, "do_piece", lambda *a: work.failure("", 1.0, 1.0))
    assert not work.take_piece(run_piece, plan, tmp_path, "cpu", {})
    for name in run_piece.trials:
        finish(tmp_path, name, 1e-3, 0.5)
    assert work.take_piece(run_piece, plan, tmp_path, "cpu", {})
    assert json.loads((tmp_path / "runs/8-pixels/seed-1/run.json").read_text())["results"]["lr"] == 1.0


def test_a_piece_that_another_worker_does_is_left_to_it(tmp_path, run_piece):
    plan = make_plan(PATCHES, Choices(seeds=1))
    trial = next(piece for piece in plan.pieces if piece.trial)
    with claim_piece(tmp_path / "runs" / trial.name, trial.config(plan)):
        assert not work.take_piece(trial, plan, tmp_path, "cpu", {})


def test_scores_are_means_over_the_data_sets():
    model = small_model()
    data = {}
    transfer = (COLOURS, COLOURS.replace("colour", "shape"))
    scores = work.score_model(
        model, ("top1", "5-shot"), {"test": {"top1": 0.25, "loss": 2.0}}, transfer, data, 0
    )
    assert scores["top1"] == 0.25 and "loss" not in scores
    assert scores["5-shot"] == pytest.approx((scores["5-shot colour"] + scores["5-shot shape"]) / 2)
    one = work.score_model(model, ("5-shot",), {"test": None}, transfer[:1], data, 0)
    (expected,) = vitrail.fewshot(model, COLOURS, shots=(5,))
    assert one == {"5-shot": expected.value}


def test_probes_learn_from_a_few_images_of_each_class():
    few = work.few_of_each(DataSet("shapes:colour?n=800&image_size=16"))
    assert len(few) == 8 * work.PROBED
    assert len(work.few_of_each(DataSet(COLOURS))) == 80


def test_an_unknown_score():
    with pytest.raises(ConfigError, match="N-shot"):
        work.score_model(small_model(), ("accuracy",), {"test": None}, (COLOURS,), {}, 0)
