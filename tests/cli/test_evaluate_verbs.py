import itertools
import json
from functools import partial

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.evaluators.split import small_model
from vitrail.cli.evaluate_verbs import Passing, Probing, evaluate, fewshot, knn, linear
from vitrail.cli.inspect_verbs import inspect
from vitrail.cli.verb import Common
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.transfer.suite import transfer

DATA = "shapes:colour?n=60&image_size=16"
CPU = Common(device="cpu")


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    vitrail.save(small_model(), tmp_path / "model")
    return str(tmp_path / "model")


def scores(shown):
    return json.loads(json.dumps(shown.result, allow_nan=False))["scores"]


def test_fewshot(bundle, tmp_path):
    shown = fewshot(bundle, DATA, shots=(1, 4), seeds=2, common=CPU)
    assert [row[0] for row in shown.rows] == ["1-shot", "4-shot"]
    assert all(len(row) == len(shown.columns) for row in shown.rows)
    one = scores(shown)[0]
    assert (one["n"], len(one["values"]), one["l2"]) == (15, 2, [1024.0])
    assert shown.result["train"] == "shapes:colour:train"
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_fewshot_with_a_sweep(bundle):
    made = scores(fewshot(bundle, DATA, shots=(4,), seeds=1, sweep=True, common=CPU))
    assert 2.0**-10 <= made[0]["l2"][0] <= 2.0**19
    assert made[0]["std"] is None


def test_the_classifiers_that_are_written(bundle, tmp_path):
    for verb, name in ((fewshot, "few"), (linear, "linear")):
        out = tmp_path / name
        shown = verb(bundle, DATA, out=str(out), probing=Probing(image_size=24), common=CPU)
        model = vitrail.load(out)
        assert model.config.image_size == (24, 24) and model.config.classes == len(model.class_names)
        last = scores(shown)[-1]
        assert evaluate(str(out), DATA, common=CPU).result["top1"] == pytest.approx(
            last["value"], abs=2 / last["n"]
        )
        assert shown.result["out"] == str(out) and str(out) in shown.after[-1]
        with pytest.raises(CheckpointError, match="nothing is overwritten"):
            verb(bundle, DATA, out=str(out), common=CPU)


def test_the_image_size_is_that_of_the_features(bundle):
    for verb in (fewshot, linear, knn):
        lines = {
            verb(bundle, DATA, probing=Probing(image_size=size), common=CPU).result["preprocess"]
            for size in (None, 24)
        }
        assert len(lines) == 2


def test_fewshot_with_big_visions_draws(bundle):
    shown = fewshot(bundle, DATA, shots=(1, 4), seeds=3, draws="big_vision", common=CPU)
    (one, four), own = scores(shown), scores(fewshot(bundle, DATA, shots=(1, 4), common=CPU))
    assert shown.result["draws"] == "big_vision"
    assert len(one["values"]) == 3 and one["value"] == pytest.approx(np.mean(one["values"]))
    assert [one["values"], four["values"]] != [made["values"] for made in own]
    assert [f"{value:.1%}" for value in four["values"]] == shown.rows[1][3].split()
    (scenics,) = scores(fewshot(bundle, DATA, shots=(4,), seeds=3, draws="scenic", common=CPU))
    assert (scenics["std"], len(scenics["values"])) == (None, 1)


def test_knn(bundle):
    shown = knn(bundle, DATA, k=(1, 5), common=CPU)
    assert [row[0] for row in shown.rows] == ["knn weighted", "knn unweighted"]
    assert all(score["k"] in (1, 5) for score in scores(shown))


def test_linear(bundle, tmp_path):
    probing = Probing(which="mean", cache=str(tmp_path / "elsewhere"), test_split="validation")
    shown = linear(bundle, DATA, l2=(1.0, 0.01), probing=probing, common=CPU)
    assert scores(shown)[0]["l2"] in (1.0, 0.01)
    assert shown.result["test"] == "shapes:colour:validation"
    assert len(list((tmp_path / "elsewhere").iterdir())) == 2


def test_without_shots_as_many_as_every_class_has(bundle):
    assert [row[0] for row in fewshot(bundle, DATA, seeds=1, common=CPU).rows] == ["1-shot", "5-shot"]


def test_more_shots_than_there_are_examples(bundle, tmp_path):
    with pytest.raises(DataError, match=r"11-shot: class .* at most 7 shots"):
        fewshot(bundle, DATA, shots=(11,), common=CPU)
    assert not (tmp_path / "cache").exists()  # said before anything is computed


def test_a_data_set_without_a_test_split(bundle, tmp_path):
    np.savez(tmp_path / "one.npz", x_train=np.zeros((4, 16, 16, 3), np.uint8), y_train=np.array([0, 1, 0, 1]))
    with pytest.raises(ConfigError, match="no split test or validation; name one of train"):
        knn(bundle, str(tmp_path / "one.npz"), common=CPU)


@pytest.fixture
def some_broken(tmp_path):
    """A folder in which a third of the images of each class is broken."""
    for split, name in itertools.product(("train", "test"), ("black", "white")):
        (tmp_path / "photos" / split / name).mkdir(parents=True)
        for i in range(6):
            path = tmp_path / "photos" / split / name / f"{i}.png"
            Image.new("RGB", (16, 16), name).save(path)
            if i < 2:
                path.write_bytes(b"scribbled over")
    return str(tmp_path / "photos")


def test_many_broken_images_where_they_are_allowed(bundle, some_broken, tmp_path, caplog):
    probing = Probing(max_bad=0.5)
    for probe in (partial(fewshot, shots=(1,), seeds=1), partial(knn, k=(1,)), partial(linear, l2=(1.0,))):
        with pytest.raises(DataError, match="of 12 examples are broken"):
            probe(bundle, some_broken, probing=Probing(cache=str(tmp_path / "other")), common=CPU)
        shown = probe(bundle, some_broken, probing=probing, common=CPU)
        assert {score["n"] for score in scores(shown)} == {8}
    assert "photos:test: 4 of 12 examples are broken, and left out" in caplog.text


def test_a_page_of_an_inspection_counts_them(some_broken, tmp_path):
    vitrail.save(small_model(2, ["black", "white"]), tmp_path / "model")
    out = tmp_path / "look"
    inspect(str(tmp_path / "model"), data=some_broken, out=str(out), closely=0, common=CPU)
    assert "4 images" in (out / "report.html").read_text()


def test_evaluate_and_transfer_allow_them_likewise(some_broken, tmp_path):
    vitrail.save(small_model(2, ["black", "white"]), tmp_path / "model")
    model, out = str(tmp_path / "model"), str(tmp_path / "out")
    with pytest.raises(DataError, match="of 12 examples are broken"):
        evaluate(model, some_broken, common=CPU)
    shown = evaluate(model, some_broken, passing=Passing(max_bad=0.5), common=CPU)
    assert (shown.result["n"], shown.result["broken"]) == (8, 4)
    tiny = {"k": (1,), "steps": 2, "batch_size": 4, "seeds": 1, "max_bad": 0.5, "device": "cpu"}
    made = transfer(model, (some_broken,), out, methods=("knn", "finetune"), **tiny)
    assert {row["test_examples"] for row in made["rows"]} == {8}
