import json
import logging
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from tests.evaluators.split import Split, named, small_model
from tests.randomise import randomise
from vitrail.data.preprocess import parse
from vitrail.errors import ConfigError, DataError
from vitrail.inference.engine import image_outputs
from vitrail.inference.features import (
    Extraction,
    Features,
    cache_folder,
    extract_features,
    extract_rows,
    representation,
)
from vitrail.models.encoder import Layout


@pytest.fixture
def x():
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    return randomise(vitrail.create("mu/8", image_size=16, depth=3, classes=4, pre_logits=5)).eval()


def test_pre_logits_are_what_the_classifier_sees(model, x):
    y = representation(model)(x)
    assert y.shape == (2, 5)
    torch.testing.assert_close(model.head.classifier(y), model(x))


def test_token_and_mean_are_of_what_the_encoder_makes(model, x):
    z = model.encode(model.tokens(model.patches(x)))
    torch.testing.assert_close(representation(model, "token")(x), z[:, 0])
    torch.testing.assert_close(representation(model, "mean")(x), z[:, 1:].mean(dim=1))
    torch.testing.assert_close(representation(model, "token")(x), model.features(x))


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_a_layer_is_what_goes_into_the_next(model, x, layer):
    z = model.tokens(model.patches(x))
    for block in model.encoder.blocks[:layer]:
        z = block(z, Layout(model.config.grid))
    torch.testing.assert_close(representation(model, f"layer{layer}")(x), z[:, 0])
    torch.testing.assert_close(representation(model, f"layer{layer}.token")(x), z[:, 0])
    torch.testing.assert_close(representation(model, f"layer{layer}.mean")(x), z[:, 1:].mean(dim=1))


def test_without_a_class_token_the_mean_is_of_all_tokens(x):
    model = randomise(vitrail.create("mu/8", image_size=16, pool="mean")).eval()
    z = model.tokens(model.patches(x))
    torch.testing.assert_close(representation(model, "layer0")(x), z.mean(dim=1))
    with pytest.raises(ConfigError, match="no class token"):
        representation(model, "layer0.token")


@pytest.mark.parametrize(
    "which", ["", "layer", "layer4", "layer1.", "layer1.max", "tokens", "layer-1", "pre_logits.mean"]
)
def test_what_there_is_not(model, which):
    with pytest.raises(ConfigError, match=r"pre_logits, token, mean|layers 0 to 3"):
        representation(model, which)


def test_a_resnet_has_one_representation():
    model = vitrail.create("R50x1", image_size=32, classes=3, units=(1,))
    x = torch.zeros(1, 3, 32, 32)
    assert representation(model)(x).shape == (1, model.config.width)
    with pytest.raises(ConfigError, match="no tokens"):
        representation(model, "mean")


def test_public_features_are_what_the_classifier_sees(model):
    image = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    made = vitrail.features(model, [image, image])
    assert made.shape == (2, 5) and vitrail.features(model, []).shape == (0, 5)
    logits = torch.cat(list(image_outputs(model, [image, image])))
    torch.testing.assert_close(model.head.classifier(torch.from_numpy(made)), logits)


def test_every_part_is_in_the_mode_in_which_it_was(model):
    model.train()
    model.encoder.eval()  # frozen, say
    image = np.zeros((16, 16, 3), np.uint8)
    vitrail.features(model, [image])
    list(extract_rows(model, Split(3, ["a"]), Extraction()))
    assert model.training and model.head.training
    assert not any(part.training for part in model.encoder.modules())


CLASSES = named(3)


@pytest.fixture
def small():
    return small_model(classes=3)


@pytest.fixture
def split():
    return Split(10, CLASSES)


def entry(cache):
    (folder,) = cache.iterdir()
    return folder


def counting(small):
    """How many images the model was given."""
    seen = []
    small.encoder.register_forward_pre_hook(lambda _, z: seen.append(len(z[0])))
    return seen


def assert_close(made, expected):
    """Computed twice, and rounded to half: the last bit of it may differ."""
    np.testing.assert_allclose(made, expected, rtol=2e-3, atol=1e-4)


