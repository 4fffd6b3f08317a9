import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.models.names import make_config
from vitrail.objectives.masked_patches import MaskedPatches
from vitrail.train.keywords import override
from vitrail.train.settings import Experiment, ModelSettings, in_steps


def resolve(examples=1000, cuda=False, **settings):
    """The experiment of these settings, resolved for so many examples in batches of 10 unless said otherwise."""
    return override(Experiment(), {"batch_size": 10, **settings}).resolve(examples, cuda=cuda)


def test_durations_become_steps():
    settings = {"steps": "2ep", "warmup": "10%", "log_every": "1%", "evaluate_every": "1ep", "save_every": 7}
    made = resolve(800, batch_size=8, **settings)
    assert (made.training.steps, made.optimizer.warmup) == (200, 20)
    training = made.training
    assert (training.log_every, training.evaluate_every, training.save_every) == (2, 100, 7)
    assert made.resolve(5, cuda=False) == made  # what is in steps stays


@given(st.integers(1, 300))
def test_a_short_run_still_logs_evaluates_and_saves(steps):
    made = resolve(steps=steps)
    every = ("log_every", "evaluate_every", "save_every")
    assert all(1 <= getattr(made.training, name) <= steps for name in every)
    assert 0 <= made.optimizer.warmup <= steps


@pytest.mark.parametrize("never", [0, "0", "0%", "0ep", "0.0%", " 0 "])
def test_zero_of_anything_is_only_at_the_end(never):
    made = resolve(steps=100, evaluate_every=never, save_every=never).training
    assert (made.evaluate_every, made.save_every) == (0, 0)


def test_a_run_of_no_steps_is_refused():
    with pytest.raises(ConfigError, match=r"0.1ep: 20 examples in batches of 64 make 0"):
        resolve(20, steps="0.1ep", batch_size=64)
    with pytest.raises(ConfigError, match="steps 0"):
        resolve(20, steps=0)


def test_auto_is_what_the_device_makes_of_it():
    for cuda, meant in ((True, ("bf16", "on")), (False, ("float32", "off"))):
        training = resolve(cuda=cuda).training
        assert (training.precision, training.compile) == meant
    training = resolve(cuda=True, precision="float32", compile="graphs").training
    assert (training.precision, training.compile) == ("float32", "graphs")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"grad_clip": -1.0}, "grad_clip -1.0"),  # it would climb the loss
        ({"grad_clip": float("nan")}, "grad_clip nan"),
        ({"lr": -1.0}, "lr -1"),
        ({"lr": float("inf")}, "lr inf"),
        ({"lr": float("nan")}, "lr nan"),
        ({"end_lr": -1.0}, "end_lr -1.0"),
        ({"ema": 1.0}, "ema 1.0"),
        ({"ema": 1.5}, "ema 1.5"),
        ({"momentum": 1.0}, "momentum 1.0"),
        ({"layer_decay": 0.0}, "layer_decay 0.0"),
        ({"grad_accum": 0}, "grad_accum 0"),
        ({"patience": -1}, "patience -1"),
        ({"max_skipped": -1}, "max_skipped -1"),
        ({"patience": 3}, "patience 3"),
        ({"batch_size": 0}, "batch_size 0"),
        ({"num_workers": -1}, "num_workers -1"),
        ({"mixup": -0.1}, "mixup -0.1"),
        ({"max_bad": 1.1}, "max_bad 1.1"),
        ({"label_smoothing": 1.0}, "label_smoothing 1.0"),
        ({"warmup": 30, "steps": 30}, "warmup 30"),
        ({"schedule": "milestones", "steps": 30, "milestones": (5, 31)}, r"\(5, 31\).*30 steps"),
        ({"schedule": "milestones", "milestones": (9, 5)}, r"\(9, 5\)"),
        ({"schedule": "milestones"}, r"milestones \[\]"),
        ({"schedule": "cosine", "milestones": (5,)}, r"cosine with milestones \[5\]"),
    ],
)
def test_what_would_harm_or_do_nothing_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        resolve(**settings)


SAME = [
    {"num_workers": 3},
    {"max_bad": 0.5},
    {"log_every": 1},
    {"save_every": "1%"},
    {"keep": 9},
    {"tensorboard": True},
    {"parallel": "fsdp", "replicas": 2},
]
OTHER = [
    {"seed": 1},
    {"model": "L/16"},
    {"positions": "2d"},
    {"batch_size": 8},
    {"mixup": 0.5},
    {"lr": 1.0},
    {"evaluate_every": 1},  # with `monitor` it decides which weights are kept
    {"grad_accum": 2},
    {"weight_decay": 0.1},
    {"freeze": "embedding"},
    {"tune": "head"},
    {"label_smoothing": 0.1},
    {"objective": "masked-patches"},
]


