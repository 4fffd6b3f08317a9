import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.train.experiment import DataChoice, Experiment, ModelChoice, Training
from vitrail.train.optim import Optimization
from vitrail.train.schedule import Schedule


def test_durations_become_steps():
    training = Training(steps="2ep", warmup="10%", log_every="1%", evaluate_every="1ep", save_every=7)
    made = training.in_steps(examples=800, batch=8)
    assert (made.steps, made.warmup, made.log_every, made.evaluate_every, made.save_every) == (
        200,
        20,
        2,
        100,
        7,
    )
    assert made.in_steps(examples=5, batch=1) == made  # what is in steps stays
    assert dataclasses.replace(made, **{k: getattr(training, k) for k in durations()}) == training


def durations():
    return ("steps", "warmup", "log_every", "evaluate_every", "save_every")


@given(st.integers(1, 300))
def test_a_short_run_still_logs_evaluates_and_saves(steps):
    made = Training(steps=steps).in_steps(examples=1000, batch=10)
    assert all(1 <= getattr(made, name) <= steps for name in ("log_every", "evaluate_every", "save_every"))
    assert 0 <= made.warmup <= steps


@pytest.mark.parametrize("never", [0, "0", "0%", "0ep", "0.0%", " 0 "])
def test_zero_of_anything_is_only_at_the_end(never):
    made = Training(steps=100, evaluate_every=never, save_every=never).in_steps(examples=1000, batch=10)
    assert (made.evaluate_every, made.save_every) == (0, 0)


def test_a_run_of_no_steps_is_refused():
    with pytest.raises(ConfigError, match=r"steps '0.1ep': 20 examples in batches of 64 make 0"):
        Training(steps="0.1ep").in_steps(examples=20, batch=64)
    with pytest.raises(ConfigError, match="steps 0"):
        Training(steps=0).in_steps(examples=20, batch=4)


def test_the_schedule_has_every_field():
    fields = {"rate": 0.3, "decay": "stairs", "end_rate": 0.1, "stairs": (3, "40%", "0.1ep")}
    made = Training(steps=10, warmup=2, **fields).in_steps(examples=500, batch=10).schedule()
    assert made == Schedule(0.3, 10, "stairs", 2, 0.1, (3, 4, 5))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"clip": -1.0}, "clip -1.0: it must be at least 0"),  # it would climb the loss
        ({"clip": float("nan")}, "clip nan"),
        ({"end_rate": -1.0}, "end_rate -1.0: it must be at least 0"),
        ({"accumulate": 0}, "accumulate 0: it must be at least 1"),
        ({"patience": -1}, "patience -1"),
        ({"max_skipped": -1}, "max_skipped -1"),
        ({"patience": 3}, "patience 3 without a score to watch"),
        ({"decay": "stairs", "steps": 30, "stairs": (5, 31)}, r"stairs at \[5, 31\].*the 30 steps"),
        ({"decay": "stairs", "stairs": (9, 5)}, r"stairs at \[9, 5\]: they must rise"),
        ({"decay": "stairs"}, r"decay stairs with stairs \[\]"),
        ({"decay": "cosine", "stairs": (5,)}, r"decay cosine with stairs \[5\]"),
    ],
)
def test_what_would_harm_or_do_nothing_is_refused(fields, said):
    with pytest.raises(ConfigError, match=said):
        Training(**fields).in_steps(examples=1000, batch=10)


SAME = [
    {"data": DataChoice(workers=3)},
    {"data": DataChoice(max_bad=0.5)},
    {"training": Training(log_every=1)},
    {"training": Training(save_every="1%")},
    {"training": Training(keep=9)},
    {"training": Training(tensorboard=True)},
    {"training": Training(parallel="fsdp", replicas=2)},
]
OTHER = [
    {"seed": 1},
    {"model": ModelChoice("L/16")},
    {"data": DataChoice(batch=8)},
    {"data": DataChoice(mixup=0.5)},
    {"training": Training(rate=1.0)},
    {"training": Training(evaluate_every=1)},  # with `watch` it decides which weights are kept
    {"training": Training(accumulate=2)},
    {"training": Training(optimization=Optimization(weight_decay=0.1))},
    {"training": Training(optimization=Optimization(freeze=("body",)))},
]


@pytest.mark.parametrize("changes", SAME, ids=str)
def test_where_a_run_is_computed_is_no_part_of_what_it_is(changes):
    assert dataclasses.replace(Experiment(), **changes).identity() == Experiment().identity()


@pytest.mark.parametrize("changes", OTHER, ids=str)
def test_what_changes_the_result_is(changes):
    assert dataclasses.replace(Experiment(), **changes).identity() != Experiment().identity()


def test_the_identity_can_be_stored():
    made = Experiment().identity()
    assert json.loads(json.dumps(made))["training"]["rate"] == made["training"]["rate"]
