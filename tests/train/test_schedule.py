"""The rate at each step, by hand. tests/parity has the published code's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.train.schedule import Schedule

DECAYS = ("cosine", "linear", "constant", "stairs")
RATE, STEPS, WARMUP = 0.4, 110, 10


def schedule(decay, **fields):
    return Schedule(RATE, STEPS, decay, WARMUP, **fields)


@pytest.mark.parametrize("decay", DECAYS)
def test_the_warm_up_begins_at_nothing_and_ends_at_the_rate(decay):
    made = schedule(decay)
    assert made(0) == 0
    assert made(WARMUP) == pytest.approx(RATE)
    if decay in ("constant", "stairs"):
        assert [made(t) for t in range(WARMUP)] == pytest.approx([RATE * t / WARMUP for t in range(WARMUP)])


@pytest.mark.parametrize(
    ("decay", "half", "end"),
    [("cosine", RATE / 2, 0), ("linear", (RATE + 1e-5) / 2, 1e-5), ("constant", RATE, RATE)],
)
def test_half_way_and_at_the_end(decay, half, end):
    made = schedule(decay)
    assert made(WARMUP + (STEPS - WARMUP) // 2) == pytest.approx(half)
    assert made(STEPS) == pytest.approx(end, abs=1e-12)
    assert made(STEPS + 1000) == pytest.approx(end, abs=1e-12)


def test_where_linear_ends_is_a_choice():
    assert schedule("linear", end=0.1)(STEPS) == pytest.approx(0.1)


def test_stairs():
    made = schedule("stairs", stairs=(50, 60, 90))
    wanted = {WARMUP: 1, 50: 1, 51: 0.1, 60: 0.1, 61: 0.01, 90: 0.01, 91: 0.001, STEPS: 0.001}
    assert {t: made(t) / RATE for t in wanted} == pytest.approx(wanted)


# BiT-HyperRule: the end of the warm-up, the decays, the end of the run
SUPPORTS = [(100, 200, 300, 400, 500), (500, 3000, 6000, 9000, 10_000), (500, 6000, 12_000, 18_000, 20_000)]


def hyperrule(step, supports, base_rate):
    """As BiT's code reads: linear up to the first support, then a tenth for each later one that is below the step."""
    if step < supports[0]:
        return base_rate * step / supports[0]
    for support in supports[1:]:
        if support < step:
            base_rate /= 10
    return base_rate


@pytest.mark.parametrize("supports", SUPPORTS, ids=lambda supports: f"{supports[-1]} steps")
def test_stairs_are_those_of_the_hyperrule_at_every_step(supports):
    warmup, *stairs, steps = supports
    made = Schedule(0.003, steps, "stairs", warmup, stairs=tuple(stairs))
    rates = [hyperrule(t, supports, 0.003) for t in range(steps)]
    assert [made(t) for t in range(steps)] == pytest.approx(rates, rel=1e-12)


@given(st.sampled_from(DECAYS), st.integers(1, 500), st.data())
def test_never_below_nothing_or_above_the_rate_and_never_rising_after_the_warm_up(decay, steps, data):
    warmup = data.draw(st.integers(0, steps))
    made = Schedule(RATE, steps, decay, warmup, stairs=(steps // 2,))
    rates = [made(t) for t in range(steps + 1)]
    assert all(0 <= rate <= RATE * (1 + 1e-12) for rate in rates)
    assert all(a >= b - 1e-12 for a, b in zip(rates[warmup:], rates[warmup + 1 :], strict=False))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rate": -1.0}, "a learning rate of -1"),
        ({"rate": float("inf")}, "a learning rate of inf"),
        ({"rate": float("nan")}, "a learning rate of nan"),
        ({"steps": 0}, "in a run of 0"),
        ({"warmup": 11}, "a warm-up of 11 steps in a run of 10"),
        ({"warmup": -1}, "a warm-up of -1"),
    ],
)
def test_refused(fields, words):
    with pytest.raises(ConfigError, match=words):
        Schedule(**{"rate": 0.1, "steps": 10, **fields})
