"""The clock: contestants do the same work by turns, round by round.

    round 1: vitrail, timm, torchvision     round 2: vitrail, timm, torchvision     ...

Whatever else the machine does meets all of them, so a ratio is that of one round; the median, the lowest and the
highest over all rounds are reported. Building, compiling and warming up come before the first round, and are timed by
themselves. A contestant other than ours that cannot be built, or fails, is left out with the reason.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from vitrail.runtime.memory import exhausted_memory
from vitrail.runtime.progress import progress

OURS = "vitrail"
# Steps before the first that is timed. CUDA graphs are recorded in the second or third.
WARM_UP = {"cuda": 5}
WARM_UP_ELSEWHERE = 2
MOST_STEPS = 1000  # in a round
Step = Callable[[], object]


@dataclass(frozen=True)
class Contestant:
    name: str  # "vitrail", "timm", "timm, compiled (max-autotune)"
    build: Callable[[], Step]  # its first steps may compile
    ready: int = 0  # steps that may have been done ahead when a round begins: batches made by other processes
    graphs: bool = False  # it may use CUDA graphs, which share memory: what one of them needs is not known


@dataclass(frozen=True)
class Task:
    """Work that all contestants do. The first contestant is ours."""

    kind: str
    batch_size: int
    contestants: list[Contestant]
    missing: dict[str, str] = field(default_factory=dict)  # why others do not take part
    latency: bool = False  # time each step by itself
    facts: dict[str, Any] = field(default_factory=dict)  # such as precision and compile
    flops: float = 0.0  # of one image
    peak: float = 0.0  # FLOPs that the device can do in a second; 0: unknown


@dataclass(frozen=True)
class Spread:
    """The values of all rounds."""

    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def as_json(self) -> dict[str, Any]:
        ends = {"lowest": min(self.values), "highest": max(self.values)}
        return {"median": self.median, **ends, "rounds": self.values}

    def text(self, digits: int, unit: str = "") -> str:
        """Return the median and, of several rounds, in brackets the lowest and the highest."""
        median, low, high = (
            f"{value:,.{digits}f}{unit}" for value in (self.median, min(self.values), max(self.values))
        )
        return f"{median} ({low} to {high})" if len(self.values) > 1 else median


@dataclass
class Speed:
    """The measurements of one contestant."""

    name: str
    batch_size: int
    startup_seconds: float  # building, compiling and warming up
    memory_bytes: int | None = None  # most that was allocated on the GPU
    seconds: list[float] = field(
        default_factory=list
    )  # of a step, for each round: the mean, or the median latency
    p95: list[float] = field(default_factory=list)  # 95th percentile of the latency, for each round

    @property
    def images_per_second(self) -> Spread:
        return Spread([self.batch_size / t for t in self.seconds])

    @property
    def milliseconds(self) -> Spread:
        return Spread([1000 * t for t in self.seconds])

    @property
    def p95_milliseconds(self) -> Spread | None:
        return Spread([1000 * t for t in self.p95]) if self.p95 else None

    def ratio(self, other: Speed) -> Spread:
        """Return how many times as fast this is as another, round by round."""
        return Spread([theirs / own for own, theirs in zip(self.seconds, other.seconds, strict=True)])


@dataclass(frozen=True)
class Measured:
    """A task and the speeds of those that took part, ours first."""

    task: Task
    steps: int  # in a round
    speeds: list[Speed]
    missing: dict[str, str]

    def utilisation(self, speed: Speed) -> float | None:
        """Return the share of the device's peak FLOPs (MFU); None where it is unknown."""
        task = self.task
        return speed.images_per_second.median * task.flops / task.peak if task.flops and task.peak else None

    def fastest_peer(self) -> Speed | None:
        return min(self.speeds[1:], key=lambda speed: statistics.median(speed.seconds), default=None)

    def as_json(self) -> dict[str, Any]:
        task, ours, fastest = self.task, self.speeds[0], self.fastest_peer()
        return {
            "kind": task.kind,
            "batch_size": task.batch_size,
            **task.facts,
            "steps_per_round": self.steps,
            "contestants": [
                {
                    "name": speed.name,
                    "images_per_second": speed.images_per_second.as_json(),
                    "milliseconds": speed.milliseconds.as_json(),
                    "p95_milliseconds": None if (p95 := speed.p95_milliseconds) is None else p95.as_json(),
                    "startup_seconds": speed.startup_seconds,
                    "memory_bytes": speed.memory_bytes,
                    "mfu": self.utilisation(speed),
                    "vitrail_ratio": None if speed is ours else ours.ratio(speed).as_json(),
                }
                for speed in self.speeds
            ],
            "fastest_peer": None if fastest is None else fastest.name,
            "missing": self.missing,
        }


