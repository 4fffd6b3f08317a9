import os
import signal

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.evaluators.split import small_model
from vitrail.curate import build_index as module
from vitrail.curate.build_index import build_index
from vitrail.curate.index import open_index
from vitrail.curate.search_images import search_images
from vitrail.errors import ConfigError, DataError, Interrupted
from vitrail.evaluators.knn import neighbours
from vitrail.inference.features import Extraction


@pytest.fixture
def photos(tmp_path):
    """Six classes of three pictures; one file is broken."""
    rng = np.random.default_rng(0)
    for k in range(6):
        folder = tmp_path / "photos" / f"class {k}"
        folder.mkdir(parents=True)
        colour = rng.uniform(30, 220, 3)
        for i in range(3):
            pixels = (colour + rng.normal(0, 12, (24, 40, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")
    (tmp_path / "photos" / "class 2" / "1.png").write_bytes(b"scribbled over")
    return tmp_path / "photos"


@pytest.fixture(scope="module")
def model():
    return small_model()


SOME_BAD = Extraction(max_bad=0.1, batch_size=4)
WHOLE = "photos?validation=0&test=0"


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_every_readable_image_is_in_it_in_order(photos, model, monkeypatch, precision):
    monkeypatch.chdir(photos.parent)
    index = build_index(
        model, WHOLE, "index", precision=precision, thumbnails=20, extraction=SOME_BAD, name="small"
    )
    paths = sorted(path for path in photos.rglob("*.png") if path.read_bytes() != b"scribbled over")
    assert [index.key(i) for i in range(len(index))] == [str(path.relative_to(photos)) for path in paths]
    assert index.card["broken"] == 1
    expected = vitrail.features(model, paths)
    np.testing.assert_allclose(index.features, expected, atol=2e-3)
    assert [index.class_names[k] for k in index.labels] == [path.parent.name for path in paths]
    matches, errors = search_images(index, model, paths, 3)
    assert errors == {}
    assert [found[0].path for found in matches] == [str(path.absolute()) for path in paths]
    rows = neighbours(index.features, index.features, 3)[1]
    assert [[one.row for one in found] for found in matches] == rows.tolist()
    assert index.thumbnail(3).startswith(b"\xff\xd8")
    assert not sorted(photos.parent.glob("index/building*"))


def test_images_without_labels(photos, model):
    index = build_index(model, str(photos), photos.parent / "i", labelled=False, extraction=SOME_BAD)
    (found,) = search_images(index, model, [photos / "class 1" / "1.png"], 1)[0]
    assert found[0].path == str(photos / "class 1" / "1.png")
    assert found[0].label_name is None


def test_images_that_cannot_be_searched_for_do_not_stop_the_others(photos, model):
    index = build_index(model, str(photos), photos.parent / "i", labelled=False, extraction=SOME_BAD)
    paths = [photos / "class 2" / "1.png", photos / "class 2" / "0.png"]
    matches, errors = search_images(index, model, paths, 1)
    assert list(map(len, matches)) == [0, 1]
    assert list(errors) == [0]


def test_an_interrupted_run_continues(photos, model, monkeypatch):
    monkeypatch.chdir(photos.parent)
    build_index(model, WHOLE, "whole", thumbnails=16, extraction=SOME_BAD)
    monkeypatch.setattr(module, "SAVE_SECONDS", 0.0)
    append, calls = module.append, []

    def interrupted(*arguments):
        append(*arguments)
        calls.append(len(arguments[1]))
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(module, "append", interrupted)
    with pytest.raises(Interrupted):
        build_index(model, WHOLE, "index", thumbnails=16, extraction=SOME_BAD)
    with pytest.raises(DataError, match="not completed"):
        open_index("index")
    with open("index/features.npy", "ab") as file:  # noqa: PTH123 - as a kill after the last save leaves it
        file.write(b"half a row")
    done, calls[:] = sum(calls), [0, 0]
    index = build_index(model, WHOLE, "index", thumbnails=16, extraction=SOME_BAD)
    assert done > 0 and sum(calls) == len(index) - done
    for name in ("features", "lengths", "labels", "keys", "key_ends", "thumbnails", "thumbnail_ends"):
        np.testing.assert_array_equal(np.load(f"index/{name}.npy"), np.load(f"whole/{name}.npy"))


def test_complete_ones_are_opened_and_others_refused(photos, model, monkeypatch):
    monkeypatch.chdir(photos.parent)
    build_index(model, WHOLE, "index", extraction=SOME_BAD)
    monkeypatch.setattr(module, "extend", None)
    assert len(build_index(model, WHOLE, "index", extraction=SOME_BAD)) == 17
    other = small_model()
    other.head.classifier.weight.data += 1
    for arguments in (
        {"precision": "int8"},
        {"thumbnails": 0},
        {"extraction": Extraction("mean", max_bad=1)},
    ):
        with pytest.raises(ConfigError, match="other values"):
            build_index(model, WHOLE, "index", **({"extraction": SOME_BAD} | arguments))
    with pytest.raises(ConfigError, match="fingerprint"):
        build_index(other, WHOLE, "index", extraction=SOME_BAD)
    with pytest.raises(ConfigError, match="another model"):
        search_images(open_index("index"), other, [photos / "class 1" / "1.png"])
    (photos / "class 1" / "new.png").write_bytes((photos / "class 1" / "1.png").read_bytes())
    with pytest.raises(ConfigError, match="data_fingerprint"):
        build_index(model, WHOLE, "index", extraction=SOME_BAD)


def test_a_folder_of_something_else_is_left_alone(photos, model):
    before = sorted(photos.rglob("*"))
    with pytest.raises(ConfigError, match="choose a new folder"):
        build_index(model, str(photos), photos, extraction=SOME_BAD)
    assert sorted(photos.rglob("*")) == before


def test_too_many_broken_images(photos, model):
    (photos / "class 3" / "1.png").write_bytes(b"scribbled over")  # one alone is always tolerated
    with pytest.raises(DataError, match=r"2 of .*18"):
        build_index(
            model, str(photos), photos.parent / "i", labelled=False, extraction=Extraction(max_bad=0.01)
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": "int4"}, "int4"),
        ({"thumbnails": 513}, "513"),
        ({"labelled": False, "split": "train"}, "no splits"),
    ],
)
def test_wrong_settings(photos, model, arguments, message):
    with pytest.raises(ConfigError, match=message):
        build_index(model, str(photos), photos.parent / "i", **arguments)
    assert not (photos.parent / "i").exists()
