"""What TensorBoard reads of a run that was killed and continued, and the line where it is not installed."""

import sys

import pytest

from vitrail.errors import ConfigError
from vitrail.runtime.log import Board, summary_writer


def read(folder):
    kind = "tensorboard.backend.event_processing.event_accumulator"
    events = pytest.importorskip(kind, reason="tensorboard is not installed").EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_each_step_is_there_once_after_a_kill(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    killed = Board(tmp_path)
    for step in range(1, 8):
        killed.add({"step": step, "loss": 1 / step, "name": "left out"})
    assert read(tmp_path)["loss"][-1][0] == 7  # it was never closed
    second = Board(tmp_path)
    for step in range(5, 11):  # from the checkpoint of step 4
        second.add({"step": step, "loss": 2.0**-step})
    second.add({"step": 10, "val_top1": 0.5})
    second.close()
    wanted = [(step, pytest.approx(1 / step if step < 5 else 2.0**-step)) for step in range(1, 11)]
    assert read(tmp_path) == {"loss": wanted, "val_top1": [(10, 0.5)]}


def test_without_the_package_one_line_says_so(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(
        ConfigError, match=r"tensorboard is not installed: pip install 'vitrail\[tensorboard\]'"
    ):
        summary_writer()


def test_a_board_without_rows_leaves_nothing(tmp_path):
    Board(tmp_path / "board").close()
    assert not (tmp_path / "board").exists()
