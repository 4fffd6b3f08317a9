"""The learning rate at each step, by hand. tests/parity has the published code's."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.train.optim import lr_at
from vitrail.train.settings import OptimizerSettings

SCHEDULES = ("cosine", "linear", "constant", "milestones")
LR, STEPS, WARMUP = 0.4, 110, 10


def schedule(kind, steps=STEPS, lr=LR, warmup=WARMUP, milestones=(1_000,), **settings):
    settings |= {"milestones": milestones} if kind == "milestones" else {}
    return partial(
        lr_at, steps=steps, settings=OptimizerSettings(lr=lr, schedule=kind, warmup=warmup, **settings)
    )


@pytest.mark.parametrize("kind", SCHEDULES)
def test_the_warmup_begins_at_nothing_and_ends_at_lr(kind):
    lr = schedule(kind)
    assert lr(0) == 0
    assert lr(WARMUP) == pytest.approx(LR)
    if kind in ("constant", "milestones"):
        assert [lr(t) for t in range(WARMUP)] == pytest.approx([LR * t / WARMUP for t in range(WARMUP)])


@pytest.mark.parametrize(
    ("kind", "half", "end"),
    [("cosine", LR / 2, 0), ("linear", (LR + 1e-5) / 2, 1e-5), ("constant", LR, LR)],
)
def test_half_way_and_at_the_end(kind, half, end):
    lr = schedule(kind)
    assert lr(WARMUP + (STEPS - WARMUP) // 2) == pytest.approx(half)
    assert lr(STEPS) == pytest.approx(end, abs=1e-12)
    assert lr(STEPS + 1000) == pytest.approx(end, abs=1e-12)


def test_where_linear_ends_is_a_choice():
    assert schedule("linear", end_lr=0.1)(STEPS) == pytest.approx(0.1)


def test_milestones():
    lr = schedule("milestones", milestones=(50, 60, 90))
    expected = {WARMUP: 1, 50: 1, 51: 0.1, 60: 0.1, 61: 0.01, 90: 0.01, 91: 0.001, STEPS: 0.001}
    assert {t: lr(t) / LR for t in expected} == pytest.approx(expected)


# BiT-HyperRule: the end of the warmup, the drops, the end of the run
SUPPORTS = [(100, 200, 300, 400, 500), (500, 3000, 6000, 9000, 10_000), (500, 6000, 12_000, 18_000, 20_000)]


def hyperrule(step, supports, base_lr):
    """As BiT's code reads: linear up to the first support, then a tenth for each later one that is below the step."""
    if step < supports[0]:
        return base_lr * step / supports[0]
    for support in supports[1:]:
        if support < step:
            base_lr /= 10
    return base_lr


@pytest.mark.parametrize("supports", SUPPORTS, ids=lambda supports: f"{supports[-1]} steps")
def test_milestones_are_those_of_the_hyperrule_at_every_step(supports):
    warmup, *milestones, steps = supports
    lr = schedule("milestones", steps, 0.003, warmup, tuple(milestones))
    expected = [hyperrule(t, supports, 0.003) for t in range(steps)]
    assert [lr(t) for t in range(steps)] == pytest.approx(expected, rel=1e-12)


@given(st.sampled_from(SCHEDULES), st.integers(1, 500), st.data())
def test_never_below_nothing_or_above_lr_and_never_rising_after_the_warmup(kind, steps, data):
    warmup = data.draw(st.integers(0, steps))
    lr = schedule(kind, steps, warmup=warmup, milestones=(steps // 2,))
    lrs = [lr(t) for t in range(steps + 1)]
    assert all(0 <= value <= LR * (1 + 1e-12) for value in lrs)
    assert all(a >= b - 1e-12 for a, b in zip(lrs[warmup:], lrs[warmup + 1 :], strict=False))
