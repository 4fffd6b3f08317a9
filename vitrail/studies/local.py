"""Several workers on this machine: processes that share the device and the study's folder.

A process that ends before its time is started again a few times: what it was doing is resumed. When this process
ends, however it ends, theirs end too, each after saving.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vitrail.errors import TrainingError
from vitrail.runtime.device import Device
from vitrail.runtime.log import note
from vitrail.studies.work import PAUSE

LOGS = "log"  # folder of their output
RESTARTS = 3  # of all workers together
PATIENCE = 60.0  # seconds that a worker has to save
TAIL = 400  # characters of a log in an error


class Workers:
    """Processes that work on a folder."""

    def __init__(self, folder: Path, count: int, device: Device) -> None:
        self.folder, self.device = folder, device
        (folder / LOGS).mkdir(exist_ok=True)
        self.processes = [self.start(number) for number in range(count)]
        self.restarts = 0

    def start(self, number: int) -> subprocess.Popen[bytes]:
        code = "import sys; from vitrail.studies.work import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", code, str(self.folder), self.device]
        with self.log(number).open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def log(self, number: int) -> Path:
        return self.folder / LOGS / f"worker-{number + 1}.txt"

    def running(self) -> bool:
        """Return whether any works on; start those again that were killed, and raise what stopped one."""
        for number, process in enumerate(self.processes):
            code = process.poll()
            if code in (None, 0):
                continue
            if code == 2 or self.restarts == RESTARTS:
                text = self.log(number).read_text(errors="replace").strip()
                error = (
                    text.rpartition("error: ")[2] if code == 2 else f"ended with code {code}: {text[-TAIL:]}"
                )
                raise TrainingError(f"worker {number + 1}: {error} ({self.log(number)})")
            assert process.stdin is not None
            process.stdin.close()
            self.restarts += 1
            note(f"Worker {number + 1} ended with code {code}: it is started again")
            self.processes[number] = self.start(number)
        return any(process.poll() is None for process in self.processes)

    def stop(self) -> None:
        """Let all save and end."""
        for process in self.processes:
            process.terminate()
        end = time.monotonic() + PATIENCE
        for process in self.processes:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdin is not None
            process.stdin.close()


@contextmanager
def workers(folder: Path, count: int, device: Device) -> Iterator[Callable[[], bool]]:
    """Start workers, yield a function that tells whether they work on, and stop them at the end."""
    started = Workers(folder, count, device)
    try:
        yield started.running
    finally:
        started.stop()


def wait(running: Callable[[], bool], until: float | None, show: Callable[[], object]) -> bool:
    """Wait until all is done (True), or it is time to stop."""
    while running():
        show()
        if until is not None and time.monotonic() > until:
            return False
        time.sleep(PAUSE)
    show()
    return True
