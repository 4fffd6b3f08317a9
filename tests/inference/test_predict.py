import importlib.util
import json
import math
import runpy
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.evaluators.split import small_model
from vitrail.data.sources import open_source
from vitrail.errors import CheckpointError, ConfigError, DataError, ImageError
from vitrail.inference.features import features
from vitrail.inference.predict import class_names, predict, predict_each, read_class_names
from vitrail.models.calibration import Calibration


def saved_pictures(folder, n, side=8):
    folder.mkdir(exist_ok=True)
    for i in range(n):
        Image.new("RGB", (side, side), (6 * i, 255 - 6 * i, 0)).save(folder / f"{i:02}.png")
    return sorted(folder.glob("*.png"))


def test_one_decoded_image_is_held_at_a_time(tmp_path):
    model, paths = small_model(), saved_pictures(tmp_path, 12, side=800)  # 1.9 MB each
    tracemalloc.start()
    try:
        made = list(predict_each(model, paths))
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
    assert len(made) == 12 and all(len(top) == 5 for top in made)


def test_files_that_cannot_be_read_have_their_errors_in_their_places(tmp_path):
    paths = saved_pictures(tmp_path, 40)
    for i in (0, 7, 39):
        paths[i].write_bytes(b"scribbled over")
    paths[33].unlink()
    with paths[34].open("wb") as file:
        file.truncate(1 << 40)  # a hole: nothing is on the disk
    model, made = small_model(), list(predict_each(small_model(), paths))
    broken = [i for i, found in enumerate(made) if isinstance(found, ImageError)]
    assert broken == [0, 7, 33, 34, 39]
    assert all(paths[i].name in str(made[i]) for i in broken)
    for i in {*range(40)} - {*broken}:
        assert dict(made[i]) == pytest.approx(dict(predict(model, paths[i])[0]), rel=1e-4)


def test_a_model_is_unsure_below_the_threshold_of_a_class(tmp_path):
    model, paths = small_model(), saved_pictures(tmp_path, 12)
    plain = predict(model, paths, 3)
    assert all(one.answer == (one[0][0],) for one in plain)
    middle = float(np.median([one[0][1] for one in plain]))
    model.calibration = Calibration(thresholds=(middle,) * 7)
    for before, after in zip(plain, predict(model, paths, 3), strict=True):
        assert after == before
        assert after.answer == (before.answer if before[0][1] >= middle else ())


def test_a_temperature_makes_it_less_sure_of_the_same_class(tmp_path):
    model, paths = small_model(), saved_pictures(tmp_path, 4)
    plain = predict(model, paths)
    model.calibration = Calibration(3.0)
    for before, after in zip(plain, predict(model, paths), strict=True):
        assert [name for name, _ in after] == [name for name, _ in before] and after[0][1] < before[0][1]


def test_of_several_labels_every_class_above_its_threshold_is_shown(tmp_path):
    model, paths = small_model(), saved_pictures(tmp_path, 6)
    model.calibration = Calibration(3.0, (0.6,) * 7, multi_label=True)
    for one, whole in zip(predict(model, paths, 1), predict(model, paths, 7), strict=True):
        assert one.answer == whole.answer == tuple(name for name, p in whole if p >= np.float32(0.6))
        assert one == whole[: max(1, len(one.answer))]
        assert 1 < len(one.answer) < 7


def test_a_folder_and_a_pattern_as_on_the_command_line(tmp_path):
    model, paths = small_model(), saved_pictures(tmp_path, 3)
    one_by_one = [predict(model, path)[0] for path in paths]
    for given in (tmp_path, f"{tmp_path}/*.png", [tmp_path], [paths[0], f"{tmp_path}/0[12].png"]):
        made = predict(model, given)
        assert len(features(model, given)) == len(made) == 3
        for one, other in zip(made, one_by_one, strict=True):
            assert dict(one) == pytest.approx(dict(other), rel=1e-4)


def test_a_model_or_where_it_is(tmp_path):
    model, paths = small_model(), saved_pictures(tmp_path, 1)
    vitrail.save(model, tmp_path / "model")
    (here,) = predict(model, paths)
    for where in (tmp_path / "model", str(tmp_path / "model")):
        (there,) = predict(where, paths)
        # Weights at another place in memory: sums are taken in another order.
        assert dict(there) == pytest.approx(dict(here), rel=1e-4)
        np.testing.assert_allclose(features(where, paths), features(model, paths), rtol=1e-4, atol=1e-5)


def broken_and_whole(folder):
    """Six images, of which 1, 3 and 4 cannot be read, each in its own way."""
    paths = saved_pictures(folder, 6)
    paths[1].write_bytes(b"scribbled over")
    paths[3].unlink()
    paths[3].symlink_to(folder / "nowhere.png")
    paths[4].write_bytes(paths[4].read_bytes()[:50])
    return paths


