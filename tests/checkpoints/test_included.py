"""The models that come with the package: which there are, and what their names mean."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import vitrail
from vitrail.checkpoints.included import ASSETS, INCLUDED, list_included, locate_weights
from vitrail.data import preprocess as pp
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.names import make_config

MOST_BYTES = 12_000_000  # of weights and card together


@pytest.fixture(params=INCLUDED)
def name(request):
    return request.param


def texts(entry):
    """Every text in a JSON object."""
    if isinstance(entry, dict):
        entry = list(entry.values())
    return (
        [entry]
        if isinstance(entry, str)
        else [t for e in entry for t in texts(e)]
        if isinstance(entry, list)
        else []
    )


def test_the_names_and_the_folders_agree():
    assert {path.parent.name for path in ASSETS.glob("*/model.json")} == set(INCLUDED)


def test_an_included_model_is_a_small_bundle_with_a_card(name):
    folder = ASSETS / name
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "model.json", "model.safetensors"]
    assert sum((folder / f).stat().st_size for f in ("model.json", "model.safetensors")) <= MOST_BYTES
    assert {w.dtype for w in load_file(folder / "model.safetensors").values()} == {torch.float16}
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert readme.startswith(f"# {name}\n")
    assert "non-commercial" in readme and "not for decisions about people" in readme


def test_it_knows_its_classes_scores_and_origin(name):
    model = vitrail.load(name)
    assert len(set(model.class_names)) == model.config.classes == 200
    assert all(class_name.strip() == class_name != "" for class_name in model.class_names)
    assert pp.parse(model.preprocess).image_size == model.config.image_size
    assert 1 / 200 < model.metrics["test"]["top1"] < model.metrics["test"]["top5"] < 1
    assert model.provenance["experiment"]["model"]["model"]
    assert not [text for text in texts(model.provenance) if text.startswith(("/", "~"))]  # nobody's folders


def test_it_is_used_in_single_precision(name):
    model = vitrail.load(name)
    assert all(
        p.dtype == torch.float32 and p.requires_grad and p.isfinite().all() for p in model.parameters()
    )
    assert not model.training


def test_its_classes_and_its_size_can_be_others():
    model = vitrail.load("ti8-64", classes=3, image_size=32)
    assert (model.config.classes, model.config.image_size, model.class_names) == (3, (32, 32), None)
    assert not model.head.classifier.weight.any()


def test_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert vitrail.load("ti8-64").config.width == vitrail.load(Path("ti8-64")).config.width == 192


def test_what_stands_on_the_disk_goes_first(tmp_path, monkeypatch):
    vitrail.save(vitrail.create("mu/8", image_size=16), tmp_path / "ti8-64")
    monkeypatch.chdir(tmp_path)
    assert vitrail.load("ti8-64").config.width == 32
    assert vitrail.load(ASSETS / "ti8-64").config.width == 192


def test_no_included_name_is_an_architectures(name):
    with pytest.raises(ConfigError, match="architecture"):
        make_config(name)


def test_located(tmp_path):
    assert locate_weights(tmp_path) == tmp_path
    assert locate_weights("ti8-64") == ASSETS / "ti8-64"
    for other in ("B/16", "ti8-65", "TI8-64", "", "../ti8-64", str(tmp_path / "ti8-64")):
        assert locate_weights(other) is None


def test_a_run_stands_for_its_model(tmp_path):
    (tmp_path / "model").mkdir()
    assert locate_weights(tmp_path) == tmp_path
    (tmp_path / "run.json").write_text("{}")
    assert locate_weights(tmp_path) == tmp_path / "model"
    (tmp_path / "model").rmdir()
    assert locate_weights(tmp_path) == tmp_path  # not finished


@given(st.text(max_size=40))
def test_what_is_located_is_there(text):
    place = locate_weights(text)
    assert place is None or place.exists()


def test_an_unknown_name_lists_the_included_models():
    with pytest.raises(CheckpointError, match=r"no such file or folder: ti8 \(.*ti8-64\)"):
        vitrail.load("ti8")
    with pytest.raises(CheckpointError, match=r"Ti/8@64 is the name of an architecture.*ti8-64"):
        vitrail.load("Ti/8@64")


def test_contents(name):
    (one,) = [one for one in list_included() if one["name"] == name]
    card = json.loads((ASSETS / name / "model.json").read_text(encoding="utf-8"))
    assert one["metrics"] == card["metrics"]
    assert one["bytes"] == sum(
        (ASSETS / name / f).stat().st_size for f in ("model.json", "model.safetensors")
    )
    assert one["about"] == INCLUDED[name]


def test_the_model_of_a_run_loads_whichever_version_wrote_the_run(tmp_path):
    model = vitrail.create("mu/8", image_size=16, classes=3)
    vitrail.save(model, tmp_path / "run" / "model")
    (tmp_path / "run" / "run.json").write_text('{"config": {}}')  # of the first version, which had no number
    assert vitrail.load(tmp_path / "run").config == model.config
