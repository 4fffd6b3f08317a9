"""Signals that ask a program to stop.

Interrupts        SIGTERM and Ctrl-C as a wish that is granted at the end of a step, when all can be saved
interruptible()   Ctrl-C at once, and always as KeyboardInterrupt
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from vitrail.errors import Interrupted


class Interrupts:
    """Inside, `name` says which signal came; empty: none. A second Ctrl-C is not waited for."""

    def __init__(self) -> None:
        self.name = ""
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            for number in (signal.SIGTERM, signal.SIGINT):
                self.before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.name and number == signal.SIGINT and not doubled():
            raise KeyboardInterrupt
        self.name = signal.Signals(number).name


@contextmanager
def interruptible() -> Iterator[None]:
    """Compiled code may make an error of its own of KeyboardInterrupt, or lose it: it comes through all the same."""
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
    """Under torchrun a Ctrl-C comes twice, from the terminal and from torchrun, which ends who takes too long: the
    second one must not stop the saving that the first one asked for."""
    return "TORCHELASTIC_RUN_ID" in os.environ
