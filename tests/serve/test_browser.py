"""The page in a real browser: looking, comparing, teaching it classes. Needs Chromium and its driver."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.serve.browser import CHROMIUM, DRIVER, browser
from tests.serve.conftest import save_model
from vitrail.data.readers.class_names import readable
from vitrail.inspection.attention import attention_maps
from vitrail.serve.app import ASSETS

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="needs chromium and chromedriver"),
]
KEY = "0123456789abcdef0123"
EVIL = "<img src=x onerror=alert(1)>"
COLOURS = {"red": (200, 40, 30), "green": (40, 160, 60), EVIL: (40, 60, 200)}
HOME, END, RIGHT = "\ue011", "\ue010", "\ue014"
IDLE = "!document.querySelector('[aria-busy=true]')"
LOOKED = "document.documentElement.classList.contains('ready')"
PHOTO = ASSETS / "pictures" / "ladybug.png"


@contextmanager
def server(*arguments):
    """Start `vitrail serve`; yield its address."""
    command = [
        sys.executable,
        "-m",
        "vitrail",
        "serve",
        *map(str, arguments),
        "--port",
        "0",
        "--device",
        "cpu",
    ]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            lines = []
            for line in iter(process.stdout.readline, ""):
                lines.append(line)
                if found := re.search(r"http://[\d.]+:\d+", line):
                    yield found[0]
                    break
            else:
                raise AssertionError("".join(lines))
        finally:
            process.terminate()
            process.communicate(timeout=30)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("page") / "small")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Eleven pictures of noise around a colour for each class: ten to learn from, one to try."""
    folder, rng = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    files = {}
    for name, colour in COLOURS.items():
        (folder / name).mkdir()
        files[name] = [folder / name / f"{i:02}.png" for i in range(10)] + [folder / f"{name}.png"]
        for path in files[name]:
            pixels = np.clip(np.array(colour) + rng.normal(0, 30, (48, 64, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    return files


def first(window, panel=1):
    return window.text(f".panel:nth-child({panel}) .first .label")


def answer_of(model, path):
    ((name, _),) = vitrail.predict(model, [path], top=1)[0]
    return readable(name)


def test_looking_and_comparing(tmp_path, small):
    model, other = vitrail.load("ti8-64"), vitrail.load(small)
    with server("ti8-64", f"small={small}") as address, browser(tmp_path / "profile") as window:
        window.open(address)
        window.wait(LOOKED)
        window.drop("#look", [PHOTO])
        window.wait("document.querySelector('.panel .first')")
        assert first(window) == answer_of(model, PHOTO)
        window.wait("document.getElementById('announcement').textContent")
        assert window.text("#announcement").startswith(f"ti8-64: {first(window)}, ")  # read aloud

        # Each view is another picture; sliders work with the keyboard, and say where they are.
        canvas = "return document.querySelector('.panel canvas').toDataURL()"
        drawn = set()
        for view in ("photograph", "patches", "rollout", "occlusion", "attention"):
            window.run("document.querySelector(`[name=view][value=${arguments[0]}]`).click()", view)
            window.wait(IDLE)
            drawn.add(window.run(canvas))
        maps = attention_maps(model, [PHOTO])[0]  # (L, h, rows, columns)
        for layer, head, keys in ((1, 0, (HOME, HOME)), (2, 3, (RIGHT, END))):
            for slider, key in zip((1, 2), keys, strict=True):
                window.type(f".panel .sliders label:nth-child({slider}) input", key)
            window.wait(IDLE)
            window.wait(
                "document.querySelector('.panel .sliders output').textContent === arguments[0]",
                f"{layer} of 12",
            )
            drawn.add(window.run(canvas))
            map_ = maps[layer - 1, head - 1] if head else maps[layer - 1].mean(axis=0)
            row, column = np.unravel_index(map_.argmax(), map_.shape)
            assert f"row {row + 1}, column {column + 1}," in window.text(".panel .caption")
        assert len(drawn) == 7

        window.click("#compare")
        window.wait("document.querySelector('.panel:nth-child(2) .first')")
        window.wait(IDLE)
        assert (first(window), first(window, 2)) == (answer_of(model, PHOTO), answer_of(other, PHOTO))
        window.run("document.querySelector('#samples button').click()")
        window.wait("document.querySelectorAll('#history li').length === 2")
        window.wait(IDLE)
        window.run("document.querySelector('#history li:last-child button').click()")  # back to the first
        window.wait("document.querySelector('#history li:last-child button').ariaPressed === 'true'")
        window.wait(IDLE)
        assert first(window) == answer_of(model, PHOTO)

        # A photograph that is pasted, one that is chosen, one that is taken with the camera.
        window.paste([ASSETS / "pictures" / "orange.png"])
        window.wait("document.querySelectorAll('#history li').length === 3")
        window.type("#ways input[type=file]", str(ASSETS / "pictures" / "lemon.png"))
        window.wait("document.querySelectorAll('#history li').length === 4")
        window.run("document.querySelectorAll('#ways button')[1].click()")
        window.wait("!document.getElementById('camera-take').disabled")
        window.click("#camera-take")
        window.wait("document.querySelectorAll('#history li').length === 5")
        window.wait("!document.getElementById('camera').open")
        window.wait(IDLE)

        before = window.run("return getComputedStyle(document.body).backgroundColor")
        window.click("#theme")
        assert window.run("return getComputedStyle(document.body).backgroundColor") != before
        assert window.errors() == []
        window.drop("#look", [small / "model.json"])  # not a picture
        window.wait("document.querySelector('.panel .caption .problem')")
        window.wait(IDLE)
        assert "model.json: not an image" in window.text(".panel .caption")
        assert window.text(".panel .answer") == "" and "not an image" in window.text("#announcement")


def test_teaching_three_classes_from_thirty_photographs(tmp_path, photographs):
    with server("ti8-64", "--learn", tmp_path / "learn") as address, browser(tmp_path / "profile") as window:
        window.open(f"{address}/#learn")
        window.wait(LOOKED)
        window.type(".new input", "colours")
        window.click(".new button")
        window.wait("document.querySelector('#workshop-title')?.textContent === 'colours'")
        for number, (name, files) in enumerate(photographs.items(), 1):
            if number < 3:
                window.type(".add input", name)
                window.click(".add button")
                window.drop(f".class:nth-child({number})", files[:10])
            else:
                window.drop(".add", [files[0].parent])  # a folder: a class of its name
            window.wait(f"document.querySelectorAll('.class:nth-child({number}) li').length === 10")
            window.wait("!document.querySelector('.class[aria-busy]')")
        assert window.text(".class:nth-child(3) h3") == EVIL  # as text
        window.click(".train .strong")
        window.wait("document.querySelector('.train .measured')")
        for name, files in photographs.items():
            window.drop(".trial", files[10:])
            window.wait("document.querySelector('.trial .first .label')?.textContent === arguments[0]", name)

        # A photograph that is taken out: the classifier says that it is of before.
        window.run("document.querySelector('.class:nth-child(1) .remove').click()")
        window.wait("document.querySelectorAll('.class:nth-child(1) li').length === 9")
        window.wait("/again/.test(document.querySelector('.train .body').textContent)")

        window.run(
            "[...document.querySelectorAll('.train button')].find((one) => one.textContent === 'Fine-tune').click()"
        )
        window.wait("document.querySelector('.train .curve')", seconds=90)
        window.run(
            "[...document.querySelectorAll('.train button')].find((one) => one.textContent === 'Stop').click()"
        )
        window.wait("/can be resumed/.test(document.querySelector('.train').textContent)", seconds=60)

        # Use it: the first view, with its own classes.
        window.click("[aria-label='Look with it: colours-fewshot']")
        window.wait("!document.getElementById('look').hidden")
        window.drop("#look", photographs["green"][10:])
        window.wait("document.querySelector('.panel .first .label')?.textContent === 'green'")
        window.wait("document.querySelector('.classes').textContent")
        assert all(name in window.text(".classes") for name in COLOURS)
        assert window.run("return document.querySelector('img[src=x]')") is None
        assert window.errors() == []


def test_a_key_is_asked_for(tmp_path, small):
    (tmp_path / "key").write_text(KEY)
    with (
        server(f"small={small}", "--key-file", tmp_path / "key") as address,
        browser(tmp_path / "profile", 500, 900, dark=True) as window,
    ):
        window.open(address)
        window.wait("document.getElementById('key').open")
        window.type("#key-value", "wrong")
        window.click("#key .strong")
        window.wait(
            "document.getElementById('key').open && document.getElementById('key-problem').textContent"
        )
        window.type("#key-value", KEY)
        window.click("#key .strong")
        window.wait(LOOKED)
        window.drop("#look", [PHOTO])
        window.wait("document.querySelector('.panel .first')")
        assert first(window) == answer_of(vitrail.load(small), PHOTO)
        assert window.run(
            "return document.documentElement.scrollWidth <= innerWidth"
        )  # nothing beside a phone's edge
        assert all("401" in message for message in window.errors())
