"""The lines of a run where there is no terminal, and the numbers in them."""

import pytest

from vitrail.runtime import training_display
from vitrail.runtime.training_display import TrainingDisplay, Work


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [100.0]
    monkeypatch.setattr(training_display.time, "perf_counter", lambda: now[0])
    return now


def row(step, **more):
    return {"step": step, "loss": 2.5, "lr": 1e-3, **more}


def test_images_a_second_and_the_part_of_the_peak(clock):
    with TrainingDisplay(Work(steps=100, batch_size=32, flops=1e9, peak=1e12)) as display:
        display.step(row(1))
        assert display.speed() == {}
        clock[0] += 0.5
        display.step(row(3))
    assert display.speed() == pytest.approx({"images_per_second": 128.0, "mfu": 128e9 / 1e12})


def test_metrics_that_are_shown_at_once(clock):
    with TrainingDisplay(Work(steps=100, batch_size=8)) as display:
        for step in (1, 2):
            clock[0] += 1
            display.computed(step)
        display.step(row(1))
        display.step(row(2))
    assert display.speed() == {"images_per_second": 8.0}


def test_without_a_known_peak_there_is_no_part_of_it(clock):
    with TrainingDisplay(Work(steps=100, batch_size=8)) as display:
        for step in (1, 2):
            clock[0] += 1
            display.step(row(step))
    assert display.speed() == {"images_per_second": 8.0}


def test_an_evaluation_is_not_counted_as_training(clock):
    with TrainingDisplay(Work(steps=100, batch_size=10)) as display:
        display.step(row(1))
        clock[0] += 60  # an evaluation
        display.scores({"step": 1, "val_top1": 0.5})
        display.step(row(2))
        clock[0] += 1
        display.step(row(3))
    assert display.speed() == {"images_per_second": 10.0}


def test_old_steps_are_forgotten(clock):
    with TrainingDisplay(Work(steps=1000, batch_size=1)) as display:
        for step in range(1, 200):
            clock[0] += 1.0 if step < 100 else 0.5
            display.step(row(step))
    assert display.speed() == {"images_per_second": pytest.approx(2.0)}


def test_a_resumed_run_estimates_the_time_left_by_its_own_steps(clock, capsys):
    with TrainingDisplay(Work(steps=1000, batch_size=4)) as display:
        display.step(row(901))
        assert display.remaining() is None
        clock[0] += 20
        display.step(row(911))
        assert "ETA 0:02:58" in capsys.readouterr().err  # 89 steps of 2 s
        display.scores({"step": 911, "val_top1": 0.5})
        clock[0] += 30  # an evaluation: part of what is left, too
        display.step(row(921))
    assert display.remaining().total_seconds() == pytest.approx(79 * 50 / 20, abs=1)


def test_plain_lines_now_and_then(clock, capsys):
    broken = iter([0, 3])
    with TrainingDisplay(Work(steps=100, batch_size=4), broken=lambda: next(broken)) as display:
        display.step(row(1))
        assert capsys.readouterr().err == ""
        clock[0] += 20
        display.step(row(2))
        said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("step 2/100  loss 2.5  lr 1.00e-03  0.2 images/s  ETA 0:32:40")
    assert "3 broken" in said.err


def test_scores_are_always_said(capsys):
    with TrainingDisplay(Work(steps=100, batch_size=4)) as display:
        display.scores({"step": 40, "val_top1": 0.87654, "val_loss": 1.0})
    assert capsys.readouterr().err == "step 40/100  val_top1 87.7%  val_loss 1\n"


def test_of_several_processes_one_speaks(clock, capsys):
    with TrainingDisplay(Work(steps=100, batch_size=4), shown=False) as display:
        clock[0] += 100
        display.step(row(1))
        display.scores({"step": 1, "val_top1": 0.5})
    assert capsys.readouterr() == ("", "")


def test_the_board_gets_what_is_recorded_and_is_closed():
    class Kept:
        def __init__(self):
            self.rows, self.closed = [], False

        def add(self, row):
            self.rows.append(row)

        def close(self):
            self.closed = True

    board = Kept()
    with pytest.raises(KeyError), TrainingDisplay(Work(steps=9, batch_size=1), board=board) as display:
        display.record(row(1))
        raise KeyError
    assert board.rows == [row(1)] and board.closed
