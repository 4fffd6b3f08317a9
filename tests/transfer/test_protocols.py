"""The published protocols as they are printed, and the one for a folder of photographs."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data import preprocess as pp
from vitrail.data.settings import DataSettings
from vitrail.errors import ConfigError
from vitrail.models.names import make_config
from vitrail.train.optim import lr_at
from vitrail.transfer.facts import Facts, Speed, training_flops
from vitrail.transfer.plans import choose_plan, list_plans, round_to
from vitrail.transfer.protocols import PROTOCOLS, Sweep, augreg, bit, default, paper, plain

RANGE = "to_range(-1, 1)"
TI8 = partial(training_flops, make_config("Ti/8", classes=10))
SMALL_MODEL = {"examples": 800, "model_size": 64, "stride": 8, "short_side": 128, "gpu": False, "flops": TI8}


def facts(examples=50_000, **more):
    return Facts(**({"examples": examples, "short_side": 500, "area": 250_000, "gpu": True} | more))


# Table 4 and appendix B.1.1: training examples, steps, lrs, fraction held out to choose
TABLE_4 = {
    "imagenet": (1_281_167, 20_000, {0.003, 0.01, 0.03, 0.06}, 0.01),
    "cifar100": (50_000, 10_000, {0.001, 0.003, 0.01, 0.03}, 0.02),
    "cifar10": (50_000, 10_000, {0.001, 0.003, 0.01, 0.03}, 0.02),
    "pets": (3_680, 500, {0.001, 0.003, 0.01, 0.03}, 0.1),
    "flowers": (2_040, 500, {0.001, 0.003, 0.01, 0.03}, 0.1),
}


@pytest.mark.parametrize("name", TABLE_4)
def test_paper(name):
    examples, steps, lrs, dev = TABLE_4[name]
    tuning = paper(facts(examples))
    made = tuning.experiment
    assert (made.training.steps, set(tuning.sweep.lrs), tuning.sweep.dev) == (steps, lrs, dev)
    optimizer = made.optimizer
    assert optimizer.lr in lrs
    assert (optimizer.optimizer, optimizer.schedule, optimizer.grad_clip) == ("sgd", "cosine", 1.0)
    assert (optimizer.weight_decay, made.data.batch_size, made.model.image_size) == (0.0, 512, 384)
    assert (made.model.dropout, made.model.drop_path) == (0.0, 0.0)  # whatever it was pre-trained with
    assert paper(facts(examples, has_dropout=False)).experiment.model.dropout is None


@pytest.mark.parametrize(("examples", "lr"), [(19_999, 0.01), (20_000, 0.03), (1_281_167, 0.03)])
def test_lr_where_none_is_chosen(examples, lr):
    """The published code's 0.03; for 500 steps that of big_vision's transfer to Pets and Flowers."""
    assert paper(facts(examples)).experiment.optimizer.lr == lr


@pytest.mark.parametrize("examples", [1_000, 50_000, 1_281_167])
def test_augreg(examples):
    """vision_transformer's configs/augreg.py, which does not look at the size of the data."""
    made = augreg(facts(examples)).experiment.resolve(examples, cuda=False)
    assert (made.training.steps, made.optimizer.lr, made.optimizer.warmup) == (500, 0.03, 100)
    assert (made.data.batch_size, made.model.image_size, made.data.mixup) == (512, 384, 0.0)
    optimizer = made.optimizer
    assert (optimizer.optimizer, optimizer.schedule, optimizer.grad_clip) == ("sgd", "cosine", 1.0)
    assert (optimizer.weight_decay, made.model.dropout, made.model.drop_path) == (0.0, 0.0, 0.0)
    published = paper(facts(examples)).experiment.data
    assert made.data.preprocess == published.preprocess
    assert made.data.evaluate_preprocess == published.evaluate_preprocess


# BiT-HyperRule: training examples, steps, the steps after which lr drops, mixup
HYPERRULE = {
    "small": (19_999, 500, (200, 300, 400), 0.0),
    "medium": (20_000, 10_000, (3000, 6000, 9000), 0.1),
    "still medium": (499_999, 10_000, (3000, 6000, 9000), 0.1),
    "large": (500_000, 20_000, (6000, 12_000, 18_000), 0.1),
}


@pytest.mark.parametrize("name", HYPERRULE)
def test_hyperrule(name):
    examples, steps, milestones, mixup = HYPERRULE[name]
    made = bit(facts(examples, stride=1)).experiment.resolve(examples, cuda=False)
    optimizer = made.optimizer
    assert (made.training.steps, optimizer.schedule, made.data.mixup) == (steps, "milestones", mixup)
    assert optimizer.milestones == milestones
    assert (made.data.batch_size, optimizer.lr, optimizer.optimizer) == (512, 0.003, "sgd")
    assert optimizer.warmup == (100 if steps == 500 else 500)
    last = milestones[-1]
    assert (lr_at(last, steps, optimizer), lr_at(last + 1, steps, optimizer)) == pytest.approx((3e-5, 3e-6))


