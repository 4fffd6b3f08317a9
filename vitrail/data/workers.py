"""The processes that decode for the loader: how they start, and how they end.

    owner ──► fork server ──► workers

A server that forks the workers is safe beside threads and CUDA, unlike a fork of the owner. Ctrl-C and SIGTERM often
go to the whole process group (a terminal, SLURM, docker, `kill -- -PGID`), and then the owner may still need
batches, to end its step and save. So the others ignore both signals. They end when the owner tells them to, or when
it has ended.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterable
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess

from vitrail.errors import ConfigError

# Elsewhere Python cannot ask who sent a signal: there, any SIGTERM ends a worker.
SENDER_IS_KNOWN = sys.platform == "linux"


UNGUARDED = (
    "a decoding process ended as it started. Each of them imports the script that was started: if that does its "
    'work on import, put it below `if __name__ == "__main__":`, or decode in the main process, with num_workers=0'
)


def start_fork_server(preload: str) -> None:
    """Start it, if there is none, with a module imported and SIGTERM blocked: both are passed on to the workers."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # Python's own mark of a worker that is still importing the script; Python's own message is less clear.
        raise ConfigError(UNGUARDED)
    forkserver.set_forkserver_preload([preload])
    resource_tracker.ensure_running()  # first: the fork server would start it, and that unblocks SIGTERM
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM] if SENDER_IS_KNOWN else [])
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_worker(_: int) -> None:
    """Ignore Ctrl-C in a new worker, and let it end with its owner."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if SENDER_IS_KNOWN:  # blocked already, unless the fork server was started by somebody else
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    threading.Thread(target=end_with_owner, daemon=True).start()


def end_workers(workers: Iterable[BaseProcess]) -> None:
    """Kill those that were told to end and still start: while the owner ends, they would lose their semaphores, and
    print a traceback. SIGTERM is blocked until they have started."""
    for worker in workers:
        if worker.is_alive():
            worker.kill()
        worker.join()


def end_with_owner() -> None:
    # torch's own watch looks at the parent, which here is the fork server, and that waits for its workers.
    owner = multiprocessing.parent_process()
    assert owner is not None
    if not SENDER_IS_KNOWN:
        owner.join()
    while owner.is_alive():
        received = signal.sigtimedwait([signal.SIGTERM], 1.0)
        if received is not None and received.si_pid == owner.pid:
            break
    os._exit(1)
