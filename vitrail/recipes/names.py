"""Recipes by name, the values of --recipe."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from vitrail.errors import ConfigError
from vitrail.recipes.augreg import AUGREG
from vitrail.recipes.finetuning import FINETUNING, FinetuningRecipe
from vitrail.recipes.pretraining import MASKED, PRETRAINING, SMALL
from vitrail.recipes.recipe import Recipe
from vitrail.recipes.tiny_imagenet import TINY_IMAGENET

T = TypeVar("T")

RECIPES: dict[str, Recipe] = {r.name: r for r in (SMALL, *PRETRAINING, *AUGREG, MASKED, *TINY_IMAGENET)}
FINETUNING_RECIPES: dict[str, FinetuningRecipe] = {r.name: r for r in FINETUNING}


def find_recipe(name: str) -> Recipe:
    """Return a recipe of pre-training."""
    return look_up(name, RECIPES, "pretrain")


def find_finetuning_recipe(name: str) -> FinetuningRecipe:
    return look_up(name, FINETUNING_RECIPES, "finetune")


def look_up(name: str, known: Mapping[str, T], verb: str) -> T:
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
        suggestion = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ConfigError(
            f"unknown recipe {name!r} of {verb}{suggestion} (`vitrail {verb} --recipe list` lists them)"
        )
    return known[name]
