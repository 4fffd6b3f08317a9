"""Training and evaluation of images of any shape, by the one loop."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.train.small import experiment, measured
from tests.train.test_run import same_weights, stop_after, weights
from vitrail.checkpoints.formats import load
from vitrail.data.loader import Loader
from vitrail.data.preprocess import parse
from vitrail.data.settings import DataSettings
from vitrail.data.sources import open_source
from vitrail.errors import ConfigError, Interrupted
from vitrail.train.run import run

SIZES = [(40, 20), (16, 48), (30, 30), (64, 17)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("any") / "photos", np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for i in range(12):
            pixels = rng.integers(0, 256, (*SIZES[i % 4], 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def settings(photos, **more):
    splits = {
        "train": "train[:75% per class]",
        "val": "train[75%: per class]",
        "test": "train[75%: per class]",
    }
    size = {"image_size": "any", "max_tokens": 12, "mixup": 0.0, "cutmix": 0.0, "model": "mu/8"}
    return experiment(data=str(photos), **(splits | size | more))


@pytest.fixture(scope="module")
def whole(photos, tmp_path_factory):
    return run(settings(photos), tmp_path_factory.mktemp("whole") / "run", device="cpu")


def test_the_model_has_the_line_and_evaluates_by_it(whole, photos):
    model = whole.model()
    assert model.preprocess == "fit_patches(12, 8)|uint8|to_range(-1, 1)"
    again = vitrail.evaluate(model, photos, split="train[75%: per class]", progress=False)
    assert again.top1 == whole.results["test"]["top1"]
    assert again.loss == pytest.approx(whole.results["test"]["loss"], rel=1e-5)
    # One image at a time, without any padding.
    line, files = parse(model.preprocess), sorted(photos.glob("a/*.png"))[:5]
    with torch.no_grad():
        each = [model(line(np.asarray(Image.open(file)))[None]).softmax(dim=1)[0] for file in files]
    for p, prediction in zip(each, vitrail.predict(model, files), strict=True):
        assert dict(prediction) == pytest.approx(
            dict(zip(model.class_names, p.tolist(), strict=True)), abs=1e-5
        )


def test_stopped_and_continued_is_bit_for_bit_the_same(whole, photos, tmp_path, monkeypatch):
    stop_after(monkeypatch, 5)
    with pytest.raises(Interrupted):
        run(settings(photos), tmp_path / "run", device="cpu")
    monkeypatch.undo()
    again = run(settings(photos), tmp_path / "run", device="cpu")
    assert same_weights(weights(again.folder), weights(whole.folder))
    rows = [
        measured([json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()])
        for folder in (again.folder, whole.folder)
    ]
    assert rows[0] == rows[1]


def test_a_batch_is_the_same_by_any_process_and_worker(photos):
    source, line = (
        open_source(str(photos), "train"),
        parse("flip_lr|fit_patches(12, 8)|uint8|to_range(-1, 1)"),
    )
    data = DataSettings(batch_size=8)
    one = Loader(source, line, data, seed=3).batch(5)
    parts = [Loader(source, line, data, seed=3, rank=r, world=2).batch(5) for r in range(2)]
    for name, t in one.items():
        assert torch.equal(t, torch.cat([part[name] for part in parts])), name
    assert one["image"].shape == (8, 3, 8, 96) and len(set(map(tuple, one["grid"].tolist()))) > 1
    (worked,) = Loader(source, line, data, seed=3).batches(5, 6, num_workers=1)
    assert all(torch.equal(one[name], worked[name]) for name in one)


def test_any_model_evaluates_images_of_any_shape(photos, tmp_path):
    model = load("ti8-64", image_size="any", max_tokens=20)
    assert model.preprocess.startswith("fit_patches(20, 8)")
    assert len(vitrail.predict(model, photos / "a")) == 12
    vitrail.save(model, tmp_path / "m")
    assert load(tmp_path / "m").preprocess == model.preprocess
    assert load(tmp_path / "m", image_size=64).preprocess == load("ti8-64").preprocess


def test_features_are_those_of_each_image(photos):
    model = load("ti8-64", image_size="any", max_tokens=20)
    line, files = parse(model.preprocess), sorted(photos.glob("a/*.png"))[:5]
    with torch.no_grad():
        each = [model.features(line(np.asarray(Image.open(file)))[None]) for file in files]
    together = vitrail.features(model, files)
    np.testing.assert_allclose(together, torch.cat(each).numpy(), rtol=0, atol=1e-5)
    splits = {"train_split": "train[:50% per class]", "test_split": "train[50%: per class]"}
    (score, *_) = vitrail.knn(model, photos, k=[3], **splits)
    assert score.n == len(open_source(str(photos), splits["test_split"]))
    with pytest.raises(ConfigError, match="needs images of one size"):
        vitrail.features(model, files, which="mean")
    with pytest.raises(ConfigError, match="needs images of one size"):
        vitrail.inspect(model, files)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"mixup": 0.2}, "cannot be mixed"),
        (
            {"preprocess": "inception_crop(32)|flip_lr|to_range(-1, 1)"},
            "any shape|keeps the aspect|the model takes",
        ),
        ({"objective": "masked-patches"}, "any shape|aspect|takes"),
        ({"model": "R50x1", "dropout": None, "drop_path": None}, "need a ViT"),
        ({"resident": True}, "resident augments images of one size"),
    ],
)
def test_refused(photos, tmp_path, more, words):
    with pytest.raises(ConfigError, match=words):
        run(settings(photos, **more), tmp_path / "run", device="cpu")
