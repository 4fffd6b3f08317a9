"""vitrail.pretrain: a recipe, the user's data, and any setting by name."""

import json

import pytest

import vitrail
from tests.train.small import DATA
from vitrail.errors import ConfigError

TINY = {
    "model": "mu/8@16", "train": "train[:90%]", "val": "train[90%:]", "batch_size": 8, "steps": 2, "warmup": 1,
    "device": "cpu",
}  # fmt: skip


# Of a recipe that keeps images on the device: its line for so small ones.
SIXTEEN = {**TINY, "preprocess": "inception_crop(16)|flip_lr|uint8|to_range(-1, 1)", "resident": False}


@pytest.mark.parametrize(
    "field", [{"batch_size": "4"}, {"weight_decay": "0.1"}, {"model": 3}, {"data": None}]
)
def test_a_field_of_another_type_is_named(field):
    with pytest.raises(ConfigError, match=f"{next(iter(field))} must be .*, not of type"):
        vitrail.pretrain(**({"data": DATA} | field))


def test_supervised_end_to_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = vitrail.pretrain(DATA, **TINY)
    assert made.folder.as_posix() == "runs/shapes-mu-8-16"
    assert made.results["steps"] == 2 and made.results["train_examples"] == 72
    assert 0 <= made.results["test"]["top1"] <= 1
    assert made.model().config.classes == 10
    config = json.loads((tmp_path / "runs/shapes-mu-8-16/run.json").read_text())["config"]
    assert (config["optimizer"]["warmup"], config["data"]["data"]) == (1, DATA)


def test_masked_patches_by_a_recipe(tmp_path):
    made = vitrail.pretrain(DATA, recipe="masked-b16", out=tmp_path / "run", **TINY)
    assert made.results["test"] is None
    assert made.results["val"]["val_loss"] > 0
    assert made.model().config.classes == 0


def test_a_recipe_that_goes_on_from_another_says_so_where_it_does_not(tmp_path, caplog):
    first = vitrail.pretrain(DATA, recipe="ti8-64-masked", out=tmp_path / "masked", **SIXTEEN)
    vitrail.pretrain(DATA, recipe="ti8-64", out=tmp_path / "fresh", **SIXTEEN, monitor="")
    assert "for --model with the model of ti8-64-masked" in caplog.text
    caplog.clear()
    onward = {**SIXTEEN, "model": str(first.folder / "model")}
    made = vitrail.pretrain(DATA, recipe="ti8-64", out=tmp_path / "on", **onward, monitor="")
    assert "ti8-64-masked" not in caplog.text
    assert made.model().provenance["start"] == first.model().provenance
    assert "start" not in first.model().provenance


def test_refused(tmp_path):
    with pytest.raises(ConfigError, match="epochs, learning_rate"):
        vitrail.pretrain(DATA, learning_rate=1, epochs=2, out=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"dpeth.*depth.*weight_decay"):
        vitrail.pretrain(DATA, dpeth=3, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="did you mean vit-b16-i21k"):
        vitrail.pretrain(DATA, recipe="vit-b17-i21k", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
