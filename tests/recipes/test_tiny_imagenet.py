"""The recipes of the included model are what the model says of itself."""

import json

import pytest

from vitrail.checkpoints.included import ASSETS
from vitrail.recipes.names import find_recipe
from vitrail.train.settings import INCIDENTAL

# What does not change the weights, or depends on the machine, or is the user's.
FREE = {("data", "data"), ("data", "test"), ("data", "resident"), ("training", "compile"), ("model", "model")}


@pytest.fixture
def card():
    return json.loads((ASSETS / "ti8-64" / "model.json").read_text())


# Settings of today: where they stood when the model was trained.
TRAINED = {
    ("optimizer", "lr"): ("training", "rate"),
    ("optimizer", "schedule"): ("training", "decay"),
    ("optimizer", "warmup"): ("training", "warmup"),
    ("optimizer", "end_lr"): ("training", "end_rate"),
    ("optimizer", "grad_clip"): ("training", "clip"),
    ("optimizer", "ema"): ("training", "average"),
    ("training", "grad_accum"): ("training", "accumulate"),
    ("training", "activation_checkpointing"): ("training", "recompute"),
    ("training", "monitor"): ("training", "watch"),
    ("data", "batch_size"): ("data", "batch"),
    ("objective", "label_smoothing"): ("objective", "smoothing"),
    ("objective", "loss"): ("objective", "objective"),
}


@pytest.mark.parametrize("name", ["ti8-64", "ti8-64-masked"])
def test_the_recipe_is_that_of_the_weights(card, name):
    origin = card["provenance"]
    trained = (origin if name == "ti8-64" else origin["start"])["experiment"]
    stated = json.loads(json.dumps(find_recipe(name).make().identity()))
    assert stated["seed"] == trained["seed"]
    assert (stated["objective"]["name"] == "masked-patches") == (
        trained["objective"]["objective"] == "masked"
    )
    compared = 0
    for part, fields in stated.items():
        for field, value in fields.items() if isinstance(fields, dict) else ():
            there, was = TRAINED.get((part, field), (part, field))
            before = (
                trained["training"]["optimization"]
                if part == "optimizer" and there == part
                else trained[there]
            )
            if (part, field) in FREE or field in INCIDENTAL or was not in before:
                continue
            assert without_blanks(value) == without_blanks(before[was]), (part, field)
            compared += 1
    assert compared >= 30
    assert stated["optimizer"]["ema_ramp"] == (trained["training"]["average"] > 0)  # averages had a ramp


def without_blanks(value):
    """A line may be written with blanks or without."""
    return value.replace(" ", "") if isinstance(value, str) else value


def test_it_goes_on_from_the_other_recipes_model(card):
    start = find_recipe("ti8-64").start
    assert f"runs/DATA-{start}/model" in find_recipe("ti8-64").command
    assert card["provenance"]["experiment"]["model"]["model"] == f"runs/tiny-imagenet-{start}/model"
    assert (
        find_recipe(start).make().model.model == card["provenance"]["start"]["experiment"]["model"]["model"]
    )


def test_its_claim_is_the_score_of_the_weights(card):
    assert f"{card['metrics']['test']['top1']:.2%}" in find_recipe("ti8-64").claim
