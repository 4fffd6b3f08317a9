from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from vitrail.data.loader import View
from vitrail.errors import ConfigError
from vitrail.objectives.classification import Classification
from vitrail.objectives.masked_patches import MaskedPatches
from vitrail.train.keywords import check_type, override
from vitrail.train.settings import Experiment

Several = tuple[str, ...]


@dataclass(frozen=True)
class Teacher(Classification):
    momentum: float = 0.99
    act: Callable | None = None


@pytest.mark.parametrize(
    ("given", "annotation", "value"),
    [
        (4, int | None, 4),
        (None, int | None, None),
        (1, float, 1),
        ("90ep", int | str, "90ep"),
        (Path("a/b"), str, "a/b"),
        ([0.1, 1], tuple[float, ...] | None, (0.1, 1)),
        ("body", Several, ("body",)),
        ("sgd", Literal["sgd", "adamw"] | None, "sgd"),
        (["b", "a"], tuple[Literal["a", "b"], ...], ("b", "a")),
    ],
)
def test_what_fits_is_taken(given, annotation, value):
    assert check_type("field", given, annotation) == value


@pytest.mark.parametrize(
    ("given", "annotation", "problem"),
    [
        ("4", int | None, "lr must be a whole number or None, not of type str '4'"),
        (True, int, "lr must be a whole number, not of type bool True"),
        (4.0, int, "lr must be a whole number, not of type float 4.0"),
        ("0.1", float, "lr must be a number, not of type str '0.1'"),
        (1, bool, "lr must be True or False, not of type int 1"),
        (object(), str, "lr must be text, not of type object"),
        (["a"], tuple[float, ...], r"lr must be several of a number, not of type list \['a'\]"),
        ("nadam", Literal["sgd", "adamw"], "lr must be one of sgd, adamw, not of type str 'nadam'"),
        ("c", tuple[Literal["a", "b"], ...], "lr must be several of one of a, b, not of type str 'c'"),
    ],
)
def test_what_does_not_is_refused_in_words(given, annotation, problem):
    with pytest.raises(ConfigError, match=f"^{problem}$"):
        check_type("lr", given, annotation)


def test_a_keyword_goes_where_its_setting_is():
    made = override(Experiment(), {"lr": 0.5, "model": "S/16", "pool": "mean", "data": Path("x"), "seed": 3})
    assert (made.optimizer.lr, made.model.model, made.model.pool) == (0.5, "S/16", "mean")
    assert (made.data.data, made.seed) == ("x", 3)


def test_an_objective_by_name_or_by_itself_and_its_own_settings():
    named = override(Experiment(), {"objective": "masked-patches", "target": "grid"})
    assert named.objective == MaskedPatches(target="grid")
    mine = MaskedPatches(corrupted=0.2)
    assert override(Experiment(), {"objective": mine}).objective is not Experiment().objective
    assert override(Experiment(), {"objective": mine, "masked": 0.5}).objective == MaskedPatches(
        "mean", 0.2, 0.5
    )
    for other in (3, MaskedPatches, object()):
        with pytest.raises(ConfigError, match="objective"):
            override(Experiment(), {"objective": other})
    with pytest.raises(ConfigError, match="'nothing'"):
        override(Experiment(), {"objective": "nothing"})


def test_a_setting_of_an_own_objective_does_not_take_that_of_another_group():
    made = override(Experiment(), {"objective": Teacher(), "momentum": 0.8, "warmup": 3})
    assert (made.optimizer.momentum, made.objective.momentum, made.optimizer.warmup) == (0.8, 0.99, 3)


@pytest.mark.parametrize(
    ("objective", "problem"),
    [(object(), "object"), (Teacher, "type"), (View(None), "needs_labels"), (Teacher(act=abs), "act")],
    ids=["object", "class", "view", "field"],
)
def test_what_is_no_objective_is_refused(objective, problem):
    with pytest.raises(ConfigError, match=problem):
        override(Experiment(), {"objective": objective})


@pytest.mark.parametrize(("name", "near"), [("learning_rate", ""), ("weight_deca", "weight_decay")])
def test_an_unknown_keyword_is_refused_with_those_that_there_are(name, near):
    with pytest.raises(ConfigError, match=rf"{name}.*{near}.*batch_size"):
        override(Experiment(), {name: 1})
