"""Studies from start to end: what is in the folder, what is computed once, what survives a kill."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.studies.quick import PATCHES, run, table, two_points
from vitrail.errors import ConfigError
from vitrail.studies import Machine, work
from vitrail.studies import local as local_workers
from vitrail.studies.names import STUDIES


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a study that ran without interruption."""
    folder = tmp_path_factory.mktemp("whole") / "patches"
    return run(PATCHES, folder, seeds=3), folder


def test_the_folder_of_a_study(whole):
    finished, folder = whole
    assert {p.name for p in folder.iterdir() if not p.name.startswith(".")} == {
        "plan.json", "runs", "results.csv", "figure.png", "figure.svg", "page.html", "page.md",
    }  # fmt: skip
    rows = table(folder)
    assert [row["kind"] for row in rows].count("trial") == 2
    assert [(row["point"], row["seed"]) for row in rows if row["kind"] == "run"] == [
        (point, seed) for point in ("8 pixels", "16 pixels") for seed in "123"
    ]
    for row in rows:
        assert (
            row["numerics"]
            and row["computed"]
            and float(row["exaflops"]) > 0
            and int(row["train_examples"]) > 0
        )
    assert {row["seed"] for row in rows if row["kind"] == "trial"} == {"0"}
    assert finished.results.points["top1"]["8 pixels"].tuned


def test_lr_is_the_best_of_the_trials_on_held_out_train(whole):
    _, folder = whole
    trials = [row for row in table(folder) if row["kind"] == "trial"]
    assert all(row["score top1"] == "" for row in trials)  # the test split is not for choices
    best = min(trials, key=lambda row: (-float(row["val_top1"]), float(row["lr"])))
    assert {row["lr"] for row in table(folder) if row["kind"] == "run"} == {best["lr"]}


def test_the_page_has_everything(whole):
    finished, folder = whole
    page = (folder / "page.md").read_text()
    for text in (
        PATCHES.statement,
        finished.verdict,
        "8 pixels",
        "figure.png",
        "numerics",
        "vitrail study patches",
    ):
        assert text in page
    html = (folder / "page.html").read_text()
    assert "data:image/png" in html and PATCHES.statement in html


def test_what_is_done_is_not_done_again(whole, tmp_path, monkeypatch):
    _, folder = whole
    again = shutil.copytree(folder, tmp_path / "again")
    before = (again / "results.csv").read_bytes()
    monkeypatch.setattr(work, "run", lambda *a, **k: pytest.fail("a finished run was trained again"))
    run(PATCHES, again, seeds=3)
    assert (again / "results.csv").read_bytes() == before


def test_one_more_seed_runs_only_that(whole, tmp_path, monkeypatch):
    _, folder = whole
    again = shutil.copytree(folder, tmp_path / "again")
    trained = []
    monkeypatch.setattr(work, "run", lambda e, out, **k: trained.append(out) or original(e, out, **k))
    run(PATCHES, again, seeds=4)
    assert sorted(path.parent.relative_to(again / "runs").as_posix() for path in trained) == [
        "16-pixels/seed-4", "8-pixels/seed-4",
    ]  # fmt: skip
    kept = {row["folder"]: row for row in table(again)}
    assert all(kept[row["folder"]] == row for row in table(folder))


original = work.run


def test_other_settings_are_another_study(whole, tmp_path):
    again = shutil.copytree(whole[1], tmp_path / "again")
    with pytest.raises(ConfigError, match="steps is 3 there, 4 here"):
        run(PATCHES, again, seeds=4, override=("steps=4", "batch_size=8", "log_every=1", "save_every=1"))


def test_runs_of_other_numerics_are_refused(whole, tmp_path):
    again = shutil.copytree(whole[1], tmp_path / "again")
    file = again / "runs/8-pixels/seed-1/run.json"
    content = json.loads(file.read_text())
    content["versions"]["numerics"] = "1"
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="numerics 1"):
        run(PATCHES, again, seeds=3)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match=re.escape("has no plan.json")):
        run(PATCHES, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def test_a_loss_that_is_not_finite_is_a_result(tmp_path):
    finished = run(
        PATCHES, tmp_path / "out", override=("steps=3", "batch_size=8", "lr=1e30", "grad_clip=0.0")
    )
    assert set(finished.results.failed) == {"8-pixels/seed-1", "16-pixels/seed-1"}
    assert "not finite" in (tmp_path / "out/page.md").read_text()


QUICK = ("head", "shape", "self-supervision")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in STUDIES]
)
def test_every_study(name, tmp_path):
    quick = ("steps=2", "batch_size=8", "save_every=0")
    finished = run(STUDIES[name], tmp_path / name, points=two_points(name), override=quick)
    score = STUDIES[name].scores[0]
    assert set(finished.results.points[score]) == set(two_points(name))
    assert not finished.results.left and not finished.results.failed
    assert "cannot be told" in finished.verdict  # of one seed


KILLED = """
import sys
from tests.studies.quick import PATCHES, run
run(PATCHES, sys.argv[1], seeds=3)
"""


@pytest.mark.long
def test_killed_again_and_again_it_ends_with_the_same_table(whole, tmp_path):
    out, kills = tmp_path / "killed", 0
    for after in (6, 12, 20):  # finished files by which it is killed
        process = subprocess.Popen([sys.executable, "-c", KILLED, out], stderr=subprocess.DEVNULL)
        while process.poll() is None and len(list(out.glob("runs/*/*/run/metrics.jsonl"))) * 3 < after:
            time.sleep(0.01)
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert kills >= 2
    run(PATCHES, out, seeds=3)
    assert table(out) == table(whole[1])


@pytest.mark.long
def test_several_processes_of_which_one_is_killed(whole, tmp_path, monkeypatch):
    killed = []

    def kill_one(running, until, show):
        while running():
            if not killed and len(list(tmp_path.glob("out/runs/*/*/run/metrics.jsonl"))) > 2:
                killed.append(started[0].processes[0].pid)
                os.kill(killed[0], signal.SIGKILL)
            time.sleep(0.05)
        return True

    started = []
    monkeypatch.setattr(local_workers.Workers, "__init__", remember(started, local_workers.Workers.__init__))
    monkeypatch.setattr("vitrail.studies.run.wait", kill_one)
    run(PATCHES, tmp_path / "out", Machine(at_once=2), seeds=3)
    assert killed
    assert table(tmp_path / "out") == table(whole[1])


def remember(started, init):
    def wrapped(self, *given):
        started.append(self)
        init(self, *given)

    return wrapped


@pytest.mark.long
def test_after_its_minutes_it_stops_and_continues(whole, tmp_path):
    first = run(PATCHES, tmp_path / "out", Machine(at_once=2, minutes=0.1), seeds=3)
    assert first.results.left
    assert "Unfinished" in (tmp_path / "out/page.md").read_text()
    assert not run(PATCHES, tmp_path / "out", Machine(at_once=2), seeds=3).results.left
    assert table(tmp_path / "out") == table(whole[1])
