"""`make test VENV=none` installs nothing, and skips tests that need a package that is not there."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("target", ["test", "test-fast", "test-long"])
def test_nothing_is_installed_without_an_environment(target):
    words = ["make", "-n", "--no-print-directory", target, "VENV=none", f"PYTHON={sys.executable}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    (command,) = done.stdout.splitlines()
    assert command.startswith(f"{sys.executable} -m pytest --skip-missing")


def test_a_missing_package_is_a_reason_to_skip(tmp_path):
    (tmp_path / "test_file.py").write_text("import no_such_package\n")
    (tmp_path / "test_function.py").write_text("def test_it():\n    import no_such_package.part\n")
    words = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", "/dev/null", "-rs", str(tmp_path)]
    done = subprocess.run([*words, "--skip-missing"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 5), done.stdout  # 5: nothing was left to run
    assert "2 skipped" in done.stdout and "no_such_package is not installed" in done.stdout
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout
