"""Classes by texts: the file, and what it makes of a model."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import vitrail
from tests.inspection.looked_at import bit, made, pictures
from vitrail.data.sources import open_source
from vitrail.errors import ConfigError, DataError
from vitrail.inference.zero_shot import Texts, read_texts, with_texts

NAMES = ["a cat", "a dog", "ein Vogel"]
RNG = np.random.default_rng(0)


def write(path, width=32, names=NAMES, drop=(), **changes):
    arrays = {
        "embeddings": RNG.normal(size=(3, width)).astype(np.float32),
        "scale": np.float32(100),
    } | changes
    arrays = {name: array for name, array in arrays.items() if name not in drop}
    if path.suffix == ".npz":
        np.savez(path, **arrays, **({} if names is None else {"class_names": np.array(names)}))
    else:
        tensors = {
            name: torch.as_tensor(array).reshape(np.shape(array) or 1) for name, array in arrays.items()
        }
        save_file(tensors, path, None if names is None else {"class_names": json.dumps(names)})
    return path


@pytest.fixture(params=["t.safetensors", "t.npz"])
def place(request, tmp_path):
    return tmp_path / request.param


@pytest.mark.parametrize("bias", [None, -10.0])
def test_both_files_hold_the_same(place, bias):
    E = RNG.normal(size=(3, 8))
    more = {} if bias is None else {"bias": np.float32(bias)}
    texts = read_texts(write(place, embeddings=E, **more))
    assert texts.class_names == NAMES and (texts.scale, texts.bias) == (100, bias)
    np.testing.assert_allclose(texts.embeddings.numpy(), E, rtol=1e-6)


def by_hand(f, texts):
    f, t = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (f, texts.embeddings.numpy()))
    return texts.scale * f @ t.T + (texts.bias or 0)


@pytest.mark.parametrize("kind", ["token", "attention", "bit"])
@pytest.mark.parametrize("projected", [True, False])
def test_logits_are_scaled_cosines(kind, projected):
    """With a projection, as CLIP; without, as SigLIP."""
    model = bit() if kind == "bit" else made(kind)
    width = model.config.classes if projected else model.config.width
    texts = Texts(NAMES, torch.randn(3, width), 20.0, -3.0)
    x = torch.randn(2, 3, *model.config.image_size)
    with torch.no_grad():
        f = model(x) if projected else model.features(x)
        logits = with_texts(model, texts)(x)
    np.testing.assert_allclose(logits.numpy(), by_hand(f.numpy(), texts), atol=1e-4)
    assert model.config.classes == 5 and model(x).shape == (2, 5)  # as it was


@pytest.mark.parametrize("bias", [None, -2.0])
def test_predictions(tmp_path, bias):
    """CLIP: a softmax; SigLIP: each class by itself."""
    model, images = made("token", classes=0), pictures(3)
    more = {} if bias is None else {"bias": np.float32(bias)}
    file = write(tmp_path / "t.npz", scale=np.float32(5), **more)
    logits = torch.from_numpy(by_hand(vitrail.features(model, images), read_texts(file)))
    wanted = logits.softmax(dim=1) if bias is None else logits.sigmoid()
    for one, p in zip(vitrail.predict(model, images, text_embeddings=file), wanted, strict=True):
        assert dict(one) == pytest.approx(dict(zip(NAMES, p.tolist(), strict=True)), rel=1e-4)
        assert [value for _, value in one] == sorted((value for _, value in one), reverse=True)


def test_evaluation_by_texts(tmp_path):
    source = open_source("shapes?image_size=32&n=60", "train")
    model, names = made("token", classes=0), source.class_names
    file = write(tmp_path / "t.npz", embeddings=RNG.normal(size=(len(names), 32)), names=names)
    evaluation = vitrail.evaluate(model, source, text_embeddings=file, num_workers=0, progress=False)
    nearest = by_hand(vitrail.features(model, source), read_texts(file)).argmax(axis=1)
    assert evaluation.model_class_names == names and evaluation.n == 60
    assert evaluation.top1 == np.mean(nearest == np.asarray(source.labels))
    assert evaluation.predictions.predicted.tolist() == nearest.tolist()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"drop": ("scale",)}, "has no scale"),
        ({"drop": ("embeddings",)}, "has no embeddings"),
        ({"scale": np.float32(-1)}, "must be above 0: the factor itself"),
        ({"scale": np.ones(2, np.float32)}, "one finite number"),
        ({"bias": np.float32(np.nan)}, "bias must be one finite number"),
        ({"embeddings": np.zeros((3, 4), np.float32)}, "none of them zero"),
        ({"embeddings": np.ones(3, np.float32)}, "not .classes, numbers of each."),
        ({"names": NAMES[:2]}, "2 class_names, for 3"),
        ({"names": None}, "class_names, for 3"),
        ({"names": ["", "a", "b"]}, "each needs one"),
        ({"logit_scale": np.float32(1)}, "has logit_scale; text embeddings are"),
    ],
)
def test_what_does_not_fit_is_refused(place, changes, words):
    with pytest.raises(DataError, match=words):
        read_texts(write(place, **changes))


def test_nothing_is_unpickled(tmp_path):
    np.savez(tmp_path / "t.npz", embeddings=np.array([object()]), scale=1.0)
    with pytest.raises(DataError, match="pickled"):
        read_texts(tmp_path / "t.npz")
    (tmp_path / "t.safetensors").write_bytes(b"no")
    for name in ("t.safetensors", "none.npz"):
        with pytest.raises(DataError, match="text embeddings"):
            read_texts(tmp_path / name)


def test_other_widths_are_refused_and_such_a_model_is_not_saved(tmp_path):
    model = made("token")
    with pytest.raises(ConfigError, match=r"of 7 numbers, .*5 \(its outputs\) or 32"):
        with_texts(model, Texts(NAMES, torch.ones(3, 7), 1.0))
    by_texts = with_texts(model, Texts(NAMES, torch.randn(3, 32), 1.0))
    with pytest.raises(ConfigError, match="other parameters than its config"):
        vitrail.save(by_texts, tmp_path / "m")
    vitrail.save(model, tmp_path / "m")