@pytest.mark.parametrize(
    ("area", "resize", "crop"),
    [(32 * 32, 160, 128), (96 * 95, 160, 128), (96 * 96, 512, 480), (80 * 160, 512, 480)],
)
def test_hyperrule_sizes(area, resize, crop):
    made = bit(facts(area=area, stride=1)).experiment
    assert made.model.image_size == crop
    assert made.data.preprocess == f"resize({resize})|random_crop({crop})|flip_lr|{RANGE}"


@given(
    protocol=st.sampled_from(sorted(PROTOCOLS)),
    examples=st.integers(2, 10**7),
    short_side=st.integers(8, 5000),
    model_size=st.sampled_from([32, 224, 384]),
    stride=st.sampled_from([1, 8, 14, 16, 32]),
    gpu=st.booleans(),
    asked=st.sampled_from([None, 448]),
    optimizer=st.sampled_from([None, "sgd", "adamw"]),
    sweep=st.booleans(),
)
def test_every_protocol_is_complete_and_its_lines_make_the_size(
    protocol, examples, short_side, model_size, stride, gpu, asked, optimizer, sweep
):
    given_facts = Facts(
        examples=examples, classes=2, short_side=short_side, area=short_side**2, stride=stride, gpu=gpu,
        model_size=round_to(model_size, stride), image_size=asked, optimizer=optimizer, sweep=sweep,
    )  # fmt: skip
    tuning = PROTOCOLS[protocol](given_facts)
    made = tuning.experiment
    size = made.model.image_size
    assert size % stride == 0 and (asked is None or size == asked)
    assert bool(made.data.preprocess) != bool(made.data.augment)
    line = made.data.preprocess or pp.augmented_line(
        made.data.augment, pp.default_line((size, size)), (size, size)
    )
    assert pp.parse(line).image_size == (size, size)
    if made.data.evaluate_preprocess:
        assert pp.parse(made.data.evaluate_preprocess).image_size == (size, size)
    assert int(made.training.steps) >= 100 and 0 < tuning.sweep.dev < 1 and tuning.sweep.sweep == sweep
    assert made.data.batch_size <= max(4, examples)
    assert made.optimizer.optimizer == (optimizer or "sgd") and made.optimizer.lr <= max(tuning.sweep.lrs)
    made.resolve(max(examples, 512), cuda=gpu)


@pytest.mark.parametrize(
    ("examples", "batch_size", "steps"),
    [(20, 4, 200), (800, 64, 250), (4_000, 64, 1250), (100_000, 64, 7812)],
)
def test_default_lengths(examples, batch_size, steps):
    made = default(facts(examples)).experiment
    assert (made.data.batch_size, made.training.steps) == (batch_size, steps)


@pytest.mark.parametrize(
    ("fields", "size", "plain_size"),
    [
        ({"gpu": False}, 224, 224),  # a large model stays at its own size on a CPU
        ({"short_side": 2000}, 336, 384),
        ({"short_side": 2000, "model_size": 288}, 384, 496),  # the paper's
        ({"short_side": 2000, "model_size": 384}, 384, 656),
        ({"short_side": 2000, "model_size": 128}, 192, 224),
        ({"short_side": 300}, 304, 304),  # no larger than the images, in whole patches
        ({"short_side": 50}, 224, 224),
        ({"short_side": 2000, "resizable": False}, 224, 384),
        ({"model_size": 64, "stride": 8}, 96, 112),
        (SMALL_MODEL, 96, 64),  # a small one does not
    ],
)
def test_sizes(fields, size, plain_size):
    assert default(facts(**fields)).experiment.model.image_size == size
    assert plain(facts(**fields)).experiment.model.image_size == plain_size


def test_on_a_cpu_a_larger_size_has_half_of_the_steps():
    steps = {
        gpu: default(facts(**SMALL_MODEL | {"gpu": gpu})).experiment.training.steps for gpu in (True, False)
    }
    assert steps == {True: 250, False: 125}


@pytest.mark.parametrize(
    ("fields", "balance"),
    [
        ({}, 0.0),
        ({"imbalance": 1.9}, 0.0),
        ({"imbalance": 10.0}, 1.0),
        ({"imbalance": 10.0, "loss": "sigmoid"}, 0.0),
    ],
)
def test_uneven_classes_are_evened_out(fields, balance):
    assert default(facts(**fields)).experiment.objective.balance == balance
    assert plain(facts(**fields)).experiment.objective.balance == 0.0


