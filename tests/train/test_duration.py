import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.train.settings import in_steps

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
