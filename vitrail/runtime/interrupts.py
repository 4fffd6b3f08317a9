"""Signals that ask a program to stop.

Interrupts        notes SIGTERM and Ctrl-C, for a loop that stops at the end of a step, when all can be saved
interruptible()   stops at once, and always with KeyboardInterrupt
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from vitrail.errors import Interrupted


class Interrupts:
    """While entered, note in `name` which signal came; a second Ctrl-C raises KeyboardInterrupt."""

    name = ""

    def __enter__(self) -> Interrupts:
        main = threading.current_thread() is threading.main_thread()  # only there may handlers be set
        numbers = (signal.SIGTERM, signal.SIGINT) if main else ()
        self.before = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.name and number == signal.SIGINT and not doubled():
            raise KeyboardInterrupt
        self.name = signal.Signals(number).name


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C, even if compiled code loses it or turns it into another error."""
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if not (came and doubled()):
            came = True
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    ours = threading.current_thread() is threading.main_thread() and callable(before)  # else: it is ignored
    if ours:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception as error:
        if came and not isinstance(error, Interrupted):
            raise KeyboardInterrupt from error
        raise
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_IGN if came and doubled() else before)
    if came:
        raise KeyboardInterrupt


def doubled() -> bool:
    """Return whether each Ctrl-C comes twice, as under torchrun: from the terminal and from torchrun. The second one
    must not stop the saving that the first one started."""
    return "TORCHELASTIC_RUN_ID" in os.environ
