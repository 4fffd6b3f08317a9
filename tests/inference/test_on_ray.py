"""A job that was begun without Ray is completed by two of its workers. Takes Ray's start, half a minute."""

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import vitrail
from tests.evaluators.split import named, small_model
from tests.inference.test_bulk import stopped
from tests.inference.test_predict import saved_pictures
from vitrail.errors import ConfigError
from vitrail.inference import bulk
from vitrail.inference.bulk import predict_to
from vitrail.inference.on_ray import PART, split_parts
from vitrail.inference.prediction_job import list_pieces, unfinished

ROOT = Path(__file__).parents[2]
LIMIT = 600  # seconds; it takes about 60 of an idle machine, most of them to start processes
RUN = """
import os, signal, sys
import ray
from vitrail.errors import TrainingError
from vitrail.inference import on_ray
from vitrail.inference.bulk import predict_to, write_pieces
on_ray.PART, on_ray.RETRIES = 4, 1
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
Predictor, model, images, out = on_ray.Predictor, *sys.argv[1:]

class DiesOnRow20(Predictor):
    def __call__(self, part):
        if part["start"][0] <= 20 < part["stop"][0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(part)

class DiesOnce(Predictor):
    def __call__(self, part):
        try:
            (self.folder.parent / "died").touch(exist_ok=False)
        except FileExistsError:
            return super().__call__(part)
        write_pieces(self.model, self.source, range_of(part), self.work, self.folder, lambda: True)
        os.kill(os.getpid(), signal.SIGKILL)

def range_of(part):
    import numpy as np
    return np.arange(part["start"][0], part["stop"][0] - 1)  # all but the last row

on_ray.Predictor = DiesOnRow20
try:
    predict_to(model, images, out, on="ray", batch_size=4)
except TrainingError as error:
    print("refused:", error)
on_ray.Predictor = DiesOnce
written = predict_to(model, images, out, on="ray", batch_size=4)
print("written:", written.rows, written.unreadable, written.done_before)
"""


def test_parts_cover_each_row_once():
    parts = split_parts([(0, 3), (5, 5 + 2 * PART + 1)])
    rows = [row for part in parts for row in range(part["start"], part["stop"])]
    assert (
        rows == [0, 1, 2, *range(5, 6 + 2 * PART)]
        and max(part["stop"] - part["start"] for part in parts) == PART
    )


def test_without_ray_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"vitrail\[ray\]"):
        predict_to(small_model(), saved_pictures(tmp_path / "images", 2), tmp_path / "p.csv", on="ray")
    with pytest.raises(ConfigError, match="here, ray"):
        predict_to(small_model(), tmp_path / "images", tmp_path / "q.csv", on="spark")


@pytest.mark.long
def test_ray_completes_what_was_begun(tmp_path, monkeypatch):
    """Though one worker is killed after it wrote some of its rows; a part that kills each worker ends the job."""
    pytest.importorskip("ray")
    images, out = tmp_path / "images", tmp_path / "ray.parquet"
    saved_pictures(images, 40)[7].write_bytes(b"scribbled over")
    vitrail.save(small_model(class_names=named(7)), tmp_path / "model")
    model = vitrail.load(tmp_path / "model")
    predict_to(model, str(images), tmp_path / "here.parquet", batch_size=4)
    monkeypatch.setattr(bulk, "SAVE_SECONDS", 0.0)
    stopped(monkeypatch, 3, model, str(images), out, batch_size=4)
    before = sum(piece.stop - piece.start for piece in list_pieces(unfinished(out)))
    done = subprocess.run(
        [sys.executable, "-c", RUN, tmp_path / "model", images, out], capture_output=True, text=True, check=False,
        cwd=ROOT, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())  # nothing of Ray's is in between
    assert "worker of Ray failed" in said["refused"] and "same command again continues" in said["refused"]
    rows, unreadable, done_before = map(int, said["written"].split())
    assert (rows, unreadable) == (40, 1) and before <= done_before <= 36
    assert (tmp_path / "died").exists()
    here, there = pq.read_table(tmp_path / "here.parquet"), pq.read_table(out)
    assert all(here[name].equals(there[name]) for name in ("path", "class", "error"))