def test_an_image_that_cannot_be_read_does_not_stop_the_others(tmp_path, caplog):
    paths, model = broken_and_whole(tmp_path), small_model()
    for given in (paths, tmp_path, iter(map(str, paths))):
        caplog.clear()
        made = predict(model, given)
        assert [len(top) for top in made] == [5, 0, 5, 0, 0, 5]
        assert dict(made[5]) == pytest.approx(dict(predict(model, paths[5])[0]), rel=1e-4)
        (said,) = caplog.messages
        assert "3 of 6 images" in said and all(paths[i].name in said for i in (1, 3, 4))


def test_python_and_the_command_have_one_policy(tmp_path, vitrail_command):
    paths = broken_and_whole(tmp_path)
    vitrail.save(small_model(), tmp_path / "model")
    code, out, err = vitrail_command("predict", tmp_path / "model", *paths, "--json", "--device", "cpu")
    answer = json.loads(out)
    made = predict(tmp_path / "model", paths)
    assert code == 2 and len(answer["errors"]) == 3 == err.count("error: ")
    assert [one["path"] for one in answer["images"]] == [
        str(p) for p, top in zip(paths, made, strict=True) if top
    ]


def test_of_images_of_which_none_can_be_read_the_first_is_named(tmp_path, vitrail_command):
    paths = [path for i, path in enumerate(broken_and_whole(tmp_path)) if i in (1, 3, 4)]
    for given in (paths, paths[0]):
        with pytest.raises(ImageError, match=r"01\.png"):
            predict(small_model(), given)
    vitrail.save(small_model(), tmp_path / "model")
    code, out, err = vitrail_command("predict", tmp_path / "model", *paths)
    assert (code, out) == (2, "") and "01.png" in err
    assert predict(small_model(), []) == []


def test_broken_bytes_and_examples_too(tmp_path, caplog):
    model, whole = small_model(), saved_pictures(tmp_path / "cat", 3)
    made = predict(model, [whole[0].read_bytes(), b"scribbled over", np.zeros((4, 4, 3), np.uint8)])
    assert [len(top) for top in made] == [5, 0, 5]
    whole[1].write_bytes(b"scribbled over")
    source = open_source(f"{tmp_path}?validation=0&test=0")
    assert [len(top) for top in predict(model, source)] == [5, 0, 5]


@pytest.mark.parametrize("call", [predict, features])
@pytest.mark.parametrize("images", [None, 3, [None], {"a": 1}.items()])
def test_what_is_no_image_is_refused_in_words(call, images):
    with pytest.raises(ConfigError, match="not of type"):
        call(small_model(), images)
    with pytest.raises(ConfigError, match=r"a model, a path or a name.*NoneType"):
        call(None, np.zeros((16, 16, 3), np.uint8))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_outputs_that_are_no_numbers_are_refused(value):
    model = small_model()
    model.encoder.norm.weight.data[0] = value
    picture = np.zeros((16, 16, 3), np.uint8)
    for call in (predict, features):
        with pytest.raises(CheckpointError, match="not finite"):
            call(model, picture)


def test_imagenets_names_need_no_torchvision(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    model = vitrail.create("mu/8", image_size=16, classes=1000)
    (made,) = predict(model, np.zeros((16, 16, 3), np.uint8), top=1000)
    assert len({name for name, _ in made}) == 1000  # no two are alike
    names = class_names(model)
    assert (names[0], names[1], names[281], names[999]) == ("tench", "goldfish", "tabby", "toilet tissue")


def test_imagenets_names_are_torchvisions():
    """Its list is read by itself, for where it does not import."""
    package = importlib.util.find_spec("torchvision")
    if package is None or not package.submodule_search_locations:
        pytest.skip("torchvision is not installed")
    path = Path(package.submodule_search_locations[0], "models", "_meta.py")
    assert runpy.run_path(str(path))["_IMAGENET_CATEGORIES"] == class_names(
        vitrail.create("mu/8", image_size=16)
    )


@pytest.mark.parametrize(
    ("name", "text"), [("a.txt", "ant\r\nbee\n\n 7 \n"), ("a.json", '["ant", " bee", 7]')]
)
def test_class_names_of_a_file(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_class_names(tmp_path / name, 3) == ["ant", "bee", "7"]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *(
            ("a.json", data)
            for data in (b"5", b"null", b"true", b'"ant"', b'{"0": "ant"}', b"[null, true, 1.5]")
        ),
        ("a.json", b'[["ant"], {}, "bee"]'),
        ("a.json", b"[" * 100_000),
        ("a.json", b"ant"),
        ("a.txt", b"caf\xe9\n"),
        ("a.txt", b"ant\n"),
    ],
)
def test_a_file_without_class_names(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=name):
        read_class_names(tmp_path / name, 3)


def test_a_file_too_large_for_class_names(tmp_path):
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match="at most"):
        read_class_names(tmp_path / "a.txt", 3)
