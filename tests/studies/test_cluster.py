"""A study on a Ray cluster of this machine: two workers, one of which is killed."""

import os
import signal
import time

import pytest

from tests.studies.quick import PATCHES, run, table
from vitrail.errors import ConfigError
from vitrail.studies import Machine
from vitrail.studies.cluster import import_ray


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_two_workers_of_which_one_is_killed(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    run(PATCHES, tmp_path / "here", seeds=3)
    killed = []

    def kill_one(running, until, show):
        end = time.monotonic() + 150
        while running():
            assert time.monotonic() < end
            if not killed:
                killed.extend(working(tmp_path / "ray")[:1])
                for process in killed:
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.02)
        return True

    monkeypatch.setattr("vitrail.studies.run.wait", kill_one)
    run(PATCHES, tmp_path / "ray", Machine(on="ray", at_once=2), seeds=3)
    assert killed
    assert table(tmp_path / "ray") == table(tmp_path / "here")


def working(folder):
    """Return the processes that hold locks of training runs."""
    texts = [path.read_text() for path in folder.glob("runs/*/*/run/.lock")]
    return [int(text.split()[1]) for text in texts if text.startswith("process ")]


def test_without_ray(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ConfigError, match=r"vitrail\[ray\]"):
        import_ray()
