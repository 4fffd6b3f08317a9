"""`vitrail demo` as a person uses it: stopped by Ctrl-C, continued, shown again, gone on from."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.demo.small import FLAGS, small, write_model
from vitrail.demo.demo import run_demo

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from vitrail.cli import main; main()"]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with a model, as the words of the command see it."""
    folder = tmp_path_factory.mktemp("here")
    write_model(folder / "mu")
    return folder


@pytest.fixture
def run(vitrail_command, here, monkeypatch):
    monkeypatch.chdir(here)
    return lambda *words: vitrail_command("demo", "--model", "mu", *FLAGS, "--device", "cpu", *words)


@pytest.fixture(scope="module")
def stopped(here):
    """Ctrl-C when two stages are done: the exit code and what was printed."""
    process = subprocess.Popen(
        [*COMMAND, "demo", "--model", "mu", *FLAGS, "--device", "cpu"],
        cwd=here, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while process.poll() is None and not (here / "vitrail-demo/fewshot.json").exists():
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def continued(stopped, here):
    """The same again, to the end."""
    with contextlib.chdir(here):
        return run_demo(small("mu"), device="cpu")


def without_seconds(results):
    return {name: {k: v for k, v in part.items() if k != "seconds"} for name, part in results.items()}


def written(folder):
    files = (
        path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"
    )  # it says who is writing
    return {path: path.stat().st_mtime_ns for path in files}


@pytest.mark.long
def test_ctrl_c_is_one_line(stopped):
    code, out, err = stopped
    assert (code, out) == (128 + signal.SIGINT, ""), err
    (line,) = [line for line in err.splitlines() if not line.startswith("note: ")]
    assert re.fullmatch(
        r"SIGINT: saved at (step|stage) \d of \d in \S+; the same command again continues", line
    )


@pytest.mark.long
def test_it_continues_and_finds_what_an_undisturbed_one_finds(continued, here, monkeypatch):
    monkeypatch.chdir(here)
    assert not continued.finished_before
    whole = json.dumps(run_demo(small("mu"), "whole", device="cpu").results).replace(
        "whole/", "vitrail-demo/"
    )
    assert without_seconds(continued.results) == without_seconds(json.loads(whole))


def test_a_finished_demo_says_everything_at_once(continued, run, here):
    before = written(here / "vitrail-demo")
    code, out, err = run("--json")
    assert code == 0, err
    made = json.loads(out)
    assert {name: made[name] for name in continued.results} == continued.results
    code, out, err = run()
    assert code == 0, err
    for said in (
        "12 classes", "orange", "banana",
        "random weights",
        "1-shot", "5-shot", "fine-tuned", "20 images", "shapes:colour:test", "vitrail-demo/report/report.html",
        "vitrail-demo/demo.png", "rm -r vitrail-demo",
    ):  # fmt: skip
        assert said in out, said
    assert written(here / "vitrail-demo") == before


def test_the_commands_to_go_on_with_work_as_printed(continued, run, here, vitrail_command):
    shown, listed = run()[1], json.loads(run("--json")[1])["next"]
    assert len(listed) == 4 and all(f"  {command}  " in shown for command in listed)
    for command in listed[:2]:
        program, *words = shlex.split(command)
        code, out, err = vitrail_command(*words, "--device", "cpu")
        assert program == "vitrail" and code == 0, err
        assert out
    assert (here / "vitrail-demo/finetuned-page/report.html").is_file()
    code, out, err = vitrail_command(*shlex.split(listed[2])[1:])
    assert code == 2 and "no data set 'FOLDER'" in err  # for the person to put in; all else is accepted
    code, out, err = vitrail_command(*shlex.split(listed[3])[1:], "--host", "nowhere.invalid")
    assert code == 2 and "nowhere.invalid" in err  # the address alone is refused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "shapes:shape?n=80&image_size=16"], "data is"),
        (["--out", "."], "is not a run"),
        (["--data", "nowhere", "--out", "new"], "no data set 'nowhere'"),
        (["--images", "nothing.png", "--out", "new"], "nothing.png"),
        (["--shots", "0", "--out", "new"], "(0,)"),
    ],
)
def test_bad_input_is_one_line(continued, run, here, words, said):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert said in err and err.startswith("error: ") and err.count("\n") == 1
    assert not (here / "new").exists()
