import contextlib
import os
import signal
import threading

import pytest

from vitrail.errors import Interrupted
from vitrail.runtime.interrupts import Interrupts, interruptible

BOTH = (signal.SIGTERM, signal.SIGINT)


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_is_noted_and_the_program_goes_on(number):
    before = [signal.getsignal(n) for n in BOTH]
    with Interrupts() as interrupts:
        assert interrupts.name == ""
        os.kill(os.getpid(), number)
        assert interrupts.name == number.name
    assert [signal.getsignal(n) for n in BOTH] == before


def test_the_second_ctrl_c_is_not_waited_for():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the second one must come through")
    assert signal.getsignal(signal.SIGINT) == before


def test_under_torchrun_which_passes_ctrl_c_on_the_second_one_changes_nothing(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    assert interrupts.name == "SIGINT"


def test_under_torchrun_the_second_ctrl_c_does_not_disturb_the_end(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    before, ended = signal.getsignal(signal.SIGINT), False
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            try:
                os.kill(os.getpid(), signal.SIGINT)
            finally:
                os.kill(os.getpid(), signal.SIGINT)
                ended = True
        os.kill(os.getpid(), signal.SIGINT)
        assert ended
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_second_sigterm_changes_nothing():
    """Schedulers send it more than once."""
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert interrupts.name == "SIGTERM"


def test_handlers_are_given_back_after_an_error():
    before = [signal.getsignal(n) for n in BOTH]
    with pytest.raises(KeyError), Interrupts():
        raise KeyError
    assert [signal.getsignal(n) for n in BOTH] == before


def test_in_another_thread_no_handler_is_set():
    seen = []

    def work():
        with Interrupts() as interrupts:
            seen.append((interrupts.name, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=work)
    before = signal.getsignal(signal.SIGTERM)
    thread.start()
    thread.join()
    assert seen == [("", before)]


def turned_into_another_error():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        raise ValueError("an extension's own") from None


def lost():
    with contextlib.suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("extension", [turned_into_another_error, lost])
def test_ctrl_c_inside_an_extension_comes_through(extension):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interruptible():
        extension()
    assert signal.getsignal(signal.SIGINT) == before


def test_other_errors_stay_what_they_are():
    with pytest.raises(KeyError), interruptible():
        raise KeyError


def test_what_saved_before_it_stopped_says_so():
    with pytest.raises(Interrupted, match="SIGINT: saved at step 1 of 2 in a"), interruptible():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt as stop:
            raise Interrupted("SIGINT", "step 1 of 2", "a") from stop


def test_a_signal_that_is_ignored_stays_ignored():
    """As a shell does for what it starts in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
