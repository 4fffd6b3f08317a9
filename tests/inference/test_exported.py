"""Exported files of strangers: whatever is wrong with one is an error in words, and never a crash of this process."""

import json
import shutil
import zipfile

import numpy as np
import pytest
import torch

import vitrail
from tests.exporting.small import small_model
from vitrail.errors import CheckpointError
from vitrail.inference import exported, runtimes
from vitrail.inference.exported import read_exported

onnx = pytest.importorskip("onnx")
MUTATIONS = 200


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "out"
    vitrail.export(small_model(), out, input="tensor", timing=False)
    return out / "model.onnx"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "out"
    model = small_model()
    model.provenance = {"experiment": {"target": "mean"}}  # words that also mean something in a graph
    vitrail.export(model, out, "torch", timing=False)
    return out / "model.pt2"


def with_card(file, place, **changes):
    """Write the file with entries of its card replaced."""
    model = onnx.load(file)
    card = json.loads(model.metadata_props[0].value) | changes
    onnx.helper.set_model_props(model, {"vitrail": json.dumps(card)})
    onnx.save(model, place)
    return place


def test_what_a_file_gives_has_names(file):
    model = read_exported(file)
    outputs = model.run(torch.randn(2, 3, 32, 32))
    assert set(outputs) == {"logits", "probabilities", "features"}
    torch.testing.assert_close(outputs["probabilities"], outputs["logits"].softmax(1))
    assert model.class_names == [f"class {k}" for k in range(7)] and model.license["weights"] == "MIT"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"classes": 8, "class_names": None}, "outputs"),
        ({"width": 33}, "outputs"),
        ({"class_names": ["one"]}, "class names"),
        ({"version": 99}, "version 99"),
        ({"preprocess": "rm(-rf)"}, "op"),
        ({"image_size": [32]}, "damaged|cannot be run"),
        ({"image_size": [1 << 20, 1 << 20]}, "cannot be run|damaged"),
        ({"image_size": "large"}, "cannot be run"),
        ({"classes": "many"}, "classes"),
        ({"input": "sound"}, "no input"),
        ({"batch": -1}, "cannot be run"),
    ],
)
def test_a_card_that_is_wrong(changes, word, file, tmp_path):
    with pytest.raises(CheckpointError, match=word):
        read_exported(with_card(file, tmp_path / "model.onnx", **changes))


def test_a_file_of_somebody_else(file, tmp_path):
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["B", 3, 32, 32])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["B", 3, 32, 32])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(CheckpointError, match="did not write it"):
        read_exported(tmp_path / "model.onnx")
    card = json.loads(onnx.load(file).metadata_props[0].value)
    onnx.helper.set_model_props(model, {"vitrail": json.dumps(card)})
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(CheckpointError, match="outputs"):
        read_exported(tmp_path / "model.onnx")


def test_a_damaged_file(file, tmp_path, vitrail_command):
    for content in (b"", b"not a model", file.read_bytes()[:5000]):
        (tmp_path / "model.onnx").write_bytes(content)
        code, _, err = vitrail_command("predict", tmp_path / "model.onnx", tmp_path)
        assert code == 2 and err.count("\n") == 1, err
        with pytest.raises(CheckpointError):
            read_exported(tmp_path / "model.onnx")
    with pytest.raises(CheckpointError, match="no such file"):
        read_exported(tmp_path / "missing.onnx")


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("import sys; sys.exit(7)", "exit code 7"),
        ("print('no answer')", "without an answer"),
        ("import time; time.sleep(60)", "within 1 seconds"),
    ],
)
def test_a_runtime_that_crashes_or_hangs(program, word, file, tmp_path, monkeypatch):
    (tmp_path / "trial.py").write_text(program)
    monkeypatch.setattr(runtimes, "__file__", str(tmp_path / "trial.py"))
    monkeypatch.setattr(exported, "SECONDS", 1.0)
    with pytest.raises(CheckpointError, match=word):
        read_exported(file)


def test_a_program_that_would_run_code(program, tmp_path):
    """Whatever PyTorch would unpickle or evaluate is refused before it reads the file."""
    runtimes.check_torch_program(program)
    changes = {
        "an operator": ("torch.ops.aten.linear.default", "torch.os.system"),
        "a size": ("Symbol('", "__import__('"),
        "guards": ('"guards_code":[]', '"guards_code":["print(1)"]'),
        "a pickle": ('"use_pickle":false', '"use_pickle":true'),
    }
    for what, (old, new) in changes.items():
        place = tmp_path / "model.pt2"
        changed = rewrite(program, place, old, new)
        assert changed, what
        with pytest.raises(CheckpointError, match="cannot be run"):
            read_exported(place)
    with zipfile.ZipFile(shutil.copy(program, tmp_path / "more.pt2"), "a") as archive:
        archive.writestr("model/data/aotinductor/model/x.so", b"\x7fELF")
    with pytest.raises(CheckpointError, match="not read"):
        read_exported(tmp_path / "more.pt2")


def rewrite(source, place, old, new):
    """Copy an archive with a text replaced in its JSON members, however it is spaced; return how often."""
    count = 0
    with zipfile.ZipFile(source) as a, zipfile.ZipFile(place, "w") as b:
        for entry in a.infolist():
            content = a.read(entry)
            if entry.filename.endswith(".json"):
                text = json.dumps(json.loads(content), separators=(",", ":"))
                count += text.count(old)
                content = text.replace(old, new).encode()
            b.writestr(entry.filename, content)
    return count


@pytest.mark.long
def test_random_mutations(file, tmp_path):
    """Bytes changed, removed or inserted anywhere: the file runs, or the error says why not."""
    content, rng = np.frombuffer(file.read_bytes(), np.uint8), np.random.default_rng(0)
    place, refused = tmp_path / "model.onnx", 0
    x = torch.randn(1, 3, 32, 32)
    for i in range(MUTATIONS):
        # Half of them in the last part of the file, where the graph is; weights take most of the rest.
        start = 0 if i % 2 else max(0, len(content) - 40_000)
        at, n = int(rng.integers(start, len(content))), int(rng.choice([1, 1, 4, 64, 4096]))
        noise = rng.integers(0, 256, n, dtype=np.uint8)
        pieces = [(content[:at], noise, content[at + n :]), (content[:at], content[at + n :]),
                  (content[:at], noise, content[at:])]  # fmt: skip
        place.write_bytes(np.concatenate(pieces[i % 3]).tobytes())
        try:
            read_exported(place)(x)
        except CheckpointError:
            refused += 1
    assert refused > 0
