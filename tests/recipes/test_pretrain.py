"""vitrail.pretrain: a recipe, the user's data, and any field by name."""

import json

import pytest

import vitrail
from tests.train.small import DATA, experiment
from vitrail.errors import ConfigError
from vitrail.recipes.pretrain import with_fields
from vitrail.train.experiment import Experiment

TINY = {
    "model": "mu/8@16", "train": "train[:90%]", "val": "train[90%:]", "batch": 8, "steps": 2, "warmup": 1,
    "device": "cpu",
}  # fmt: skip


# Of a recipe that keeps images on the device: its line for so small ones.
SIXTEEN = {**TINY, "preprocess": "inception_crop(16)|flip_lr|uint8|to_range(-1, 1)", "resident": False}


def test_fields_are_set_wherever_they_are():
    fields = {
        "seed": 7,
        "batch": 8,
        "rate": 0.5,
        "weight_decay": 0.3,
        "freeze": ("cls",),
        "objective": "sigmoid",
    }
    made, left = with_fields(Experiment(), fields)
    assert left == {}
    assert (made.seed, made.data.batch, made.training.rate) == (7, 8, 0.5)
    assert made.training.optimization.weight_decay == 0.3
    assert made.training.optimization.freeze == ("cls",)
    assert made.objective.objective == "sigmoid"
    assert made.training.clip == Experiment().training.clip  # the rest stays


def test_what_is_nowhere_is_told_and_nothing_is_changed():
    fields = {"rate": 0.5, "learning_rate": 1.0}
    base = experiment()
    made, left = with_fields(base, fields)
    assert left == {"learning_rate": 1.0}
    assert made.training.rate == 0.5
    assert fields == {"rate": 0.5, "learning_rate": 1.0} and base == experiment()


@pytest.mark.parametrize("field", [{"batch": "4"}, {"weight_decay": "0.1"}, {"model": 3}, {"data": None}])
def test_a_field_of_another_type_is_named(field):
    with pytest.raises(ConfigError, match=f"{next(iter(field))} must be .*, not of type"):
        vitrail.pretrain(**({"data": DATA} | field))


def test_no_fields_change_nothing():
    assert with_fields(experiment(), {}) == (experiment(), {})


@pytest.mark.parametrize("model", ["mu/8@16", "Ti/16"])
def test_model_is_the_name_and_not_the_part(model):
    """An experiment has a part `model` with a field `model`."""
    assert with_fields(experiment(), {"model": model})[0].model.model == model


def test_supervised_end_to_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = vitrail.pretrain(DATA, **TINY)
    assert made.folder.as_posix() == "runs/shapes-mu-8-16"
    assert made.results["steps"] == 2 and made.results["train_examples"] == 72
    assert 0 <= made.results["test"]["top1"] <= 1
    assert made.model().config.classes == 10
    config = json.loads((tmp_path / "runs/shapes-mu-8-16/run.json").read_text())["config"]
    assert (config["training"]["warmup"], config["data"]["data"]) == (1, DATA)


def test_masked_patches_by_a_recipe(tmp_path):
    made = vitrail.pretrain(DATA, recipe="masked-b16", out=tmp_path / "run", **TINY)
    assert made.results["test"] is None
    assert made.results["val"]["val_loss"] > 0
    assert made.model().config.classes == 0


def test_a_recipe_that_goes_on_from_another_says_so_where_it_does_not(tmp_path, caplog):
    first = vitrail.pretrain(DATA, recipe="ti8-64-masked", out=tmp_path / "masked", **SIXTEEN)
    vitrail.pretrain(DATA, recipe="ti8-64", out=tmp_path / "fresh", **SIXTEEN, watch="")
    assert "for --model with the model of ti8-64-masked" in caplog.text
    caplog.clear()
    onward = {**SIXTEEN, "model": str(first.folder / "model")}
    made = vitrail.pretrain(DATA, recipe="ti8-64", out=tmp_path / "on", **onward, watch="")
    assert "ti8-64-masked" not in caplog.text
    assert made.model().provenance["start"] == first.model().provenance
    assert "start" not in first.model().provenance


def test_refused(tmp_path):
    with pytest.raises(ConfigError, match="no field epochs, lr"):
        vitrail.pretrain(DATA, lr=1, epochs=2, out=tmp_path / "run")
    with pytest.raises(
        ConfigError, match=r"no field modle; did you mean model\? \(its fields are .*weight_decay"
    ):
        vitrail.pretrain(DATA, modle="Ti/16", out=tmp_path / "run")
    with pytest.raises(ConfigError, match="did you mean vit-b16-i21k"):
        vitrail.pretrain(DATA, recipe="vit-b17-i21k", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
