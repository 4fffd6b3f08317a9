"""From a model to a folder that others can use: written, compared, opened again, or nothing left."""

import json
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import vitrail
from tests.cli.test_model_verbs import one_line, small_files
from tests.exporting.small import KINDS, photographs, small_model
from tests.randomise import randomise
from vitrail.checkpoints.checkpoint import from_model, to_model
from vitrail.errors import CheckFailed, CheckpointError, ConfigError
from vitrail.exporting import verify
from vitrail.inference.bulk import predict_to

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def files(model, tmp_path_factory):
    """Exported folders by input."""
    folder = tmp_path_factory.mktemp("exported")
    vitrail.export(model, folder / "pixels", timing=False, rollout=True)
    vitrail.export(model, folder / "tensor", input="tensor", image_size="dynamic", timing=True)
    return folder


@pytest.mark.parametrize("input", ["pixels", "tensor"])
def test_every_verb_that_runs_a_model_forward_takes_the_file(input, model, files, tmp_path, vitrail_command):
    images = photographs(6)
    expected = vitrail.predict(model, images)
    for path in (files / input, files / input / "model.onnx"):
        for one, other in zip(vitrail.predict(path, images), expected, strict=True):
            assert dict(one) == pytest.approx(dict(other), abs=1e-3)
    ours, theirs = vitrail.features(model, images), vitrail.features(files / input, images)
    np.testing.assert_allclose(theirs, ours, atol=0.02 * ours.std())
    for i, image in enumerate(images):
        place = tmp_path / "data" / ("train" if i % 2 else "test") / f"class {i // 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{i}.png")
    (tmp_path / "data" / "test" / "class 0" / "broken.png").write_bytes(b"no picture")
    names = tmp_path / "mapping.json"
    names.write_text(json.dumps({f"class {k}": [k] for k in range(3)}))
    flags = ("--mapping", names, "--max-bad", "0.5")
    code, out, err = vitrail_command("evaluate", files / input, tmp_path / "data", *flags, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert (result["n"], result["broken"]) == (3, 1)
    loss = vitrail.evaluate(model, tmp_path / "data", mapping=names, max_bad=0.5).loss
    assert result["loss"] == pytest.approx(loss, abs=1e-2)
    for verb in (("knn", "--k", "1"), ("fewshot", "--shots", "1")):
        cache = ("--cache", tmp_path / "cache", "--max-bad", "0.5", "--json")
        code, out, err = vitrail_command(verb[0], files / input, tmp_path / "data", *verb[1:], *cache)
        assert code == 0, err


@pytest.mark.parametrize("input", ["pixels", "tensor"])
def test_predictions_are_written_to_files(input, model, files, tmp_path, vitrail_command):
    images, out = tmp_path / "images", tmp_path / "p.parquet"
    images.mkdir()
    for i, image in enumerate(photographs(5)):
        Image.fromarray(image).save(images / f"{i}.png")
    (images / "2.png").write_bytes(b"no picture")
    words = ("predict", files / input / "model.onnx", images, "--out")
    code, _, err = vitrail_command(
        *words, out, "--probabilities", "--features", "--sort-into", tmp_path / "sorted"
    )
    assert code == 0, err
    predict_to(model, images, tmp_path / "q.parquet", probabilities=True, features=True)
    rows, expected = (pq.read_table(tmp_path / f"{name}.parquet").to_pylist() for name in "pq")
    assert [row["path"] for row in rows] == [str(images / f"{i}.png") for i in range(5)]
    assert [row["error"] is None for row in rows] == [i != 2 for i in range(5)]
    for i in (0, 1, 3, 4):
        assert rows[i]["probabilities"] == pytest.approx(expected[i]["probabilities"], abs=1e-3)
        assert rows[i]["features"] == pytest.approx(expected[i]["features"], abs=0.1)
        assert (tmp_path / "sorted" / rows[i]["class"] / f"{i}.png").exists()
    for flags, word in ((("--precision", "bf16"), "exported with"), (("--on", "ray"), "run here")):
        code, _, err = vitrail_command(*words, tmp_path / "r.parquet", *flags)
        assert code == 2 and word in err and not list(tmp_path.glob("r.*"))


def test_the_report_says_what_was_compared(files):
    report = json.loads((files / "tensor" / "report.json").read_text())
    d = report["differences"]
    assert d["batches"] == [1, 3, 16] and d["largest"] <= 1e-4 * d["spread"] and d["spread"] > 0.1
    assert [one["batch"] for one in report["speed"]] == [1, 16]
    assert 10 << 20 < report["peak_bytes"] < 1 << 30
    assert report["bytes"] == (files / "tensor" / "model.onnx").stat().st_size


def test_the_program_needs_neither_vitrail_nor_torch(files, model, tmp_path):
    Image.fromarray(photographs(1)[0]).save(tmp_path / "a.png")
    block = "import sys; sys.modules['torch'] = sys.modules['vitrail'] = None; import runpy; "
    code = f"{block}sys.argv = ['run.py', sys.argv[2]]; runpy.run_path({str(files / 'pixels' / 'run.py')!r})"
    done = subprocess.run(
        [sys.executable, "-c", code, "-", str(tmp_path / "a.png")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ((name, _), *_) = vitrail.predict(model, tmp_path / "a.png")[0]
    assert name in done.stdout.splitlines()[0]
    assert (files / "pixels" / "run.py").read_text().strip() in (files / "pixels" / "README.md").read_text()
    assert "MIT" in (files / "pixels" / "README.md").read_text()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "ViT"])
def test_every_kind_of_model(kind, tmp_path):
    vitrail.export(small_model(kind), tmp_path / "out", input="tensor", timing=False)


def test_norms_of_many_pixels_are_exact(tmp_path):
    """ONNX Runtime's own lose five times as much, in one unit of a ResNet."""
    model = randomise(vitrail.create("R50x1", units=(1,), classes=7))
    model.head.classifier.weight.data *= 8
    d = vitrail.export(model, tmp_path / "out", input="tensor", timing=False).differences
    assert d.largest < 5e-6 * d.spread


def test_a_fixed_batch_and_another_image_size(model, tmp_path):
    vitrail.export(model, tmp_path / "out", batch=2, image_size=(40, 48), input="tensor", timing=False)
    assert model.config.image_size == (32, 32)
    images, larger = photographs(5), to_model(from_model(model), image_size=(40, 48))
    for one, other in zip(
        vitrail.predict(tmp_path / "out", images), vitrail.predict(larger, images), strict=True
    ):
        assert dict(one) == pytest.approx(dict(other), abs=1e-3)


def test_a_file_that_is_not_the_model_is_not_kept(model, tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "outputs", lambda model, x: {
        "logits": model(x).detach() * 1.01, "features": model.features(x).detach()})  # fmt: skip
    with pytest.raises(CheckFailed, match="differ"):
        vitrail.export(model, tmp_path / "out", input="tensor", timing=False)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported(model, tmp_path):
    place = tmp_path / "out"
    for settings, word in (
        ({"to": "caffe"}, "onnx, openvino"),
        ({"precision": "int4"}, "float16"),
        ({"precision": "bf16"}, "float16"),
        ({"input": "jpeg"}, "pixels, tensor"),
        ({"batch": 0}, "batch"),
        ({"image_size": "dynamic"}, "tensor"),
        ({"image_size": "large"}, "dynamic"),
        ({"batch": "many"}, "batch"),
        ({"to": "executorch"}, "--input tensor"),
        ({"to": "executorch", "input": "tensor", "precision": "int8"}, "float32, not in 'int8'"),
        ({"to": "torch", "precision": "fp8"}, "--device cuda"),
        ({"precision": "int8"}, "--calibrate"),
    ):
        with pytest.raises(ConfigError, match=word):
            vitrail.export(model, place, **settings)
    with pytest.raises(ConfigError, match="another size"):
        vitrail.export(small_model("relative"), place, input="tensor", image_size="dynamic")
    with pytest.raises(ConfigError, match="rollout"):
        vitrail.export(small_model("BiT"), place, rollout=True)
    with pytest.raises(ConfigError, match="folder"):
        vitrail.export(model, tmp_path / "model.onnx")
    with pytest.raises(CheckpointError, match="exists"):
        vitrail.export(model, tmp_path)
    broken = small_model()
    broken.head.classifier.weight.data[0, 0] = torch.nan
    with pytest.raises(CheckpointError, match="finite"):
        vitrail.export(broken, place)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_and_a_place_that_cannot_be_written(model, tmp_path, vitrail_command):
    vitrail.save(model, tmp_path / "model")
    out = tmp_path / "out" / "exported"
    with small_files(3000):
        said = one_line(vitrail_command("export", tmp_path / "model", out, "--no-timing"))
    assert "exported" in said and not list((tmp_path / "out").iterdir())
    said = one_line(vitrail_command("export", tmp_path / "model", "/proc/exported", "--no-timing"))
    assert "/proc" in said


def test_an_exported_file_is_not_trained_or_converted(files, tmp_path, vitrail_command):
    for words in (
        ("convert", files / "pixels", tmp_path / "x"),
        ("inspect", files / "pixels", "--out", tmp_path / "x"),
        ("predict", files / "pixels", files, "--image-size", "64"),
    ):
        code, _, err = vitrail_command(*words)
        assert code == 2 and "error: " in err, (words, err)
    (tmp_path / "data" / "test" / "class 0").mkdir(parents=True)
    image = tmp_path / "data" / "test" / "class 0" / "a.png"
    Image.fromarray(photographs(1)[0]).save(image)
    for input in ("pixels", "tensor"):
        for words in (("predict", files / input, image), ("evaluate", files / input, tmp_path / "data")):
            assert "exported with" in one_line(vitrail_command(*words, "--precision", "bf16"))