def measure(task: Task, rounds: int, round_seconds: float, device: torch.device) -> Measured:
    """Start all contestants, then time them by turns."""
    missing, running, speeds = dict(task.missing), dict[str, Step](), dict[str, Speed]()
    contestants = {one.name: one for one in task.contestants}

    def leave_out(name: str, error: Exception) -> None:
        if name == OURS:
            raise error
        missing[name] = describe_failure(error)
        running.pop(name, None)
        speeds.pop(name, None)

    for name, contestant in progress(contestants.items(), len(contestants), f"{task.kind}: starting"):
        try:
            running[name], speeds[name] = start(contestant, task.batch_size, device)
        except Exception as error:  # another library may fail in any way
            leave_out(name, error)
        free_memory(device)
    # Batches of several processes come in bursts: more than one is looked at, and timed in a round.
    least = 1 + contestants[OURS].ready
    seconds = statistics.mean(seconds_of(running[OURS], least, task, contestants[OURS], device))
    steps = max(least, min(MOST_STEPS, round(round_seconds / max(seconds, 1e-9))))
    for _ in progress(range(rounds), rounds, f"{task.kind}: measuring"):
        for name in list(running):
            try:
                times = seconds_of(running[name], steps, task, contestants[name], device)
            except Exception as error:
                leave_out(name, error)
                free_memory(device)
                continue
            speeds[name].seconds.append(statistics.median(times))
            if task.latency:
                speeds[name].p95.append(float(np.percentile(times, 95)))
    return Measured(task, steps, list(speeds.values()), missing)


def start(contestant: Contestant, batch_size: int, device: torch.device) -> tuple[Step, Speed]:
    """Build a contestant and warm it up; return its step, and its speed without any rounds."""
    cuda = device.type == "cuda"
    before = torch.cuda.memory_allocated(device) if cuda else 0
    begin = time.perf_counter()
    step = contestant.build()
    for _ in range(WARM_UP.get(device.type, WARM_UP_ELSEWHERE)):
        step()
    synchronise(device)
    speed = Speed(contestant.name, batch_size, startup_seconds=time.perf_counter() - begin)
    if cuda and not contestant.graphs:
        torch.cuda.reset_peak_memory_stats(device)
        for _ in range(3):
            step()
        synchronise(device)
        speed.memory_bytes = torch.cuda.max_memory_allocated(device) - before or None  # None: a loader
    return step, speed


def seconds_of(
    step: Step, steps: int, task: Task, contestant: Contestant, device: torch.device
) -> list[float]:
    """Return the seconds of each step with `latency`, else their mean alone."""
    # On CUDA the first step of a round allocates again what others have used since.
    for _ in range(contestant.ready + (device.type == "cuda")):
        step()
    synchronise(device)
    times: list[float] = []
    begin = time.perf_counter()
    if task.latency:
        for _ in range(steps):
            step()
            synchronise(device)
            end = time.perf_counter()
            times.append(end - begin)
            begin = end
    else:
        for _ in range(steps):
            step()
        synchronise(device)
        times.append((time.perf_counter() - begin) / steps)
    # Its processes work ahead: let them end before another contestant is timed.
    time.sleep(contestant.ready * statistics.mean(times))
    return times


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def free_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def describe_failure(error: Exception) -> str:
    """Return one line about an error of another library."""
    if kind := exhausted_memory(error):
        return f"out of {kind}"
    lines = str(error).strip().splitlines() or [""]
    line = (
        lines[-1] if lines[0].startswith("Caught ") else f"{type(error).__name__}: {lines[0]}"
    )  # in a worker
    return f"failed: {line.partition('. ')[0][:120].rstrip(' :.')}"
