import os
import signal
import threading

import pytest

from vitrail.runtime.interrupts import Interrupts

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
