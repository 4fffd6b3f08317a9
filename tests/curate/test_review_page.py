"""The page of a review in a real browser, by keyboard: reviewed, saved, applied, reloaded. Needs Chromium."""

import json
import shlex

import numpy as np
import pytest
from PIL import Image

from tests.curate.test_findings import FINDINGS
from tests.serve.browser import CHROMIUM, DRIVER, browser
from vitrail.curate.findings import THUMBNAILS, thumbnail_name, write_findings
from vitrail.curate.review import write_review
from vitrail.curate.thumbnails import thumbnail
from vitrail.data.sources import open_source

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="needs chromium and chromedriver"),
]
EVIL = "<img src=x onerror=alert(1)>"
CLASSES = ["ant", "bee", "cat", EVIL]
ENTER, DOWN, ESCAPE, RIGHT, LEFT = "\ue007", "\ue015", "\ue00c", "\ue014", "\ue012"

CHOOSE = """
const list = document.getElementById(arguments[0]);
[...list.options].find((one) => one.text.startsWith(arguments[1])).selected = true;
list.dispatchEvent(new Event("change"));
"""
PLACE = """
const box = document.getElementById(arguments[0]).getBoundingClientRect();
return [box.top, box.bottom, innerHeight];
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Class folders, in a folder of one split, with eight pictures each."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name in CLASSES:
        for i in range(8):
            path = folder / "photos" / "train" / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8)).save(path)
    return folder / "photos"


def check(photos, folder):
    """Write findings about every fourth image, and their page."""
    source = open_source(photos)
    (folder / THUMBNAILS).mkdir(parents=True)
    rows = []
    for index in range(0, 32, 4):
        label, near = int(source.labels[index]), (index + 9) % 32
        other = source.class_names[(label + 1) % 4]
        rows.append({
            "key": source.key(index), "index": index, "kind": "label", "label": source.class_names[label],
            "suggested": other, "score": 0.9, "reason": f"It looks like {other}.",
            "neighbours": [{"key": source.key(near), "index": near,
                            "label": source.class_names[source.labels[near]], "similarity": 0.8}],
            "copy_of": None, "thumbnail": thumbnail_name(index),
        })  # fmt: skip
        for number in (index, near):
            (folder / thumbnail_name(number)).write_bytes(thumbnail(source, number, 64))
    rows.append(
        rows[2] | {"kind": "duplicate", "suggested": None, "copy_of": rows[2]["neighbours"][0]["key"]}
    )
    write_findings({
        "format": "vitrail findings", "version": 1, "data": str(photos), "split": "train",
        "fingerprint": source.fingerprint(), "model": "ti8-64", "classes": source.class_names, "images": 32,
        "findings": rows, "pairs": [{"classes": ["ant", "bee"], "confused": 1, "of": 16}],
        "curve": {"images_per_class": [2, 4], "accuracy": [0.5, 0.6], "low": [0.4, 0.5], "high": [0.6, 0.7],
                  "more": "Twice the images: 5 points more."},
        "shortcuts": [{"from": "border", "accuracy": 0.5, "interval": [0.4, 0.6], "chance": 0.25, "reason": EVIL}],
    }, folder)  # fmt: skip
    return write_review(folder)


def press(window, *keys):
    """Press keys as a person does, wherever the focus is."""
    actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
    window.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})


def save(window, folder):
    """Press S; return the file that comes."""
    folder.mkdir()
    window.ask(
        "POST", "/goog/cdp/execute",
        {"cmd": "Browser.setDownloadBehavior", "params": {"behavior": "allow", "downloadPath": str(folder)}},
    )  # fmt: skip
    press(window, "s")
    window.wait("document.getElementById('announcement').textContent.includes('saved')")
    path = folder / "decisions.json"
    for _ in range(100):
        if path.exists():
            break
        window.run("return new Promise((done) => setTimeout(done, 50))")
    return path


def state(window):
    return window.text("#state")


def test_a_review_by_keyboard(tmp_path, photos, vitrail_command, monkeypatch):
    page = check(photos, tmp_path / "check").as_uri()
    before = {path: path.stat().st_mtime_ns for path in photos.rglob("*")}
    with browser(tmp_path / "profile") as window:
        window.open(page)
        assert state(window).startswith("0 of 8 reviewed")
        assert window.run(
            "return [...document.images].every((one) => one.naturalWidth) && document.images.length > 8"
        )
        press(window, "k")
        assert window.text("#announcement").startswith(f"Kept. 2 of 8: labelled {EVIL}, looks like ant.")
        press(window, "r", "d")
        assert "3 of 8 reviewed 1 kept, 1 relabelled, 1 dropped" in state(window)
        press(window, "u", "u")
        assert "1 of 8 reviewed 1 kept, 0 relabelled, 0 dropped" in state(window)
        assert window.text("#place").startswith("2 of 8")
        press(window, "r", RIGHT)
        assert window.text("#place").startswith("4 of 8")
        press(window, LEFT)
        assert window.run("return document.querySelectorAll('#pictures figure').length") == 2  # and its copy
        # Any class by typing: letters that are keys elsewhere, and the arrows, belong to the field.
        press(window, "c", *"a", DOWN, DOWN, ENTER)
        assert "2 relabelled" in state(window)
        press(window, "c", *"duk", ESCAPE)
        window.wait("!document.querySelector('dialog[open]') && !document.activeElement.matches('input')")
        press(window, "d")
        window.wait("document.getElementById('state').textContent.includes('4 of 8')")
        assert "1 kept, 2 relabelled, 1 dropped" in state(window)
        taken = window.run("return JSON.parse(localStorage[Object.keys(localStorage)[0]]).decisions")[2][
            "label"
        ]

        path = save(window, tmp_path / "first")
        contents = json.loads(path.read_text())
        assert [(one["index"], one["action"], one["label"]) for one in contents["decisions"]] == [
            (0, "keep", None), (4, "relabel", "ant"), (8, "relabel", taken), (12, "drop", None),
        ]  # fmt: skip

        # What was decided survives a reload; a file brings it to a browser that knows nothing.
        window.open(page)
        assert "4 of 8 reviewed" in state(window) and "Not saved" not in state(window)
        assert window.text("#place").startswith("5 of 8")  # the first that is left
        window.run("localStorage.clear()")
        window.open(page)
        assert "0 of 8 reviewed" in state(window)
        window.type("#file", str(path))
        window.wait("document.getElementById('state').textContent.startsWith('4 of 8')")
        assert save(window, tmp_path / "second").read_text() == path.read_text()

        # Filters: kinds, classes, decisions, a pair.
        for selector, words, number in (
            ("kind", "copy", 1), ("kind", "Everything", 8), ("decided", "Relabelled", 2), ("decided", "All", 8),
            ("class", EVIL, 4),
        ):  # fmt: skip
            window.run(CHOOSE, selector, words)
            assert f"of {number}" in window.text("#place")
        window.click("#pair-list button")
        assert window.text("#place").startswith("1 of 2")
        press(window, "?")
        assert window.run("return document.getElementById('keys').open")
        assert window.errors() == []
        assert window.run("return document.querySelector('img[src=x]')") is None

        commands = [shlex.split(line) for line in window.text("#commands").splitlines()]
        other = tmp_path / "other.json"
        other.write_text(json.dumps(contents | {"fingerprint": "0"}))
        window.type("#file", str(other))
        window.wait("!document.getElementById('problem').hidden")
        assert "other data" in window.text("#problem")

    decided = open_source(f"{photos}?decisions={path}")
    assert len(decided) == 31
    # What the page says to type, where the file is.
    monkeypatch.chdir(path.parent)
    code, out, err = vitrail_command(*commands[0][1:])
    assert code == 0, err
    assert "2 relabelled" in out
    code, out, err = vitrail_command(*(word.replace("MODEL", "no-model") for word in commands[1][1:]))
    assert code == 2 and "'no-model'" in err and "decisions" not in err  # that is all that is wrong
    listed = open_source(f"{photos}?labels=corrected.csv")
    names = {listed.key(i): listed.class_names[listed.labels[i]] for i in range(len(listed))}
    assert names == {decided.key(i): decided.class_names[decided.labels[i]] for i in range(31)}
    assert {path: path.stat().st_mtime_ns for path in photos.rglob("*")} == before


def test_a_phone_shows_all_of_it(tmp_path, photos):
    page = check(photos, tmp_path / "check").as_uri()
    with browser(tmp_path / "profile", 500, 900, dark=True) as window:
        window.open(page)
        assert window.run("return document.documentElement.scrollWidth <= innerWidth")
        top, bottom, height = window.run(PLACE, "keep")
        assert 0 < top < bottom <= height  # at hand without scrolling
        assert window.errors() == []


def test_data_without_findings_has_a_page_too(tmp_path):
    write_findings(
        FINDINGS | {"findings": [], "pairs": [], "curve": None, "shortcuts": []}, tmp_path / "none"
    )
    write_findings(FINDINGS, tmp_path / "no pictures")
    with browser(tmp_path / "profile") as window:
        window.open(write_review(tmp_path / "none").as_uri())
        assert window.run("return document.body.innerText").split("\n")[-1].startswith("Nothing was found")
        window.open(write_review(tmp_path / "no pictures").as_uri())
        assert window.run("return document.querySelectorAll('#pictures .blank').length") == 1
        assert "Twice the images" in window.text("#curve") and "Frames." in window.text("#shortcuts")
        assert window.errors() == []
