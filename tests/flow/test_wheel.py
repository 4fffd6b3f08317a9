"""The wheel: what is in it and what is not, and that it works by itself, away from the repository."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "vitrail"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with a wheel and a source archive; hatchling builds both without a network."""
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("*.whl")
    return path


def package_files():
    return {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_it_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert inside == package_files()
    assert {
        "vitrail/assets/ti8-64/model.safetensors",
        "vitrail/assets/ti8-64/model.json",
        "vitrail/assets/ti8-64/README.md",
        "vitrail/assets/imagenet-1k.json",
        "vitrail/assets/pictures/orange.png",
        "vitrail/inspection/page/report.html",
        "vitrail/inspection/page/explorer.html",
        "vitrail/py.typed",
    } <= inside


def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return archive.read(name).decode().splitlines()


def test_torchvision_is_asked_for_by_extras_only(wheel):
    needs = [line for line in metadata(wheel) if line.startswith("Requires-Dist: torchvision")]
    assert needs and all("extra ==" in line for line in needs)


def test_it_says_that_the_weights_have_a_license_of_their_own(wheel):
    (line,) = [line for line in metadata(wheel) if line.startswith("License-Expression: ")]
    assert "Apache-2.0" in line and "non-commercial" in line
    assert "License-File: vitrail/assets/ti8-64/README.md" in metadata(wheel)


def test_the_source_archive_holds_what_the_wheel_needs(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert package_files() | {"pyproject.toml", "README.md", "LICENSE"} <= inside
    assert {name.partition("/")[0] for name in inside} <= {
        "vitrail", "tests", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO", ".gitignore",
    }  # fmt: skip


def test_it_predicts_away_from_the_repository(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    pixels = np.random.default_rng(0).integers(0, 256, (70, 90, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}

    def python(*words):
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = Path(python("-c", "import vitrail; print(vitrail.__file__)").strip())
    assert where.is_relative_to(tmp_path / "installed")
    made = json.loads(python("-m", "vitrail", "predict", "ti8-64", "photo.png", "--json", "--device", "cpu"))
    assert len(made["images"][0]["top"]) == 5


@pytest.mark.long
def test_the_demo_runs_from_the_wheel_in_an_empty_environment(tmp_path):
    """pip builds and installs it; torch and the other dependencies are those of this environment, by a .pth file."""
    for name in ("hatchling", "pip"):
        pytest.importorskip(name, reason=f"{name} is not installed")

    def call(*words):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            list(map(str, words)),
            cwd=tmp_path / "empty",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "empty").mkdir()
    pip = [sys.executable, "-m", "pip"]
    call(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    call(*pip, "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    packages = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = call(python, "-c", "import vitrail; print(vitrail.__file__)").strip()
    assert Path(where).is_relative_to(packages)
    quick = ("--steps", "4", "--shots", "1", "--seeds", "1", "--max-images", "60", "--pictures", "4")
    results = json.loads(
        call(tmp_path / "venv" / "bin" / "vitrail", "demo", *quick, "--device", "cpu", "--json")
    )
    assert results
    assert (tmp_path / "empty" / "vitrail-demo" / "demo.png").is_file()
    assert (tmp_path / "empty" / "vitrail-demo" / "report" / "report.html").is_file()
