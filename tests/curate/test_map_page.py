"""A map: places, predictions, the page and the picture. In a browser: long."""

import json
import re

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.evaluators.split import Split, small_model
from tests.serve.browser import CHROMIUM, DRIVER, browser
from vitrail.curate.map_data import Map, colours, map_data
from vitrail.curate.map_page import PLACES, write_map
from vitrail.curate.projection import choose_method, project
from vitrail.errors import ConfigError, DataError

EVIL = '</script><img src=x onerror="document.title=1">'
in_browser = [
    pytest.mark.long,
    pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="needs chromium and chromedriver"),
]
SET = """
const [id, value, event] = arguments, field = document.getElementById(id);
field.value = value;
field.dispatchEvent(new Event(event));
"""
# The mean time of a frame in which the wheel is turned and something else is pointed at.
ZOOMED = """
const canvas = document.getElementById("canvas"), began = performance.now();
const turn = { deltaY: -30, clientX: 400, clientY: 400, cancelable: true };
return new Promise((done) => {
  let frames = 0;
  function frame() {
    canvas.dispatchEvent(new WheelEvent("wheel", turn));
    canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: 300 + 9 * frames, clientY: 400 }));
    if (++frames === 20) done((performance.now() - began) / frames);
    else requestAnimationFrame(frame);
  }
  frame();
});
"""
LEFT, RIGHT, ESCAPE = "\ue012", "\ue014", "\ue00c"


