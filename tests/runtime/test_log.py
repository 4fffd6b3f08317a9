"""What TensorBoard reads of a run that was killed and continued, and the line where it is not installed."""

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.runtime.log import MOST, Board, note, summary_writer, visible


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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]52;c;cm0gLXJmIH4=\x1b\\a", "\\x1b]52;c;cm0gLXJmIH4=\\x1b\\a"),  # would fill the clipboard
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b31mred", "\\x9b31mred"),
        ("gnp.\u202eexe", "gnp.\\u202eexe"),
        ("a\nerror: b\r\u2028c", "a\\nerror: b\\r\\u2028c"),
        (os.fsdecode(b"caf\xe9.png"), "caf\\xe9.png"),
        ("\ud800", "\\ud800"),
        (
            "Entlebucher Sennenhund é 日本語 فارسی 👩‍💻 [bold]",
            "Entlebucher Sennenhund é 日本語 فارسی 👩‍💻 [bold]",
        ),
    ],
)
def test_what_a_terminal_would_obey_is_shown(text, shown, caplog):
    assert visible(text) == shown
    note(text)
    assert caplog.messages == [f"note: {shown}"]


@given(st.text())
def test_visible_text_is_one_line_that_can_be_written_and_stays_as_it_is(text):
    made = visible(text)
    assert made.encode() is not None and len(made.splitlines()) <= 1
    assert visible(made) == made


def test_of_a_very_long_text_both_ends_are_shown():
    made = visible(f"model.json: pool: {'y' * 3_000_000} is not one of token, mean")
    assert made.startswith("model.json: pool: yyy") and made.endswith("y is not one of token, mean")
    assert "3,000," not in made and len(made) < 2 * MOST
    assert visible("y" * MOST) == "y" * MOST
