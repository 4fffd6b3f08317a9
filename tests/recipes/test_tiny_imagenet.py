"""The recipes of the model in the box are what the model says of itself."""

import json

import pytest

from vitrail.checkpoints.box import boxed
from vitrail.recipes.names import recipe
from vitrail.train.experiment import INCIDENTAL

# What does not change the weights, or depends on the machine, or is the user's.
FREE = {("data", "data"), ("data", "test"), ("data", "resident"), ("training", "compile"), ("model", "model")}


@pytest.fixture
def card():
    return json.loads((boxed("ti8-64") / "model.json").read_text())


@pytest.mark.parametrize("name", ["ti8-64", "ti8-64-masked"])
def test_the_recipe_is_that_of_the_weights(card, name):
    origin = card["provenance"]
    trained = (origin if name == "ti8-64" else origin["start"])["experiment"]
    stated = json.loads(json.dumps(recipe(name).make().identity()))
    assert stated.keys() == trained.keys()
    for part, fields in stated.items():
        if not isinstance(fields, dict):
            assert fields == trained[part], part
            continue
        for field, value in fields.items():
            if field == "average_ramp":  # the weights are older than the choice: averages had a ramp
                assert value == (trained[part]["average"] > 0)
            elif (part, field) not in FREE and field not in INCIDENTAL:
                assert without_blanks(value) == without_blanks(trained[part][field]), (part, field)


def without_blanks(value):
    """A line may be written with blanks or without."""
    return value.replace(" ", "") if isinstance(value, str) else value


def test_it_goes_on_from_the_other_recipes_model(card):
    start = recipe("ti8-64").start
    assert f"runs/DATA-{start}/model" in recipe("ti8-64").command
    assert card["provenance"]["experiment"]["model"]["model"] == f"runs/tiny-imagenet-{start}/model"
    assert recipe(start).make().model.model == card["provenance"]["start"]["experiment"]["model"]["model"]


def test_its_claim_is_the_score_of_the_weights(card):
    assert f"{card['metrics']['test']['top1']:.2%}" in recipe("ti8-64").claim
