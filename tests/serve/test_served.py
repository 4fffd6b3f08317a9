"""Models by name: swapped when their files change, a bad one refused, requests answered all the while."""

import shutil
import threading
import time

import numpy as np
import pytest
import torch

import vitrail
from tests.serve.asking import picture
from tests.serve.conftest import save_model
from vitrail.errors import CheckpointError, ConfigError
from vitrail.serve.metrics import Metrics
from vitrail.serve.served import ServedModels, UnknownModel, files_state, name_sources


@pytest.fixture
def models(tmp_path):
    served = ServedModels(Metrics(), device="cpu")
    served.open("m", str(save_model(tmp_path / "m")))
    yield served
    served.close()


def ask(models, seed=0):
    served, (future,) = models.submit("m", [picture(seed)], ["a"], 60)
    return served, future.result(60).logits


def expected(folder, seed=0):
    model = vitrail.load(folder)
    with torch.no_grad():
        return model(vitrail.transform(model)(picture(seed))[None])[0].numpy()


def replace(models, folder, seed):
    """Write another model in its place, and let the watcher see it."""
    save_model(folder, seed)
    models.swap("m", files_state(str(folder)))


def test_changed_files_are_served_and_the_old_model_ends(models, tmp_path):
    before, first = ask(models)
    assert np.allclose(first, expected(tmp_path / "m"), atol=1e-4)
    replace(models, tmp_path / "m", seed=1)
    after, second = ask(models)
    assert after is not before and before.predictor.closing
    assert np.allclose(second, expected(tmp_path / "m"), atol=1e-4) and not np.allclose(
        first, second, atol=1e-2
    )


def test_a_bad_model_is_refused_and_the_old_one_stays(models, tmp_path):
    before, first = ask(models)
    weights = tmp_path / "m" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 255
    weights.write_bytes(data)
    models.swap("m", files_state(str(tmp_path / "m")))
    after, second = ask(models)
    assert after is before and (first == second).all()
    assert "damaged" in models.refused["m"]
    shutil.rmtree(tmp_path / "m")
    models.swap("m", files_state(str(tmp_path / "m")))
    assert ask(models)[0] is before and models.refused["m"]
    replace(models, tmp_path / "m", seed=2)
    assert ask(models)[0] is not before and "m" not in models.refused


def test_the_watcher_swaps_by_itself(models, tmp_path, monkeypatch):
    monkeypatch.setattr("vitrail.serve.served.POLL", 0.02)
    models.watcher.start()
    before = models.get("m")
    save_model(tmp_path / "m", seed=1)
    until = time.monotonic() + 60
    while models.get("m") is before and time.monotonic() < until:
        time.sleep(0.02)
    assert np.allclose(ask(models)[1], expected(tmp_path / "m"), atol=1e-4)


def test_every_request_during_swaps_is_answered_by_one_model(models, tmp_path):
    """Each answer is the whole answer of the model that took the request."""
    answers, stop = [], threading.Event()

    def keep_asking():
        while not stop.is_set():
            answers.append(ask(models))

    threads = [threading.Thread(target=keep_asking) for _ in range(4)]
    for thread in threads:
        thread.start()
    known = {models.get("m"): expected(tmp_path / "m")}
    for seed in (1, 2, 3):
        replace(models, tmp_path / "m", seed)
        known[models.get("m")] = expected(tmp_path / "m")
    stop.set()
    for thread in threads:
        thread.join(60)
    assert len(answers) >= len(threads)
    for served, logits in answers:
        assert np.allclose(logits, known[served], atol=1e-4)


def test_a_model_that_computes_nonsense_is_refused(tmp_path):
    model = vitrail.create("mu/8", image_size=32, classes=3)
    torch.nn.init.constant_(model.head.classifier.weight, 3e38)
    torch.nn.init.constant_(model.encoder.norm.bias, 3e38)
    vitrail.save(model, tmp_path / "huge")
    served = ServedModels(Metrics(), device="cpu")
    with pytest.raises(CheckpointError, match="finite"):
        served.open("huge", str(tmp_path / "huge"))
    assert not served.models


def test_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert name_sources(["ti8-64"]) == {"ti8-64": "ti8-64"}
    assert name_sources(["a=x/y"]) == {"a": "x/y"}
    assert name_sources(["runs/flowers/model"]) == {"flowers": "runs/flowers/model"}
    assert name_sources(["dir/ViT-B_16.npz"]) == {"ViT-B_16": "dir/ViT-B_16.npz"}
    assert list(name_sources(["dir/my model <b>.npz"])) == ["my-model-b-"]
    (tmp_path / "x=y").mkdir()
    assert name_sources(["x=y"]) == {"x-y": "x=y"}
    with pytest.raises(ConfigError):
        name_sources(["a/m.npz", "b/m.npz"])


def test_unknown_names_are_told_with_the_known(models):
    with pytest.raises(UnknownModel, match="m"):
        models.get("nope")
