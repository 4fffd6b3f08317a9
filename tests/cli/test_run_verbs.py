import json
from io import StringIO

import pytest
from rich.console import Console

from vitrail.checkpoints.run import Run
from vitrail.cli.run_verbs import final_score, runs
from vitrail.errors import ConfigError
from vitrail.train.experiment import Experiment, Training


@pytest.fixture
def two_runs(tmp_path):
    for name, rate in (("first", 0.03), ("second", 0.1)):
        run = Run.open(tmp_path / name, {"model": "Ti/8", "data": "[pets]", "steps": 1000, "rate": rate})
        run.append({"step": 500, "loss": 1.25, "seconds": 61.0})
        run.save(500, {}, {}, score=0.5)
        run.close()
    run = Run.open(tmp_path / "second", {"model": "Ti/8", "data": "[pets]", "steps": 1000, "rate": 0.1})
    run.finish({"test_top1": 0.625, "n": 100})
    run.close()
    return tmp_path


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "220")


def printed(shown, width=220):
    page = StringIO()
    Console(file=page, width=width).print(shown.body)
    return [" ".join(line.split()) for line in page.getvalue().splitlines() if line.strip()]


def test_runs_are_listed_and_compared(two_runs):
    shown = runs(str(two_runs))
    lines = printed(shown)
    assert "first at step 500 of 1,000 Ti/8 [pets] 1,000 0.03 1.2500 0.5 at 500 - 61" in lines
    assert "second finished Ti/8 [pets] 1,000 0.1 1.2500 0.5 at 500 test_top1 0.625 61" in lines
    assert lines[lines.index("what differs") + 2 :] == ["first rate 0.03", "second rate 0.1"]
    result = json.loads(json.dumps(shown.result, allow_nan=False))
    assert [run["name"] for run in result["runs"]] == ["first", "second"]
    assert result["runs"][1]["results"] == {"test_top1": 0.625}
    assert result["differences"] == {"rate": [0.03, 0.1]}


def test_in_80_columns_each_run_has_a_line_of_its_own(two_runs, monkeypatch):
    """A fine-tuning has other settings than the runs inside it: these are not compared with each other."""
    monkeypatch.setenv("COLUMNS", "80")
    inside = two_runs / "second" / "seeds" / "0"
    run = Run.open(inside, {"data": {"data": "pets"}, "training": {"rate": 0.1}})
    run.finish({"val": {"top1": 0.5}, "test": {"top1": 0.625, "top5": 0.875}})
    run.close()
    lines = printed(runs(str(two_runs)), width=80)
    for wanted in ("first at step 500 of 1,000 ", "second finished ", "second/seeds/0 finished "):
        assert len([line for line in lines if line.startswith(wanted)]) == 1
    assert "top1 0.625" in next(line for line in lines if line.startswith("second/seeds/0"))
    assert lines[-3:] == ["first rate 0.03", "second rate 0.1", "second/seeds/0 -"]


@pytest.mark.parametrize(
    ("results", "shown"),
    [
        ({"sweep.0.001.val_top1": 0.625, "scores.loss.mean": 2.0, "scores.top1.mean": 0.5}, "top1 0.5"),
        ({"val.val_top1": 0.25, "test.top1": 0.75, "test.top5": 1.0}, "top1 0.75"),
        ({"val.val_top1": 0.25, "val.val_loss": 1.0}, "val_top1 0.25"),
        ({"sweep.0.001.val_top1": 0.625}, "-"),
        ({}, "-"),
    ],
)
def test_the_final_score_is_of_the_test_split_and_never_of_a_sweep(results, shown):
    assert final_score(results) == shown


def test_the_part_that_a_sweep_held_out_is_no_score(tmp_path):
    run = Run.open(tmp_path / "run", {})
    run.finish({"rate": 0.01, "sweep": {"0.01": {"val_top1": 0.5}}, "dev": 0.1, "scores": {}})
    run.close()
    assert runs(str(tmp_path)).result["runs"][0]["results"] == {"sweep.0.01.val_top1": 0.5}


def test_one_run_is_named_by_its_folder_and_compared_with_nothing(two_runs):
    lines = printed(runs(str(two_runs / "first")))
    assert any(line.startswith("first at step") for line in lines)
    assert not any("differs" in line for line in lines)


def test_a_broken_run_is_named_and_the_others_are_shown(two_runs):
    (two_runs / "first" / "run.json").write_text("{")
    shown = runs(str(two_runs))
    assert [run["name"] for run in shown.result["runs"]] == ["second"]
    assert len(shown.problems) == 1 and "first" in shown.problems[0]


def test_a_folder_without_runs_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="no run below"):
        runs(str(tmp_path))


def test_a_setting_that_one_run_leaves_open_is_compared(tmp_path):
    for name, dropout in (("open", None), ("set", 0.3)):
        Run.open(tmp_path / name, {"model": {"dropout": dropout}, "watch": "val_loss"}).close()
    assert printed(runs(str(tmp_path)))[-2:] == ["open model.dropout None", "set model.dropout 0.3"]


def test_the_best_says_of_what(tmp_path):
    run = Run.open(tmp_path / "a", Experiment(training=Training(watch="val_loss")).identity())
    run.save(20, {}, {}, score=-2.267)
    run.close()
    assert "val_loss 2.267 at 20" in " ".join(printed(runs(str(tmp_path))))
