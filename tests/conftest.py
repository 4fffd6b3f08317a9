"""What all tests share."""

import os
import signal
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # models this small only wait for each other on several threads

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
# The same examples each time, however long a busy machine takes over one.
hypothesis.settings.register_profile("vitrail", deadline=None, derandomize=True)
hypothesis.settings.load_profile("vitrail")

# Tests send Ctrl-C; what a shell starts in the background would ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """Reference numbers from the published code; not part of the project."""
    path = SHARED / "fixtures"
    if not path.is_dir():
        pytest.skip("the reference numbers of the published code are not on this machine")
    return path


@pytest.fixture
def vitrail_command(capsys, monkeypatch):
    """Runs a command as a person would; returns its exit code and what it printed."""
    from vitrail.cli import main

    monkeypatch.setenv("COLUMNS", "200")

    def command(*words):
        code = 0
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return command
