from pathlib import Path

import pytest
import torch

from vitrail.data.sources import open_source
from vitrail.errors import ConfigError
from vitrail.models.names import make_config
from vitrail.recipes.names import FINETUNING_RECIPES, RECIPES, find_finetuning_recipe, find_recipe
from vitrail.train.assemble import build_model, model_config
from vitrail.train.optim import lr_at
from vitrail.train.settings import Experiment
from vitrail.transfer.facts import Facts

DOCS = Path(__file__).parents[2] / "docs" / "recipes.md"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_a_complete_experiment(name):
    made = find_recipe(name).make()
    assert isinstance(made, Experiment)
    assert made.data.data == ""  # the user's
    resolved = made.resolve(find_recipe(name).data.examples, cuda=True)
    optimizer, steps = resolved.optimizer, resolved.training.steps
    assert lr_at(optimizer.warmup, steps, optimizer) == pytest.approx(optimizer.lr)
    side = 64 if name.startswith("ti8-64") else 224
    assert model_config(made, find_recipe(name).data.classes).image_size == (side, side)


@pytest.mark.parametrize(
    "name", ["r50x1-jft", "r50-b32-jft", "vit-b32-i21k", "augreg-r-ti16-i21k", "masked-b16", "small"]
)
def test_a_run_makes_the_model_that_is_estimated(name):
    made, source = find_recipe(name).make(), open_source("shapes", "train")
    with torch.device("meta"):
        model = build_model(made, source, None)
    assert model.config == model_config(made, len(source.class_names))
    assert model.config.head_bias == (made.model.head_bias or 0.0)
    if name == "vit-b32-i21k":
        assert (model.config.pre_logits, model.config.dropout) == (768, 0.1)


@pytest.mark.parametrize("known", [*RECIPES.values(), *FINETUNING_RECIPES.values()], ids=lambda r: r.name)
def test_every_recipe_says_what_it_is_and_stands_in_the_docs(known):
    assert known.claim and f"--recipe {known.name} " in known.command
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith(f"| `{known.name}` |")]
    assert len(rows) == 1
    assert known.claim in rows[0] and known.cost in rows[0]


def test_costs_say_what_is_derived():
    assert "2,500 TPUv3-core-days (Table 2)" in find_recipe("vit-h14-jft").cost
    assert "105 TPUv3-core-days or 157 hours of one H200 (derived" in find_recipe("vit-b16-jft").cost
    assert find_recipe("ti8-64").cost.startswith("0.075 exaFLOPs; 0.036 TPUv3-core-days")


def test_finetuning_recipes_leave_data_and_model_to_the_user():
    for known in FINETUNING_RECIPES.values():
        made = known.make(Facts())
        assert made.experiment.data.data == ""
        make_config(known.model)


def test_an_unknown_name_gets_the_near_ones():
    with pytest.raises(ConfigError, match=r"unknown recipe 'vit-b16-in21k'.*vit-b16-i21k"):
        find_recipe("vit-b16-in21k")
    with pytest.raises(ConfigError, match="did you mean flowers"):
        find_finetuning_recipe("flower")
    with pytest.raises(ConfigError, match="pretrain --recipe list"):
        find_recipe("?")
