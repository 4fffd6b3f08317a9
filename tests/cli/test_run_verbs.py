import json
from contextlib import closing
from io import StringIO

import pytest
from rich.console import Console

from vitrail.checkpoints.run import Run
from vitrail.cli.run_verbs import final_score, runs
from vitrail.errors import ConfigError


@pytest.fixture
def two_runs(tmp_path):
    for name, lr in (("first", 0.03), ("second", 0.1)):
        run = Run.open(tmp_path / name, {"model": "Ti/8", "data": "[pets]", "steps": 1000, "lr": lr})
        run.append({"step": 500, "loss": 1.25, "lr": lr, "seconds": 61.0})
        run.append({"step": 500, "val_loss": 1.5, "val_top1": 0.4375})
        run.save(500, {}, {}, score=0.5)
        run.close()
    run = Run.open(tmp_path / "second", {"model": "Ti/8", "data": "[pets]", "steps": 1000, "lr": 0.1})
    run.finish({"test": {"top1": 0.625}, "test_examples": 100})
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
    assert (
        "first interrupted, step 500 of 1,000 Ti/8 [pets] 0.03 1.2500 0.5000 at 500 val_top1 43.8% 0:01:01"
        in lines
    )
    assert (
        "second finished, step 500 Ti/8 [pets] 0.1 1.2500 0.5000 at 500 top-1 62.5% (52.3-72.0%, n = 100) 0:01:01"
        in lines
    )
    assert lines[-2:] == ["first lr 0.03", "second lr 0.1"]
    result = json.loads(json.dumps(shown.result, allow_nan=False))
    assert [run["name"] for run in result["runs"]] == ["first", "second"]
    assert result["runs"][1]["results"] == {"test.top1": 0.625}
    assert result["differences"] == {"lr": [0.03, 0.1]}


def test_a_run_that_is_being_trained_is_shown_as_running(two_runs):
    with closing(
        Run.open(two_runs / "first", {"model": "Ti/8", "data": "[pets]", "steps": 1000, "lr": 0.03})
    ) as run:
        run.append({"step": 510, "loss": 1.125, "lr": 0.03})
        lines = printed(runs(str(two_runs)))
    assert any(line.startswith("first running, step 510 of 1,000 ") for line in lines)


def test_in_80_columns_each_run_has_a_line_of_its_own_and_members_of_a_sweep_stand_beneath(
    two_runs, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    inside = two_runs / "second" / "seeds" / "0"
    run = Run.open(inside, {"data": {"data": "pets"}, "training": {"lr": 0.1}})
    run.finish({"val": {"top1": 0.5}, "test": {"top1": 0.625, "top5": 0.875}})
    run.close()
    shown = runs(str(two_runs))
    lines = printed(shown, width=80)
    rows = [line for line in lines if line.startswith(("first ", "second ", "seeds/0 "))]
    assert [line.split(" ")[0] for line in rows] == ["first", "second", "seeds/0", "first", "second"]
    assert rows[0].startswith("first interrupted, step 500 of 1,000 ")
    assert rows[2].startswith("seeds/0 finished ") and "top-1 62.5%" in rows[2]
    assert lines[-2:] == ["first lr 0.03", "second lr 0.1"]
    assert [run["parent"] for run in shown.result["runs"]] == [None, None, "second"]


@pytest.mark.parametrize(
    ("results", "shown"),
    [
        ({"sweep.0.001.val_top1": 0.625, "scores.loss.mean": 2.0, "scores.top1.mean": 0.5}, "top-1 50.0%"),
        ({"val.val_top1": 0.25, "test.top1": 0.75, "test.top5": 1.0}, "top-1 75.0%"),
        ({"val.val_top1": 0.25, "val.val_loss": 1.0}, "val_top1 25.0%"),
        ({"val.val_loss": 1.25}, "val_loss 1.2500"),
        ({"sweep.0.001.val_top1": 0.625}, ""),
        ({}, ""),
    ],
)
def test_the_final_score_is_of_the_test_split_and_never_of_a_sweep(results, shown):
    assert final_score(results) == shown


def test_the_part_that_a_sweep_held_out_is_no_score(tmp_path):
    run = Run.open(tmp_path / "run", {})
    run.finish({"lr": 0.01, "sweep": {"0.01": {"val_top1": 0.5}}, "dev": 0.1, "scores": {}})
    run.close()
    assert runs(str(tmp_path)).result["runs"][0]["results"] == {"sweep.0.01.val_top1": 0.5}


def test_one_run_is_named_by_its_folder_and_compared_with_nothing(two_runs):
    lines = printed(runs(str(two_runs / "first")))
    assert any(line.startswith("first interrupted") for line in lines)
    assert not any("differs" in line for line in lines)


def test_a_broken_run_is_named_and_the_others_are_shown(two_runs):
    (two_runs / "first" / "run.json").write_text("{")
    shown = runs(str(two_runs))
    assert [run["name"] for run in shown.result["runs"]] == ["second"]
    assert len(shown.problems) == 1 and "first" in shown.problems[0]


def test_a_folder_without_runs_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"run\.json"):
        runs(str(tmp_path))


def test_a_setting_that_one_run_leaves_open_is_compared(tmp_path):
    for name, dropout in (("open", None), ("set", 0.3)):
        Run.open(tmp_path / name, {"model": {"dropout": dropout}, "monitor": "val_loss"}).close()
    assert printed(runs(str(tmp_path)))[-2:] == ["open model.dropout None", "set model.dropout 0.3"]


def test_the_best_says_of_what(tmp_path):
    run = Run.open(tmp_path / "a", {"training": {"monitor": "val_loss"}})
    run.save(20, {}, {}, score=-2.267)
    run.close()
    assert "val_loss 2.2670 at 20" in " ".join(printed(runs(str(tmp_path))))
