"""Learning: photographs into classes, a classifier at once, fine-tuning in the background, downloads."""

import io
import sys
import time
import zipfile

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.serve.asking import ORIGIN, ask, multipart, picture
from tests.serve.conftest import save_model
from vitrail.data.sources import open_source
from vitrail.evaluators.fewshot import L2, solve
from vitrail.serve.few import FOLDS, held_out_outputs, solve_few
from vitrail.serve.learning import Learning
from vitrail.serve.photos import Collection

BYTES = {"content_type": "application/octet-stream"}
COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "a <b>class</b>/..": (30, 30, 200)}


def photograph(colour, seed, kind="PNG"):
    rng = np.random.default_rng(seed)
    pixels = np.clip(np.array(colour) + rng.normal(0, 12, (24, 24, 3)), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


@pytest.fixture
def change(app, state):
    """Send what changes something."""

    def send(method, path, body=b"", **headers):
        return ask(app, method, path, body, origin=ORIGIN, x_vitrail_token=state.access.token, **headers)

    return send


@pytest.fixture
def cups(change):
    assert change("POST", "/v1/learn", {"name": "cups", "model": "small"}).status == 201
    for title, colour in COLOURS.items():
        form, kind = multipart(**{f"f{i}": photograph(colour, i) for i in range(6)})
        path = "/v1/learn/cups/photos?class=" + title.replace("<", "%3C").replace(">", "%3E")
        assert len(change("POST", path, form, content_type=kind).json["added"]) == 6


def test_from_photographs_to_a_classifier(app, change, cups, state, tmp_path):
    content = ask(app, "GET", "/v1/learn/cups").json
    assert [one["name"] for one in content["classes"]] == list(COLOURS) and content["photos"] == 18
    few = change("POST", "/v1/learn/cups/fewshot").json
    assert few["accuracy"] == 1.0 and few["folds"] == 6 and not few["stale"]
    for number, (title, colour) in enumerate(COLOURS.items()):
        new = photograph(colour, 100)
        (result,) = ask(app, "POST", "/v1/models/cups-fewshot/predict", new, **BYTES).json["results"]
        assert (result["top"][0]["class"], result["top"][0]["name"]) == (number, title)
        assert result["top"][0]["probability"] > 0.5
    assert ask(app, "POST", "/v1/models/cups-fewshot/explain", new, **BYTES).status == 200
    entry = ask(app, "GET", "/v1/models/cups-fewshot").json
    assert (entry["kind"], entry["base"], entry["classes"]) == ("fewshot", "small", 3)
    archive = ask(app, "GET", "/v1/learn/cups/download?what=fewshot")
    assert archive.status == 200, archive.body
    zipfile.ZipFile(io.BytesIO(archive.body)).extractall(tmp_path / "zip")
    ((name, p), *_) = vitrail.predict(str(tmp_path / "zip" / "cups-fewshot"), [new])[0]
    assert name == title and p == pytest.approx(result["top"][0]["probability"], abs=1e-3)


def test_what_is_stored_is_a_data_set(change, cups, state):
    source = open_source(str(state.learning.folder / "cups" / "photos"))
    assert source.class_names == list(COLOURS) and len(source) > 0
    again = Collection(state.learning.folder / "cups")
    assert again.photos.keys() == state.learning.get("cups").collection.photos.keys()
    assert again.class_names == list(COLOURS)


def test_photographs_are_there_once_and_can_be_removed(app, change, cups):
    same = photograph(COLOURS["red"], 0)
    reply = change("POST", "/v1/learn/cups/photos?class=green", same, **BYTES).json
    assert reply["added"] == [] and reply["present"][0]["class"] == "red"
    change("POST", "/v1/learn/cups/fewshot")
    place = reply["present"][0]["url"]
    small = ask(app, "GET", place)
    assert small.headers["content-type"] == "image/jpeg" and small.body[:2] == b"\xff\xd8"
    assert change("DELETE", place).json["photos"] == 17
    assert ask(app, "GET", place).status == change("DELETE", place).status == 404
    assert ask(app, "GET", "/v1/learn/cups").json["fewshot"]["stale"]
    content = change("DELETE", "/v1/learn/cups/classes?class=green").json
    assert [one["name"] for one in content["classes"]] == ["red", "a <b>class</b>/.."]
    assert change("DELETE", "/v1/learn/cups").json == {"deleted": "cups"}
    assert ask(app, "GET", "/v1/models/cups-fewshot").status == 404


def test_what_cannot_be_learned_is_refused(app, change, cups, state):
    def status(*request, **headers):
        return change(*request, **headers).status

    photos = "/v1/learn/cups/photos?class="
    broken = change("POST", photos + "red", b"no image", **BYTES).json
    assert broken["added"] == [] and broken["errors"][0]["error"]
    assert status("POST", photos, picture(), **BYTES) == 400
    assert status("POST", photos + "a%0Ab", picture(), **BYTES) == 400
    assert status("POST", photos + "x" * 81, picture(), **BYTES) == 400
    assert status("POST", "/v1/learn/cups/photos", picture(), **BYTES) == 400
    assert status("POST", "/v1/learn/nope/photos?class=a", picture(), **BYTES) == 404
    assert status("POST", "/v1/learn", {"name": "cups", "model": "small"}) == 409
    for name in ("..", "a/b", "", ".a", "a" * 65, "ü"):
        assert status("POST", "/v1/learn", {"name": name, "model": "small"}) == 400, name
    assert status("POST", "/v1/learn", {"name": "b", "model": "nope"}) == 404
    assert status("POST", "/v1/learn", {"name": "b", "model": "small"}) == 201
    assert status("POST", "/v1/learn/b/fewshot") == status("POST", "/v1/learn/b/finetune") == 400
    assert status("POST", "/v1/learn/cups/finetune", {"steps": 0}) == 400
    assert status("DELETE", "/v1/learn/cups/finetune") == 409
    assert ask(app, "GET", "/v1/learn/cups/photos/..%2f..%2fcollection.json").status == 404
    assert ask(app, "GET", "/v1/learn/cups/download?what=all").status == 400
    assert ask(app, "GET", "/v1/learn/cups/download?what=finetuned").status == 404
    assert ask(app, "POST", "/v1/learn", {"name": "c", "model": "small"}).status == 403
    assert sorted(path.name for path in state.learning.folder.iterdir()) == ["b", "cups"]


def test_a_classifier_ends_with_the_model_that_it_was_made_on(app, change, cups, state, small_model):
    change("POST", "/v1/learn/cups/fewshot")
    state.models.open("small", str(small_model))
    assert ask(app, "GET", "/v1/models/cups-fewshot").status == 404
    assert ask(app, "GET", "/v1/learn/cups").json["fewshot"] is None
    assert change("POST", "/v1/learn/cups/fewshot").json["accuracy"] == 1.0


def test_cross_validation_never_sees_the_photograph():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(12, 5)).astype(np.float32), np.arange(12) % 3
    outputs = held_out_outputs(x, labels, 3, 4)
    for i in range(12):
        rest = np.flatnonzero(np.arange(12) // 3 != i // 3)  # its fold is its place within the class
        weight, bias = solve(x[rest], labels[rest], 3).affine(L2)
        assert np.allclose(outputs[i], x[i] @ weight + bias, atol=1e-8)
    few = solve_few(x, labels, ["a", "b", "c"])
    assert few.folds == 4 and few.accuracy == (outputs.argmax(axis=1) == labels).mean()
    assert solve_few(x[:3], labels[:3], ["a", "b", "c"]).accuracy is None
    many = solve_few(np.repeat(x, 4, axis=0), np.repeat(labels, 4), ["a", "b", "c"])
    assert many.folds == FOLDS


@pytest.mark.long
def test_a_classifier_as_an_onnx_file(app, change, cups, state, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    assert change("POST", "/v1/learn/cups/onnx?what=fewshot").status == 404
    change("POST", "/v1/learn/cups/fewshot")
    archive = change("POST", "/v1/learn/cups/onnx?what=fewshot")
    assert archive.status == 200, archive.body
    zipfile.ZipFile(io.BytesIO(archive.body)).extractall(tmp_path / "zip")
    new = photograph(COLOURS["green"], 100)
    ((name, _), *_) = vitrail.predict(str(tmp_path / "zip" / "cups-fewshot-onnx"), [new])[0]
    assert name == "green"
    assert (
        ask(app, "POST", "/v1/learn/cups/onnx?what=fewshot").status == 403
    )  # it takes a while: only the own page


def test_one_file_is_exported_at_a_time(change, cups, state):
    change("POST", "/v1/learn/cups/fewshot")
    state.learning.exporting = True
    reply = change("POST", "/v1/learn/cups/onnx?what=fewshot")
    assert reply.status == 503 and reply.headers["retry-after"] == "10"
    assert change("POST", "/v1/learn/cups/onnx?what=all").status == 400


def test_an_export_that_fails_says_why(change, cups, state, monkeypatch):
    change("POST", "/v1/learn/cups/fewshot")
    words = "import sys; sys.exit('error: there is no space left')"
    monkeypatch.setattr("vitrail.serve.onnx_file.background_command", lambda: [sys.executable, "-c", words])
    reply = change("POST", "/v1/learn/cups/onnx?what=fewshot")
    assert reply.status == 409 and "no space left" in reply.json["error"] and not state.learning.exporting


@pytest.mark.long
def test_fine_tuning_in_the_background(app, change, cups, state, tmp_path):
    started = change("POST", "/v1/learn/cups/finetune", {"steps": 40})
    assert started.status == 202 and started.json["state"] == "running"
    assert change("POST", "/v1/learn/cups/finetune").status == 409
    wait(app, lambda run: run["step"] >= 2)
    stopped = change("DELETE", "/v1/learn/cups/finetune").json
    assert stopped["state"] in ("interrupted", "finished"), stopped
    if stopped["state"] == "interrupted":
        assert change("POST", "/v1/learn/cups/finetune", {"steps": 40}).status == 202
    run = wait(app, lambda run: run["state"] != "running" and (run["model"] or run["state"] != "finished"))
    assert (run["state"], run["model"], run["step"]) == ("finished", "cups-finetuned", 40), run
    assert [point["step"] for point in run["curve"]] == list(range(1, 41)) and not run["stale"]
    (result,) = ask(
        app, "POST", "/v1/models/cups-finetuned/predict", photograph(COLOURS["red"], 9), **BYTES
    ).json["results"]
    assert {one["name"] for one in result["top"]} == COLOURS.keys()
    assert ask(app, "GET", "/v1/learn/cups/download?what=finetuned").body[:2] == b"PK"
    again = Learning(state.learning.folder, state.models)  # as after a restart
    assert again.describe_finetuning(again.get("cups"))["model"] == "cups-finetuned"
    again.close()


def wait(app, done):
    until = time.monotonic() + 300
    while time.monotonic() < until:
        run = ask(app, "GET", "/v1/learn/cups/finetune").json
        if done(run):
            return run
        time.sleep(0.2)
    raise AssertionError(run)


def test_a_run_that_fails_says_why(app, change, state, tmp_path):
    """The base model is gone when the process starts."""
    other = save_model(tmp_path / "other")
    state.models.open("other", str(other))
    change("POST", "/v1/learn", {"name": "gone", "model": "other"})
    for title in ("red", "green"):
        change("POST", f"/v1/learn/gone/photos?class={title}", photograph(COLOURS[title], 0), **BYTES)
    other.rename(tmp_path / "moved")
    change("POST", "/v1/learn/gone/finetune")
    learned = state.learning.get("gone")
    learned.process.process.wait(300)
    run = state.learning.describe_finetuning(learned)
    assert run["state"] == "failed" and "other" in run["message"]
