"""Set-up, options and fixtures that all tests share."""

import importlib.util
import os
import signal
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # models this small only wait for each other on several threads

import pytest
import torch

torch.set_num_threads(1)

if importlib.util.find_spec("hypothesis"):
    import hypothesis

    # The same examples each time, however long a busy machine takes over one.
    hypothesis.settings.register_profile("vitrail", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("vitrail")

# Tests send Ctrl-C; a process that a shell started in the background would ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = Path(__file__).parents[2] / "shared"
OURS = ("vitrail", "tests", "benchmarks")


def pytest_addoption(parser):
    parser.addoption(
        "--skip-missing", action="store_true", help="skip tests that need a package that is not installed"
    )


class TestFile(pytest.Module):
    def _getobj(self):
        try:
            return super()._getobj()
        except self.CollectError as error:
            skip_if_missing(self.config, error.__cause__)
            raise


def pytest_pycollect_makemodule(module_path, parent):
    return TestFile.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    try:
        return (yield)
    except ModuleNotFoundError as error:
        skip_if_missing(item.config, error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    except ModuleNotFoundError as error:
        skip_if_missing(item.config, error)
        raise


def skip_if_missing(config, error):
    """Skip where --skip-missing allows it and the module that is not found is another project's."""
    if config.getoption("--skip-missing") and isinstance(error, ModuleNotFoundError):
        package = error.name.partition(".")[0]
        if package not in OURS:
            pytest.skip(f"{package} is not installed", allow_module_level=True)


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


@pytest.fixture
def without_heif(monkeypatch):
    """HEIC as where pi-heif is not installed, whether it is or not."""
    from vitrail.data.readers.file_names import EXTENSIONS, HEIC

    monkeypatch.setattr("vitrail.data.readers.file_names.EXTENSIONS", EXTENSIONS - HEIC)
    monkeypatch.setattr("vitrail.data.decode.heif_installed", lambda: False)