def groups(n=60, seed=0):
    """Three groups of features, far apart, and which is whose."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    x = 4 * np.eye(3, 16)[labels] + 0.3 * rng.standard_normal((n, 16))
    return x.astype(np.float16), labels


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_groups_are_apart_and_a_seed_gives_the_same_map(method):
    if method == "tsne":
        pytest.importorskip("openTSNE", reason="needs openTSNE, the extra `map`")
    x, labels = groups()
    xy = project(x, method, seed=3)
    assert xy.shape == (60, 2) and xy.min() == 0 and xy.max() == 1
    np.testing.assert_array_equal(xy, project(x, method, seed=3))
    centres = np.stack([xy[labels == k].mean(axis=0) for k in range(3)])
    nearest = np.linalg.norm(xy[:, None] - centres, axis=2).argmin(axis=1)
    assert (nearest == labels).all()


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_equal_features_and_few_of_them(method):
    if method == "tsne":
        pytest.importorskip("openTSNE", reason="needs openTSNE, the extra `map`")
    x = np.repeat(groups(4)[0], 5, axis=0)
    assert np.isfinite(project(x, method)).all()
    assert np.isfinite(project(np.ones((12, 3), np.float16), method)).all()
    assert np.isfinite(project(np.ones((2, 1), np.float16), "pca")).all()


def test_which_projection_is_taken(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert choose_method("auto", 100) == "pca"
    with pytest.raises(ConfigError, match=r"vitrail\[map\]"):
        choose_method("tsne", 100)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert choose_method("auto", 100) == "tsne"
    assert choose_method("auto", 3) == choose_method("pca", 100) == "pca"
    with pytest.raises(ConfigError, match="at least 10"):
        choose_method("tsne", 3)


def test_no_label_vouches_for_itself(monkeypatch):
    x, labels = groups()
    monkeypatch.setattr("vitrail.curate.map_data.extract_rows", lambda *_: [(x, np.arange(len(x)))])
    wrong = labels.copy()
    wrong[7] = (labels[7] + 1) % 3
    found = map_data(small_model(), Split(60, ["a", "b", "c"], labels=wrong), projection="pca")
    assert found.predicted[7] == labels[7]
    assert found.errors.mean() < 0.1
    assert map_data(small_model(), Split(60, ["a"]), projection="pca").predicted is None


@pytest.mark.parametrize("n", [2, 3, 7])
def test_a_map_of_few_images(n):
    found = map_data(small_model(), Split(n, ["a", "b"]), projection="pca")
    assert np.isfinite(found.xy).all() and set(found.predicted) <= {0, 1}


def test_broken_images_are_left_out_and_of_many_some_are_chosen():
    source, model = (
        Split(40, ["a", "b", "c", "d"], broken={5}),
        small_model(classes=4, class_names=list("abcd")),
    )
    found = map_data(model, source, projection="pca")
    assert found.index.tolist() == [i for i in range(40) if i != 5]
    np.testing.assert_array_equal(found.labels, source.labels[found.index])
    source = Split(40, ["a", "b", "c", "d"])
    few = map_data(model, source, projection="pca", most=20, predictions="none")
    assert (len(few), few.images, few.predicted) == (20, 40, None)
    assert np.bincount(few.labels).tolist() == [5, 5, 5, 5]
    with pytest.raises(DataError):
        map_data(model, Split(2, ["a", "b"], broken={0, 1}), projection="pca")


def test_predictions_of_the_model_itself():
    names = ["b", "a", "other", "c"]
    source, model = Split(30, ["a", "b", "c"]), small_model(classes=4, class_names=names)
    found = map_data(model, source, projection="pca", predictions="model")
    answers = vitrail.predict(model, [source.read(i).image for i in range(30)], top=1)
    assert [found.class_names[k] for k in found.predicted] == [one[0][0] for one in answers]
    assert found.class_names == ["a", "b", "c", "other"]


def a_map(n, classes=("ant", "bee", EVIL), predicted=True):
    source = Split(n, list(classes), keys=EVIL + "{:05}")
    rng = np.random.default_rng(0)
    guess = np.where(rng.random(n) < 0.2, (source.labels + 1) % len(classes), source.labels)
    centres = rng.random((len(classes), 2))
    xy = (0.1 + 0.8 * centres[source.labels] + 0.03 * rng.standard_normal((n, 2))).clip(0, 1)
    return Map(
        source, np.arange(n), xy, source.labels, guess if predicted else None, list(classes), "t-SNE", n
    )


def test_the_page_holds_the_map_and_no_name_is_a_tag(tmp_path):
    found = a_map(20)
    path = write_map(found, tmp_path, title=EVIL, about="about", thumbnails=16)
    page = path.read_text()
    assert 'onerror="' not in page and "<img" not in page
    assert page.count("</script>") == 2
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    np.testing.assert_allclose(np.array(data["xy"]) / PLACES, found.xy, atol=1e-5)
    assert data["labels"] == found.labels.tolist() and data["predicted"] == found.predicted.tolist()
    assert data["keys"][3] == found.source.key(3) and data["classes"][2] == EVIL
    assert len(data["sheets"]) == 1
    assert not re.search(r"(?:src|href)=\"(?!data:)", page)


def test_colours_differ():
    assert len(set(colours(200))) == 200
    assert all(re.fullmatch("#[0-9a-f]{6}", one) for one in colours(9))


@pytest.fixture
def run(vitrail_command, monkeypatch, tmp_path):
    """Commands in a folder with a model and pictures in classes."""
    monkeypatch.chdir(tmp_path)
    vitrail.save(small_model(classes=3, class_names=["blue", "$red_$", "x"]), "m")
    rng = np.random.default_rng(0)
    for name in ("$red_$", "blue"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(12):
            pixels = rng.integers(0, 255, (20, 30, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return lambda *words: vitrail_command("data", "map", *words, "--model", "m", "--device", "cpu")


def test_a_map_is_drawn_and_drawn_again(run, tmp_path):
    words = ("photos", "--out", "o", "--projection", "pca", "--thumbnails", 16)
    code, out, err = run(*words, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["images"] == result["of"] == 20 and result["projection"] == "two principal components"
    with Image.open(result["picture"]) as picture:
        assert picture.width > 600
    page = (tmp_path / "o" / "map.html").read_text()
    for more in (("--colour", "error"), ("--colour", "prediction", "--predictions", "model"), ()):
        code, _, err = run(*words, *more)
        assert code == 0, err
    assert (tmp_path / "o" / "map.html").read_text() == page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out", "photos"), "choose a new folder"),
        (("--out", "o", "--colour", "error", "--predictions", "none"), "--predictions none"),
        (("--out", "o", "--most", 1), "at least 2"),
        (("--out", "o", "--thumbnails", 1000), "thumbnails"),
    ],
)
def test_wrong_settings(run, tmp_path, words, message):
    before = sorted(tmp_path.rglob("*"))
    code, _, err = run("photos", *words)
    assert code == 2 and message in err
    assert sorted(tmp_path.rglob("*")) == before


def press(window, *keys):
    actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
    window.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})


@pytest.mark.parametrize("size", [(1280, 900), (420, 860)])
@pytest.mark.parametrize("mark", [pytest.param(None, marks=in_browser)])
def test_the_page_by_keyboard_and_pointer(tmp_path, mark, size):
    path = write_map(a_map(300), tmp_path / "o", title=f"Map {EVIL}", about="about", thumbnails=32)
    with browser(tmp_path / "profile", *size) as window:
        window.open(path.as_uri())
        assert window.text("#shown") == "300 images"
        window.run("document.getElementById('canvas').focus()")
        press(window, RIGHT)
        window.wait("document.getElementById('facts').textContent.startsWith('Label')")
        first = window.text("#facts")
        window.wait("document.getElementById('picture').width === 176")
        assert EVIL in first  # as text: it is part of every key
        press(window, LEFT)
        assert window.text("#facts") != first
        press(window, "+", "+", "0", ESCAPE)
        window.run(SET, "search", "be", "input")
        assert re.fullmatch(r"1\d\d of 300 images", window.text("#shown"))
        window.click("#only")
        few = int(window.text("#shown").split()[0])
        assert 0 < few < 100
        window.run(SET, "colour", "error", "change")
        assert "predicted as labelled" in window.text("#legend")
        assert window.run("return document.querySelectorAll('img').length") == 0
        assert window.run("return document.documentElement.scrollWidth <= innerWidth")
        assert window.errors() == []


@pytest.mark.parametrize("mark", [pytest.param(None, marks=in_browser)])
def test_ten_thousand_points_move_fluently(tmp_path, mark):
    names = [f"a class with a rather long name, number {k}" for k in range(200)]
    path = write_map(a_map(10_000, names), tmp_path / "o", title="Map", about="about", thumbnails=0)
    with browser(tmp_path / "profile") as window:
        window.open(path.as_uri())
        assert window.run(ZOOMED) < 250  # milliseconds, on a machine that is busy and draws without a GPU
        assert window.errors() == []
