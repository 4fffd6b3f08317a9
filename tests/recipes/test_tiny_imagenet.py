"""The recipe of the model in the box is what the model says of itself."""

import json

from vitrail.checkpoints.box import boxed
from vitrail.recipes.names import recipe

# What does not change the weights, or depends on the machine, or is the user's.
FREE = {("data", "data"), ("data", "test"), ("training", "compile"), ("training", "evaluate_every")}


def test_the_recipe_is_that_of_the_weights():
    card = json.loads((boxed("ti8-64") / "model.json").read_text())
    trained = card["provenance"]["experiment"]
    stated = json.loads(json.dumps(recipe("ti8-64").make().identity()))
    assert stated.keys() == trained.keys()
    for part, fields in stated.items():
        if not isinstance(fields, dict):
            assert fields == trained[part], part
            continue
        for name, value in fields.items():
            assert (part, name) in FREE or value == trained[part][name], (part, name)


def test_its_claim_is_the_score_of_the_weights():
    card = json.loads((boxed("ti8-64") / "model.json").read_text())
    assert f"{card['metrics']['test']['top1']:.2%}" in recipe("ti8-64").claim
