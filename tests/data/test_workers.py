"""Workers serve their owner, whatever signals pass, and end with it."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from vitrail.data.loader import Loader
from vitrail.data.preprocess import parse
from vitrail.data.settings import DataSettings
from vitrail.data.sources import open_source
from vitrail.data.workers import end_workers, start_fork_server
from vitrail.errors import ConfigError

READING = """
import multiprocessing, signal, time
from vitrail.data.loader import Loader
from vitrail.data.preprocess import parse
from vitrail.data.settings import DataSettings
from vitrail.data.sources import open_source

told = []

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    source = open_source("shapes?n=64&image_size=16", "train")
    loader = Loader(source, parse("resize(16)|uint8|to_range(-1,1)"), DataSettings(batch_size=4, num_workers=2))
    for i, batch in enumerate(loader.batches()):
        if i == 3:
            print(*(child.pid for child in multiprocessing.active_children()), flush=True)
            {then}
"""
SERVED = """
            while not told:
                time.sleep(0.01)
            until = i + 20
        if i > 3 and i == until:
            print("served", batch["index"].shape, flush=True)
            break
"""
THEN = {
    "an exception": "raise SystemError('on purpose')",
    "Ctrl-C": "time.sleep(60)",
    "SIGKILL": "time.sleep(60)",
    "SIGTERM": SERVED.strip(),
}


@pytest.mark.parametrize(
    "how", [how if how == "SIGKILL" else pytest.param(how, marks=pytest.mark.long) for how in THEN]
)
def test_no_process_is_left_behind(tmp_path, how):
    script = tmp_path / "reading.py"
    script.write_text(READING.replace("{then}", THEN[how]))
    process = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = [int(pid) for pid in process.stdout.readline().split()]
    assert len(children) == 2
    if how in ("Ctrl-C", "SIGTERM"):  # to all of them, as a terminal or a scheduler does
        os.killpg(process.pid, signal.SIGINT if how == "Ctrl-C" else signal.SIGTERM)
    elif how == "SIGKILL":
        process.kill()
    output, errors = process.communicate(timeout=60)
    if how == "SIGTERM":
        # 20 batches more than the workers had prepared: they went on.
        assert (process.returncode, output) == (0, "served torch.Size([4])\n"), errors
        # Python's own tracker may find a semaphore gone of which it has not been told yet.
        lines = errors.splitlines()
        assert all("resource_tracker" in line or "warnings.warn" in line for line in lines), errors
    else:
        assert process.returncode != 0
    if how in ("an exception", "Ctrl-C"):
        assert errors.count("Traceback") == 1  # the workers keep quiet
    deadline = time.monotonic() + 20
    while group_lives(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not group_lives(process.pid)


def group_lives(group):
    """Whether a process of the group is left: a worker, the fork server, multiprocessing's tracker."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


STUCK = """
import multiprocessing, subprocess, time
from vitrail.data.workers import begin_worker, start_fork_server

def stuck(begun):
    begin_worker(0)
    begun.set()
    time.sleep(60)

if __name__ == "__main__":
    start_fork_server(preload="vitrail.data.workers")
    forking = multiprocessing.get_context("forkserver")
    begun = forking.Event()
    worker = forking.Process(target=stuck, args=(begun,), daemon=True)
    worker.start()
    begun.wait()
    subprocess.run(["kill", "-TERM", str(worker.pid)], check=True)
    worker.join(1.5)
    print("after a stranger's SIGTERM", worker.exitcode)
    worker.terminate()
    worker.join()
    print("after its owner's", worker.exitcode)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs to know who sent a signal")
def test_a_worker_obeys_its_owner_alone(tmp_path):
    script = tmp_path / "stuck.py"
    script.write_text(STUCK)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["after a stranger's SIGTERM None", "after its owner's 1"], done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere SIGTERM is not blocked")
def test_a_worker_that_still_starts_is_ended():
    start_fork_server("vitrail.data.loader")
    worker = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(60,))
    worker.start()
    worker.terminate()
    worker.join(0.5)
    assert worker.is_alive()
    begun = time.monotonic()
    end_workers([worker])
    assert not worker.is_alive() and time.monotonic() - begun < 30


def test_a_script_that_does_its_work_on_import_is_told_so(monkeypatch):
    """In the worker that imports it, and in the owner, whose pipe to that worker breaks."""
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(ConfigError, match='below `if __name__ == "__main__":`'):
        start_fork_server("vitrail.data.loader")


def test_a_pipe_that_breaks_as_a_worker_begins(monkeypatch):
    monkeypatch.setattr("vitrail.data.loader.start_fork_server", lambda preload: None)
    monkeypatch.setattr("vitrail.data.loader.DataLoader.__iter__", broken_pipe)
    source = open_source("shapes?n=40&image_size=16", "train")
    loader = Loader(source, parse("resize(16)|to_range(-1, 1)"), DataSettings(batch_size=2, num_workers=1))
    with pytest.raises(ConfigError, match='below `if __name__ == "__main__":`'):
        next(loader.batches())


def broken_pipe(self):
    raise BrokenPipeError