def test_features_are_the_models_rounded_to_half(small, split):
    made = extract_features(small, split, Extraction(batch_size=4))
    pipeline = parse(small.preprocess)
    x = torch.stack([pipeline.device(pipeline.host(split.read(i).image)) for i in range(10)])
    with torch.no_grad():
        expected = small.features(x).numpy().astype(np.float16)
    assert made.x.dtype == np.float16
    assert_close(made.x, expected)
    np.testing.assert_array_equal(made.labels, split.labels)


def test_cached_equals_fresh_and_is_computed_once(small, split, tmp_path):
    fresh = extract_features(small, split, Extraction(batch_size=4))
    seen = counting(small)
    first = extract_features(small, split, Extraction(batch_size=4, cache=tmp_path / "new"))
    assert sum(seen) == 12  # 3 batches of 4, the last padded
    again = extract_features(small, split, Extraction(batch_size=4, cache=tmp_path / "new"))
    assert sum(seen) == 12
    assert isinstance(again.x, np.memmap)
    np.testing.assert_array_equal(again.x, first.x)
    for made in (first, again):
        assert_close(made.x, fresh.x)
        np.testing.assert_array_equal(made.labels, fresh.labels)


def test_anything_that_features_depend_on_is_another_entry(small, split, tmp_path):
    def entries():
        return len(list(tmp_path.iterdir()))

    extraction = Extraction(cache=tmp_path)
    extract_features(small, split, extraction)
    extract_features(small, split, Extraction(cache=tmp_path, batch_size=3))
    assert entries() == 1
    extract_features(small, split, Extraction(cache=tmp_path, which="mean"))
    assert entries() == 2
    extract_features(small, Split(9, CLASSES), extraction)
    assert entries() == 3
    with torch.no_grad():
        small.encoder.norm.bias[0] += 1e-3
    extract_features(small, split, extraction)
    assert entries() == 4
    small.preprocess = small.preprocess.replace("to_range(-1, 1)", "to_range(0, 1)")
    extract_features(small, split, extraction)
    assert entries() == 5
    extract_features(small.double(), split, extraction)
    assert entries() == 6


def truncated(path):
    path.write_bytes(path.read_bytes()[:-2])


def removed(path):
    path.unlink()


def emptied(path):
    path.write_text("[]")


def flipped(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["features.npy", "index.npy", "about.json"])
@pytest.mark.parametrize("damage", [truncated, flipped, removed, emptied])
def test_a_damaged_entry_is_computed_again_and_said(small, split, tmp_path, caplog, name, damage):
    extraction = Extraction(cache=tmp_path)
    expected = np.array(extract_features(small, split, extraction).x)
    damage(entry(tmp_path) / name)
    with caplog.at_level(logging.WARNING):
        made = extract_features(small, split, extraction)
    assert "damaged" in caplog.text and str(entry(tmp_path)) in caplog.text
    assert_close(made.x, expected)
    caplog.clear()
    extract_features(small, split, extraction)
    assert not caplog.text


def test_an_entry_under_the_name_of_another_is_refused(small, split, tmp_path):
    extract_features(small, split, Extraction(cache=tmp_path))
    card = entry(tmp_path) / "about.json"
    card.write_text(json.dumps(json.loads(card.read_text()) | {"model": "0" * 32}))
    with pytest.raises(DataError, match="features of another model"):
        extract_features(small, split, Extraction(cache=tmp_path))


def test_an_interrupted_extraction_leaves_nothing(small, tmp_path):
    with pytest.raises(DataError, match="examples are broken"):
        extract_features(small, Split(10, CLASSES, broken=(7, 8)), Extraction(cache=tmp_path, batch_size=4))
    assert not list(tmp_path.iterdir())


def test_of_two_that_compute_the_same_the_first_ones_entry_stays(small, split, tmp_path, monkeypatch):
    real = Path.replace

    def replace(self, target):
        if self.is_dir() and not target.exists():
            shutil.copytree(self, target)  # the other one, in the last moment
            (target / "first").touch()
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    made = extract_features(small, split, Extraction(batch_size=4, cache=tmp_path))
    assert_close(made.x, extract_features(small, split, Extraction(batch_size=4)).x)
    assert (entry(tmp_path) / "first").exists()


