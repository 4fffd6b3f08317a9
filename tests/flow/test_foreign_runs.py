"""Runs that somebody else made, or that were damaged: each field of their files replaced by each of many dangers.

Whatever stands there, `vitrail runs` lists the other runs, and resuming and predicting end with one line.
"""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.checkpoints.run.state import seal
from vitrail.errors import ConfigError
from vitrail.runtime import training_display
from vitrail.train import fit

DATA = ("--data", "shapes?image_size=16&n=80", "--device", "cpu", "--batch-size", "8")
PRETRAIN = (
    "pretrain",
    *DATA,
    "--model",
    "mu/8@16",
    "--save-every",
    "2",
    "--evaluate-every",
    "2",
    "--log-every",
    "1",
)
# As JSON writes them.
DANGERS = {
    "null": "null",
    "true": "true",
    "negative": "-1",
    "fraction": "0.5",
    "many digits": "1" + "0" * 400,
    "far too many digits": "1" + "0" * 5000,
    "beyond float": "1e400",
    "the largest float": "1.7e308",
    "the largest whole number": "9" * 20,
    "NaN": "NaN",
    "text": '"text"',
    "no text": '""',
    "long text": json.dumps("x" * 300_000),
    "escapes": '"\\u001b]0;title\\u0007\\u001b[2J\\n\\u202e"',
    "half a surrogate": '"\\ud800"',
    "a path": '"../../../../etc/passwd"',
    "list": "[]",
    "object": "{}",
    "mixture": '[1, "a", null, {"b": []}]',
    "nested lists": "[" * 900 + "]" * 900,
    "nested objects": '{"a":' * 900 + "1" + "}" * 900,
    "twice": '{"a": 1, "a": 2}',
}
STEP = "checkpoints/step-00000002"
FILES = {
    "finished": ("run.json", "metrics.jsonl"),
    "stopped": ("run.json", "metrics.jsonl", f"{STEP}/facts.json", f"{STEP}/manifest.json"),
    "tuned": ("run.json", "seeds/1/run.json"),
}
STEPS = {"finished": 2, "stopped": 4}


class StopError(ConfigError):
    """Where the test has seen enough: the run would have gone on."""


def command_of(name: str, folder: Path) -> list[str]:
    if name == "tuned":
        return [
            "finetune",
            *DATA,
            "--model",
            str(folder.parent / "finished/model"),
            "--steps",
            "2",
            "--seeds",
            "2",
            "--out",
            str(folder),
        ]
    return [*PRETRAIN, "--steps", str(STEPS[name]), "--out", str(folder)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run, one that was stopped, a fine-tuning; and an image."""
    from vitrail.cli import main

    top = tmp_path_factory.mktemp("foreign")
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(top / "image.png")

    def stop(display: object, row: dict[str, Any]) -> None:
        if row["step"] == 3:
            raise StopError("stop")

    for name in FILES:
        with pytest.MonkeyPatch.context() as patch:
            if name == "stopped":
                patch.setattr(training_display.TrainingDisplay, "step", stop)
            try:
                main(command_of(name, top / "runs" / name))
            except SystemExit as end:
                assert end.code == (2 if name == "stopped" else 0)
    return top


@pytest.fixture
def safe(runs, tmp_path, vitrail_command, monkeypatch):
    """Check what the verbs make of a changed file of a run."""
    monkeypatch.setattr(fit.Loop, "update", lambda *_: (_ for _ in ()).throw(StopError("went on")))
    monkeypatch.chdir(runs)

    def check(name: str, file: str, content: bytes) -> None:
        folder = runs / "runs" / name
        kept = shutil.copytree(folder, tmp_path / "kept")
        try:
            (folder / file).write_bytes(content)
            if file.startswith(STEP) and not file.endswith("manifest.json"):
                (folder / STEP / "manifest.json").unlink()
                seal(folder / STEP)
            code, out, err = vitrail_command("runs", runs / "runs")
            assert all(other in out for other in {"finished", "stopped"} - {name})
            one_line(code, err)
            json.loads(vitrail_command("runs", runs / "runs", "--json")[1])
            for words in (command_of(name, folder), ["predict", str(folder), "image.png"]):
                code, out, err = vitrail_command(*words)
                one_line(code, err)
        finally:
            shutil.rmtree(folder)
            kept.rename(folder)

    return check


def one_line(code: int, err: str) -> None:
    """Exit code 2 comes with what is wrong; nothing moves the cursor, nothing is a traceback."""
    assert code in (0, 2), err
    assert not set(err) & {"\x1b", "\x07", "\u202e"} and "Traceback" not in err
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert bool(errors) == (code == 2) and all(len(line) < 5000 for line in errors)


def changed(path: Path, danger: str) -> dict[str, bytes]:
    """The file with one of its values replaced, by the name of that value."""
    text = path.read_text()
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    value = json.loads(lines[-1])
    contents = {}
    for where in places(value):
        mark = json.dumps(replaced(value, where, "@@@")).replace('"@@@"', DANGERS[danger])
        contents[".".join(map(str, where))] = "\n".join([*lines[:-1], mark, ""]).encode()
    return contents


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*at, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*at, 0))


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = replaced(value[at[0]], at[1:], new)
    return copy


ALL = [(name, file) for name, files in FILES.items() for file in files]


@pytest.mark.parametrize(("name", "file"), ALL, ids=lambda part: part)
def test_some_fields_replaced(runs, safe, name, file):
    chance = random.Random(f"{name} {file}")
    for danger in chance.sample(sorted(DANGERS), 2):
        safe(name, file, chance.choice(list(changed(runs / "runs" / name / file, danger).values())))


@pytest.mark.long
@pytest.mark.parametrize(("name", "file"), ALL, ids=lambda part: part)
def test_every_field_replaced_and_by_every_danger(runs, safe, name, file):
    by_danger = {danger: changed(runs / "runs" / name / file, danger) for danger in sorted(DANGERS)}
    for field in by_danger["null"]:
        # By the field's name: another field, as the commit where there is git, does not move the others.
        for danger in random.Random(f"{name} {file} {field}").sample(sorted(DANGERS), 3):
            safe(name, file, by_danger[danger][field])
    chance = random.Random(f"{name} {file}")
    for contents in by_danger.values():
        safe(name, file, chance.choice(list(contents.values())))


@pytest.mark.parametrize("kind", ["pipe", "device", "link", "folder"])
@pytest.mark.parametrize(
    ("name", "file"), [*ALL, *(("finished", f"model/model.{kind}") for kind in ("json", "safetensors"))]
)
def test_what_is_no_file_neither_hangs_nor_is_followed(
    runs, tmp_path, vitrail_command, monkeypatch, name, file, kind
):
    monkeypatch.chdir(runs)
    folder = shutil.copytree(runs / "runs", tmp_path / "runs") / name
    place = (folder / file).rename(tmp_path / "theirs")
    before = place.read_bytes()
    if kind == "pipe":
        os.mkfifo(folder / file)
    elif kind == "folder":
        (folder / file).mkdir()
    else:
        (folder / file).symlink_to(place if kind == "link" else "/dev/zero")
    code, out, err = vitrail_command("runs", tmp_path / "runs")
    one_line(code, err)
    assert all(other in out for other in {"finished", "stopped"} - {name})
    code, out, err = vitrail_command("predict", folder, "image.png")
    one_line(code, err)
    code, out, err = vitrail_command(*command_of(name, folder))
    one_line(code, err)
    assert code == 2 or kind == "folder"  # which does not lead anywhere
    assert place.read_bytes() == before
