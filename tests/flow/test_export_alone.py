"""The program of an exported folder, in an environment that has only what its README names."""

import re
import subprocess
import venv

import pytest
from PIL import Image

import vitrail
from tests.exporting.small import photographs

pytest.importorskip("onnxruntime")


@pytest.mark.long
@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_the_program_runs_where_its_readme_says(to, tmp_path):
    pytest.importorskip("onnxruntime" if to == "onnx" else "openvino")
    vitrail.export("ti8-64", tmp_path / "out", to, timing=False)
    images = photographs(16)
    paths = []
    for i, image in enumerate(images):
        paths.append(tmp_path / f"{i:02}.png")
        Image.fromarray(image).save(paths[-1])
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    packages = re.findall(r"pip install (.+)", readme)[0].split()
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    installed = subprocess.run(
        [python, "-m", "pip", "install", "-q", *packages], capture_output=True, text=True, check=False
    )
    if installed.returncode:
        pytest.skip("packages cannot be installed on this machine")
    assert subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode
    done = subprocess.run(
        [python, tmp_path / "out" / "run.py", *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first = [line for i, line in enumerate(done.stdout.splitlines()) if i % 5 == 0]
    for line, prediction in zip(first, vitrail.predict("ti8-64", images, top=1), strict=True):
        assert prediction[0][0] in line