@pytest.mark.parametrize(
    ("val", "examples", "watched"),
    [
        ("validation", 99, ("none", "10%", "", 0)),
        ("validation", 100, ("validation", "10%", "", 0)),
        ("validation", 500, ("validation", "10%", "val_top1", 5)),
        (
            "validation",
            10_000,
            ("validation", "25%", "val_top1", 5),
        ),  # else it would take longer than the training
    ],
)
def test_a_run_is_watched_where_there_is_enough_to_watch_it_on(val, examples, watched):
    made = default(facts(4_000, val=val, val_examples=examples)).experiment
    training = made.training
    assert (made.data.val, training.evaluate_every, training.monitor, training.patience) == watched


def test_a_part_of_a_large_training_split_is_held_out():
    made = default(facts(20_000, val="train[98%: per class]", val_examples=400)).experiment
    assert (made.data.train, made.data.val) == ("train[:98% per class]", "train[98%: per class]")


def test_the_head_alone_needs_features_only_once():
    made = default(facts(tune="head")).experiment
    assert (made.optimizer.tune, made.data.augment) == ("head", "none")
    assert (made.model.dropout, made.model.drop_path, made.model.image_size) == (0.0, 0.0, 224)


# ---- within a budget ----


def within(budget, flops=50e9, **more):
    return default(facts(**SMALL_MODEL | {"budget": budget, "speed": Speed(flops, 0.001)} | more))


@pytest.mark.parametrize(
    ("budget", "chosen"),
    [
        ("3h", (96, "all", 250)),
        ("40m", (96, "all", 250)),
        ("18m", (96, "all", 125)),
        ("8m", (64, "all", 125)),
        ("5m", (64, "last:4", 125)),
        ("1m", (64, "head", 250)),
        ("1s", (64, "head", 250)),  # nothing fits: the quickest
    ],
)
def test_a_budget_buys_the_best_that_fits(budget, chosen):
    made = within(budget).experiment
    assert (made.model.image_size, made.optimizer.tune, made.training.steps) == chosen


@given(seconds=st.integers(1, 10**5), flops=st.sampled_from([1e9, 5e10, 1e13]), runs=st.integers(1, 5))
def test_what_is_chosen_fits_and_more_time_never_buys_less(seconds, flops, runs):
    speed = Speed(flops, 0.001)
    made = [facts(**SMALL_MODEL, budget=f"{s}s", speed=speed, runs=runs) for s in (seconds, 2 * seconds)]
    plans = list_plans(made[0])
    less, more = (choose_plan(one)[0] for one in made)
    assert plans.index(more) <= plans.index(less)
    if less != plans[-1]:
        assert less.seconds(made[0], made[0].speed) <= seconds


def test_what_more_time_would_bring_is_said():
    said = within("8m").remarks
    assert said[0].startswith("Within 8m: training all layers at 64 px for 125 steps, about ")
    assert said[1].startswith("Next: training all layers at 64 px for 250 steps, with --budget ")
    need = said[1].partition("--budget ")[2].partition("m")[0]
    assert within(f"{need}m").experiment.training.steps == 250
    assert within("1s").remarks[0].startswith("Nothing fits into 1s; the least: training the head")
    assert "--image-size 192, " in within("9h", short_side=500).remarks[1]
    assert within("9h").remarks[1:] == ()


def test_what_is_set_limits_what_a_budget_chooses():
    assert within("1m", image_size=96).experiment.model.image_size == 96
    assert within("3h", tune="head").experiment.optimizer.tune == "head"
    assert within("1m", tune="last:2").experiment.optimizer.tune == "last:2"


@pytest.mark.parametrize("wrong", ["10", "m", "0m", "-1m", "10 minutes", "1d", "1e3m", "nan m"])
def test_what_is_not_a_time(wrong):
    with pytest.raises(ConfigError, match="is not a time such as 30s, 10m or 2h"):
        Sweep(budget=wrong)


def test_round_to():
    assert [round_to(n, 16) for n in (1, 23, 25, 384)] == [16, 16, 32, 384]


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_a_training_line_or_a_strength_that_is_set_takes_the_place_of_the_protocols_own(protocol):
    named = PROTOCOLS[protocol](facts(augment="strong")).experiment.data
    assert not named.preprocess
    written = PROTOCOLS[protocol](facts(preprocess="resize(384)")).experiment.data
    assert written.augment is None
    with pytest.raises(ConfigError, match="set one of them"):
        DataSettings(preprocess="resize(384)", augment="light")