@pytest.mark.parametrize("settings", SAME, ids=str)
def test_where_a_run_is_computed_is_no_part_of_what_it_is(settings):
    assert override(Experiment(), settings).identity() == Experiment().identity()


@pytest.mark.parametrize("settings", OTHER, ids=str)
def test_what_changes_the_result_is(settings):
    assert override(Experiment(), settings).identity() != Experiment().identity()


def test_a_loaded_model_gets_a_new_head_whatever_the_bias_of_its_own():
    """As --help and --dry-run show it."""
    config = make_config("mu/8@16", classes=3, head_bias=-10.0)
    assert ModelSettings().completed(config).head_bias == 0
    assert ModelSettings(head_bias=-5.0).completed(config).head_bias == -5


def test_the_identity_can_be_stored():
    made = Experiment(objective=MaskedPatches(target="grid")).identity()
    assert json.loads(json.dumps(made))["optimizer"]["lr"] == made["optimizer"]["lr"]
    assert made["objective"] == {
        "name": "masked-patches", "target": "grid", "corrupted": 0.5, "masked": 0.8, "replaced": 0.1,
    }  # fmt: skip


def test_every_setting_is_defined_once():
    """Flags and keywords are names of fields: one name in two groups would be two settings."""
    experiment = Experiment()
    groups = [experiment.model, experiment.data, experiment.optimizer, experiment.training]
    names = [field.name for group in groups for field in dataclasses.fields(group)]
    for objective in (experiment.objective, MaskedPatches()):
        own = [field.name for field in dataclasses.fields(objective)]
        assert not set(own) & set(names) and len(set(names)) == len(names)


COUNTS = st.integers(1, 10**6)


@pytest.mark.parametrize(
    ("duration", "steps"),
    [
        (10_000, 10_000),
        ("10_000", 10_000),
        (" 7 ", 7),
        (0, 0),
        ("2ep", 20),
        ("1.5 epochs", 15),
        ("1epoch", 10),
        ("0.04ep", 0),
        ("5%", 10),
        ("0.5 %", 1),
        ("100%", 200),
        ("0%", 0),
    ],
)
def test_by_hand(duration, steps):
    assert in_steps(duration, examples=640, batch_size=64, total=200) == steps


@given(st.integers(1, 10**9), COUNTS, COUNTS)
def test_a_number_is_that_many_steps_whatever_the_data(steps, examples, batch_size):
    assert in_steps(steps, examples=examples, batch_size=batch_size) == steps
    assert in_steps(f"{steps:_}", examples=examples, batch_size=batch_size) == steps


@given(st.integers(1, 1000), COUNTS, COUNTS)
def test_passes_show_every_example_so_often_to_half_a_batch(epochs, examples, batch_size):
    steps = in_steps(f"{epochs}ep", examples=examples, batch_size=batch_size)
    assert abs(steps * batch_size - epochs * examples) <= batch_size / 2 * (1 + 1e-9)


@given(st.integers(0, 100), st.integers(1, 10**6))
def test_a_part_of_the_run(percent, total):
    steps = in_steps(f"{percent}%", examples=1, batch_size=1, total=total)
    assert 0 <= steps <= total
    assert abs(steps - percent * total / 100) <= 0.5 + 1e-6


@pytest.mark.parametrize(
    "bad", ["", "soon", "-5", -5, "1.5", "3 weeks", "ep", "%", "101%", "1e3", "5%%", "nan"]
)
def test_what_is_no_duration(bad):
    with pytest.raises(
        ConfigError, match=r"is not a duration: steps \(10_000\).* or a part of the run \(5%\)"
    ):
        in_steps(bad, examples=64, batch_size=8, total=100)


def test_the_length_of_a_run_is_no_part_of_itself():
    with pytest.raises(ConfigError, match=r"'5%' is not a duration: .*\(90ep\)$"):
        in_steps("5%", examples=64, batch_size=8)


def test_a_run_has_a_step():
    with pytest.raises(ConfigError, match="steps 0: a run has at least 1"):
        in_steps(0, examples=64, batch_size=8)