def test_what_kills_left_in_the_cache_goes_when_it_is_old(small, split, tmp_path, monkeypatch):
    left = tmp_path / f".features-{'0' * 32}.a1b2c3d4"
    left.mkdir()
    extract_features(small, split, Extraction(cache=tmp_path))
    assert left.exists()  # it may still be written
    now = time.time()
    monkeypatch.setattr("vitrail.runtime.files.time.time", lambda: now + 3601)
    extract_features(small, split, Extraction(cache=tmp_path, which="mean"))
    assert not left.exists()


@pytest.mark.parametrize("cached", [False, True])
def test_a_broken_example_is_left_out_and_said(small, tmp_path, caplog, cached):
    whole = extract_features(small, Split(10, CLASSES), Extraction())
    extraction = Extraction(cache=tmp_path if cached else None, batch_size=4)
    for _ in range(2):
        caplog.clear()
        made = extract_features(small, Split(10, CLASSES, broken=(5,)), extraction)
        assert "1 of 10 examples are broken" in caplog.text
        np.testing.assert_allclose(made.x, np.delete(whole.x, 5, axis=0), rtol=2e-3, atol=1e-4)
        np.testing.assert_array_equal(made.labels, np.delete(whole.labels, 5))


@pytest.mark.parametrize("cached", [False, True])
def test_how_many_may_be_broken_is_asked_also_of_what_is_cached(small, tmp_path, cached):
    split, cache = Split(10, CLASSES, broken=(2, 5)), tmp_path if cached else None
    assert len(extract_features(small, split, Extraction(cache=cache, max_bad=0.5))) == 8
    with pytest.raises(DataError, match=r"2 of 10 examples are broken, more than the 1\.0%"):
        extract_features(small, split, Extraction(cache=cache))
    assert len(extract_features(small, split, Extraction(cache=cache, max_bad=0.5))) == 8
    assert len(list(tmp_path.iterdir())) == cached  # one entry for both


def test_nothing_readable(small):
    with pytest.raises(DataError, match="none of its 1 examples"):
        extract_features(small, Split(1, CLASSES, broken=(0,)))


def test_features_that_half_cannot_hold(small, split):
    with torch.no_grad():
        small.encoder.norm.bias[0] = 1e5
    with pytest.raises(DataError, match="not finite"):
        extract_features(small, split)


def test_a_training_model_goes_on_training(small, split):
    small.train()
    extract_features(small, split)
    assert small.training


def test_processes_share_the_work(small, split, monkeypatch):
    monkeypatch.setattr("vitrail.inference.engine.world", lambda: 2)
    made = []
    for rank in range(2):
        monkeypatch.setattr("vitrail.inference.engine.rank", lambda rank=rank: rank)
        made.append(list(extract_rows(small, split, Extraction(batch_size=2), shared=True)))
    index = [np.concatenate([at for _, at in rows]) for rows in made]
    assert sorted(np.concatenate(index).tolist()) == list(range(10))
    assert min(map(len, index)) == 4


def test_held_out_is_a_fifth_of_each_class_and_the_rest_the_rest():
    labels = np.repeat(np.arange(3), [10, 20, 1])
    features = Features(np.arange(31, dtype=np.float16)[:, None], labels, CLASSES, "some")
    rest, held = features.held_out()
    assert np.bincount(held.labels, minlength=3).tolist() == [2, 4, 0]
    assert sorted([*rest.x[:, 0], *held.x[:, 0]]) == list(range(31))
    np.testing.assert_array_equal(labels[held.x[:, 0].astype(int)], held.labels)
    with pytest.raises(DataError, match="too few to hold"):
        features.part(np.array([0, 10, 30])).held_out()


def test_where_features_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    assert cache_folder("here").name == "here"
    monkeypatch.delenv("VITRAIL_CACHE")
    assert cache_folder().parts[-2:] == (".cache", "vitrail")
