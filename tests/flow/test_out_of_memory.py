"""Memory that really runs out: one line on standard error and exit code 2."""

import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from vitrail.cli import main
main(sys.argv[1:])
"""


def shapes(image_size, n):
    return f"shapes:colour?n={n}&image_size={image_size}"


def failed(command, folder):
    """The lines that it printed on standard error."""
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not limit the address space")
@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (
            ["finetune", "--model", "ti8-64", "--data", shapes(32, 200), "--batch-size", 99, "--image-size", 512],
            "--batch-size",
        ),
        (["predict", "ti8-64", "pictures", "--image-size", 8192], "--image-size"),
        (["evaluate", "model", shapes(64, 80), "--image-size", 8192], "--image-size"),
    ],
    ids=["finetune", "predict", "evaluate"],
)  # fmt: skip
def test_the_memory_of_the_machine(words, flag, tmp_path):
    import numpy as np
    from PIL import Image

    import vitrail

    (tmp_path / "pictures").mkdir()
    for i in range(32):
        Image.fromarray(np.full((64, 64, 3), i, np.uint8)).save(tmp_path / "pictures" / f"{i}.png")
    vitrail.save(vitrail.create("mu/16@512", classes=8), tmp_path / "model")
    said = failed([sys.executable, "-c", LIMITED, *words, "--device", "cpu"], tmp_path)
    assert said[-1].startswith("error: out of memory") and flag in said[-1]
    assert all(line.startswith("note: ") for line in said[:-1])


SMALL = 'mount -t tmpfs -o size=256k tmpfs /dev/shm && exec "$0" "$@"'  # over the large one, for this process alone


def test_shared_memory(tmp_path):
    apart = ["unshare", "-m", "sh", "-c", SMALL]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small /dev/shm")
    words = [
        "finetune",
        "--model",
        "ti8-64",
        "--data",
        shapes(64, 200),
        "--batch-size",
        64,
        "--num-workers",
        2,
        "--out",
        "run",
    ]
    said = failed([*apart, sys.executable, "-m", "vitrail", *words, "--device", "cpu"], tmp_path)[-1]
    assert said.startswith("error: out of shared memory") and "--num-workers 0" in said and "run" in said
