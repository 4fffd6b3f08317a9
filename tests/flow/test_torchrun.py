"""Commands on two processes, as torchrun starts them: one job, one writer, one table; or one line that refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.randomise import randomise

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.long
pytest.importorskip("tyro")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
COLOURS = ("red", "green", "blue")


def photos(folder):
    rng = np.random.default_rng(0)
    for split, n in {"train": 12, "test": 5}.items():
        for k, name in enumerate(COLOURS):
            (folder / split / name).mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 150, (20, 20, 3), np.uint8)
                pixels[..., k] += 60
                Image.fromarray(pixels).save(folder / split / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The folder, and what was printed."""
    folder = tmp_path_factory.mktemp("together")
    vitrail.save(randomise(vitrail.create("mu/8", classes=7, image_size=16)), folder / "small")
    script, data = ROOT / "tests/flow/verbs_together.py", photos(folder / "photos")
    out = err = ""
    for part in ("stopped", "continued"):
        done = subprocess.run(
            [*TORCHRUN, script, part, data, folder / "small", folder],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
            cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        out, err = out + done.stdout, err + done.stderr
    return folder, out, err


@pytest.fixture(scope="module")
def each(together):
    """What each of the two processes came to: (interrupted, finetune, evaluate, demo)."""
    return [
        [
            one
            for part in ("stopped", "continued")
            for one in json.loads((together[0] / f"{part}-{rank}.json").read_text())
        ]
        for rank in (0, 1)
    ]


def test_a_sweep_is_interrupted_and_continued(together, each):
    folder, out, err = together
    assert [[one["code"] for one in of_process] for of_process in each] == [[143, 0, 0, 2]] * 2
    assert "saved at step 2 of 4 in" in err and "sweep/0.001" in err
    card = json.loads((folder / "run/run.json").read_text())
    assert sorted(path.name for path in (folder / "run/sweep").iterdir()) == ["0.001", "0.03"]
    assert [path.name for path in (folder / "run/seeds").iterdir()] == ["1"]  # the first is the folder itself
    for place in (folder / "run", *(folder / "run").glob("s*/*")):
        rows = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows if "loss" in row] == [1, 2, 3, 4]
    assert out.count("top-5") == 1 and f"at lr {card['results']['lr']:g}, chosen on" in out


def test_all_processes_choose_and_find_the_same(each):
    (_, tuned, measured, _), other = each
    assert tuned["result"]["results"]["lr"] in (0.001, 0.03)
    assert len(tuned["result"]["results"]["scores"]["top1"]["values"]) == 2
    for result in (tuned, other[1]):
        result["result"]["results"].pop("seconds")  # each process has its own clock
    assert (tuned, measured) == (other[1], other[2])


def test_an_evaluation_is_shared_and_written_once(together, each):
    folder, out, _ = together
    alone = vitrail.evaluate(folder / "run/model", folder / "photos")
    measured = each[0][2]["result"]
    assert (measured["n"], measured["top1"]) == (15, alone.top1)
    assert measured["loss"] == pytest.approx(alone.loss, rel=1e-5)
    written = json.loads((folder / "scores.json").read_text())
    assert len(written.pop("mistakes")) == measured["wrong"] and written == measured
    assert out.count("top-1") == 2  # of the fine-tuning, and of the evaluation


def test_the_demo_is_for_one_process(together):
    folder, _, err = together
    assert "error: demo runs on one process: start it without torchrun. " in err
    assert not (folder / "demo").exists()
