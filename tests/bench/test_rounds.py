"""The clock: medians, ratios within a round, and who is left out."""

from __future__ import annotations

import pytest
import torch

from vitrail.bench import rounds
from vitrail.bench.rounds import OURS, Contestant, Measured, Speed, Spread, Task, measure

CPU = torch.device("cpu")


class Clock:
    """A clock that steps move on by what they are said to take."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, list[str]()

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.calls += ["sleep"] if seconds else []

    def contestant(self, name: str, *seconds: float, ready: int = 0) -> Contestant:
        """A contestant whose steps take these times, one after the other, the last again and again."""

        def build():
            times = iter(seconds)
            last = seconds[-1]

            def step() -> None:
                self.now += next(times, last)
                self.calls.append(name)

            return step

        return Contestant(name, build, ready)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(rounds, "time", clock)
    return clock


def test_a_spread() -> None:
    spread = Spread([3.0, 1.0, 2.0])
    assert spread.as_json() == {"median": 2.0, "lowest": 1.0, "highest": 3.0, "rounds": [3.0, 1.0, 2.0]}
    assert spread.text(1, "x") == "2.0x (1.0x to 3.0x)"
    assert Spread([1234.5]).text(0) == "1,234"


def test_a_ratio_is_that_of_one_round() -> None:
    ours, theirs = (
        Speed(OURS, 8, 0.0, seconds=[1.0, 2.0, 4.0]),
        Speed("timm", 8, 0.0, seconds=[2.0, 2.0, 4.0]),
    )
    assert ours.ratio(theirs).values == [2.0, 1.0, 1.0]
    assert ours.images_per_second.values == [8.0, 4.0, 2.0]
    assert ours.milliseconds.median == 2000.0


def test_contestants_take_turns(clock: Clock) -> None:
    task = Task("train", 4, [clock.contestant(OURS, 0.5), clock.contestant("timm", 1.0)])
    measured = measure(task, rounds=3, round_seconds=1.0, device=CPU)
    assert measured.steps == 2  # of half a second
    assert clock.calls[-12:] == [OURS, OURS, "timm", "timm"] * 3
    ours, timm = measured.speeds
    assert ours.seconds == [0.5] * 3 and timm.seconds == [1.0] * 3
    assert ours.ratio(timm).median == 2.0
    assert measured.fastest_peer() is timm
    (first, second) = measured.as_json()["contestants"]
    assert first["images_per_second"]["rounds"] == [8.0] * 3 and first["vitrail_ratio"] is None
    assert second["vitrail_ratio"]["median"] == 2.0


def test_starting_is_timed_by_itself(clock: Clock) -> None:
    task = Task("train", 4, [clock.contestant(OURS, 60.0, 1.0)])  # the first step compiles
    (ours,) = measure(task, rounds=2, round_seconds=1.0, device=CPU).speeds
    assert ours.startup_seconds == 61.0 and ours.seconds == [1.0, 1.0]


def test_latency_times_each_step(clock: Clock) -> None:
    slow_start, measured_once = [9.0, 9.0], [1.0]
    times = [*slow_start, *measured_once, 1.0, 1.0, 1.0, 5.0, 1.0]
    task = Task("latency", 1, [clock.contestant(OURS, *times)], latency=True)
    (ours,) = measure(task, rounds=1, round_seconds=5.0, device=CPU).speeds
    assert ours.seconds == [1.0]
    assert ours.p95 == [pytest.approx(4.2)]  # between 1, 1, 1, 1 and 5


def test_batches_made_ahead_are_left_out(clock: Clock) -> None:
    task = Task("loader", 4, [clock.contestant(OURS, 1.0, ready=3)])
    measure(task, rounds=1, round_seconds=2.0, device=CPU)
    assert clock.calls[-8:] == [*[OURS] * 3, *[OURS] * 4, "sleep"]  # as many again, and one


def broken() -> Contestant:
    def build():
        raise RuntimeError("no kernel\nand a long story")

    return Contestant("timm", build)


def breaking(clock: Clock) -> Contestant:
    def build():
        steps = iter(range(4))

        def step() -> None:
            if next(steps, None) is None:
                raise torch.OutOfMemoryError("CUDA out of memory")

        return step

    return Contestant("torchvision", build)


def test_another_library_that_fails_is_left_out_with_the_reason(clock: Clock) -> None:
    task = Task(
        "train", 4, [clock.contestant(OURS, 1.0), broken(), breaking(clock)], {"jax": "is not installed"}
    )
    measured = measure(task, rounds=4, round_seconds=1.0, device=CPU)
    assert [speed.name for speed in measured.speeds] == [OURS]
    assert measured.missing == {
        "jax": "is not installed",
        "timm": "failed: RuntimeError: no kernel",
        "torchvision": "out of GPU memory",
    }
    assert measured.as_json()["fastest_peer"] is None


def test_the_error_of_a_worker_is_its_last_line() -> None:
    error = RuntimeError(
        "Caught RuntimeError in DataLoader worker process 0.\nTraceback\nRuntimeError: no decoder."
    )
    assert rounds.describe_failure(error) == "failed: RuntimeError: no decoder"


def test_our_own_failure_is_an_error() -> None:
    def build():
        raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        measure(Task("train", 4, [Contestant(OURS, build)]), rounds=1, round_seconds=1.0, device=CPU)


@pytest.mark.parametrize(("flops", "peak", "share"), [(2.0, 16.0, 0.5), (2.0, 0.0, None), (0.0, 16.0, None)])
def test_the_share_of_the_peak(flops: float, peak: float, share: float | None) -> None:
    speed = Speed(OURS, 8, 0.0, seconds=[2.0])  # 4 images a second
    assert Measured(Task("train", 8, [], flops=flops, peak=peak), 1, [speed], {}).utilisation(speed) == share
