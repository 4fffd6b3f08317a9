"""The published protocols as they are printed, and the one for a folder of photographs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data import preprocess as pp
from vitrail.train.duration import in_steps
from vitrail.train.schedule import Schedule
from vitrail.transfer.protocols import PROTOCOLS, Facts, augreg, bit, default, multiple, paper

RANGE = "to_range(-1, 1)"


def facts(examples=50_000, short_side=500, area=250_000, image_size=224, stride=16, gpu=True, **more):
    return Facts(examples, short_side, area, image_size, stride, RANGE, gpu, **more)


# Table 4 and appendix B.1.1: training examples, steps, rates, part held out to choose
TABLE_4 = {
    "imagenet": (1_281_167, 20_000, {0.003, 0.01, 0.03, 0.06}, 0.01),
    "cifar100": (50_000, 10_000, {0.001, 0.003, 0.01, 0.03}, 0.02),
    "cifar10": (50_000, 10_000, {0.001, 0.003, 0.01, 0.03}, 0.02),
    "pets": (3_680, 500, {0.001, 0.003, 0.01, 0.03}, 0.1),
    "flowers": (2_040, 500, {0.001, 0.003, 0.01, 0.03}, 0.1),
}


@pytest.mark.parametrize("name", TABLE_4)
def test_paper(name):
    examples, steps, rates, dev = TABLE_4[name]
    made = paper(facts(examples), None)
    assert (made["steps"], set(made["rates"]), made["dev"]) == (steps, rates, dev)
    assert made["rate"] in rates
    assert (made["batch"], made["optimizer"], made["decay"], made["clip"]) == (512, "sgd", "cosine", 1.0)
    assert (made["weight_decay"], made["image_size"]) == (0.0, 384)
    assert (made["dropout"], made["drop_path"]) == (0.0, 0.0)  # whatever the checkpoint was pre-trained with
    assert "dropout" not in paper(facts(examples, has_dropout=False), None)


@pytest.mark.parametrize(("examples", "rate"), [(19_999, 0.01), (20_000, 0.03), (1_281_167, 0.03)])
def test_the_rate_where_none_is_chosen(examples, rate):
    """The published code's 0.03; for 500 steps that of big_vision's transfer to Pets and Flowers."""
    assert paper(facts(examples), None)["rate"] == rate


@pytest.mark.parametrize("examples", [1_000, 50_000, 1_281_167])
def test_augreg(examples):
    """vision_transformer's configs/augreg.py, which does not look at the size of the data."""
    made = augreg(facts(examples), None)
    assert (made["steps"], made["rate"], made["batch"], made["image_size"]) == (500, 0.03, 512, 384)
    assert in_steps(made["warmup"], examples=examples, batch=512, total=500) == 100
    assert (made["optimizer"], made["decay"], made["clip"], made["weight_decay"]) == (
        "sgd",
        "cosine",
        1.0,
        0.0,
    )
    assert (made["dropout"], made["drop_path"], made["mixup"]) == (0.0, 0.0, 0.0)
    for line in ("preprocess", "evaluate_preprocess"):
        assert made[line] == paper(facts(examples), None)[line]


# BiT-HyperRule: training examples, steps, the steps at which the rate falls, mixup
HYPERRULE = {
    "small": (19_999, 500, (200, 300, 400), 0.0),
    "medium": (20_000, 10_000, (3000, 6000, 9000), 0.1),
    "still medium": (499_999, 10_000, (3000, 6000, 9000), 0.1),
    "large": (500_000, 20_000, (6000, 12_000, 18_000), 0.1),
}


def in_all_steps(durations, total):
    return tuple(in_steps(duration, examples=1, batch=1, total=total) for duration in durations)


@pytest.mark.parametrize("name", HYPERRULE)
def test_hyperrule(name):
    examples, steps, stairs, mixup = HYPERRULE[name]
    made = bit(facts(examples, stride=1), None)
    assert (made["steps"], made["decay"], made["mixup"]) == (steps, "stairs", mixup)
    assert in_all_steps(made["stairs"], steps) == stairs
    assert in_all_steps(made["stairs"], 2 * steps) == tuple(
        2 * at for at in stairs
    )  # --steps moves them along
    assert (made["batch"], made["rate"], made["optimizer"]) == (512, 0.003, "sgd")
    warmup = in_steps(made["warmup"], examples=examples, batch=512, total=steps)
    assert warmup == (100 if steps == 500 else 500)
    rates = Schedule(made["rate"], steps, "stairs", warmup, stairs=stairs)
    assert (rates(stairs[-1]), rates(stairs[-1] + 1)) == pytest.approx((3e-5, 3e-6))


@pytest.mark.parametrize(
    ("area", "resize", "crop"),
    [(32 * 32, 160, 128), (96 * 95, 160, 128), (96 * 96, 512, 480), (80 * 160, 512, 480)],
)
def test_hyperrule_sizes(area, resize, crop):
    made = bit(facts(area=area, stride=1), None)
    assert made["image_size"] == crop
    assert made["preprocess"] == f"resize({resize})|random_crop({crop})|flip_lr|{RANGE}"


@given(
    protocol=st.sampled_from(sorted(PROTOCOLS)),
    examples=st.integers(2, 10**7),
    short_side=st.integers(8, 5000),
    image_size=st.sampled_from([32, 224, 384]),
    stride=st.sampled_from([1, 8, 14, 16, 32]),
    gpu=st.booleans(),
    asked=st.sampled_from([None, 448]),
)
def test_every_protocol_says_everything_and_its_lines_make_the_size(
    protocol, examples, short_side, image_size, stride, gpu, asked
):
    given_facts = Facts(examples, short_side, short_side**2, multiple(image_size, stride), stride, RANGE, gpu)
    made = PROTOCOLS[protocol](given_facts, asked)
    open_in_some = {"stairs", "dropout", "drop_path"}
    assert made.keys() - open_in_some == paper(given_facts, asked).keys() - open_in_some
    size = made["image_size"]
    assert size % stride == 0 and (asked is None or size == asked)
    assert pp.parse(made["preprocess"]).image_size == (size, size)
    if made["evaluate_preprocess"]:
        assert pp.parse(made["evaluate_preprocess"]).image_size == (size, size)
    assert made["steps"] >= 200 and made["batch"] >= 4 and 0 < made["dev"] < 1


@pytest.mark.parametrize(
    ("examples", "batch", "steps"), [(20, 4, 200), (800, 64, 250), (4_000, 64, 1250), (100_000, 64, 7812)]
)
def test_default_lengths(examples, batch, steps):
    made = default(facts(examples), None)
    assert (made["batch"], made["steps"]) == (batch, steps)


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ({"gpu": False}, 224),  # a CPU stays at the checkpoint's own size
        ({"short_side": 2000}, 384),
        ({"short_side": 300}, 304),  # no larger than the pictures, in whole patches
        ({"short_side": 50}, 224),
        ({"image_size": 64, "stride": 8}, 112),
    ],
)
def test_default_sizes(fields, size):
    assert default(facts(**fields), None)["image_size"] == size
    assert size <= 2 * facts(**fields).image_size


def test_multiple():
    assert [multiple(n, 16) for n in (1, 23, 25, 384)] == [16, 16, 32, 384]
