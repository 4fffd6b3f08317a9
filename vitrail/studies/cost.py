"""The cost of a study before it starts: steps and FLOPs by arithmetic, and the time on this machine.

    seconds of k runs at once, each = start-up / k + steps x FLOPs of a step / speed / k               on k cores
                                    = start-up / k + steps x max(FLOPs of a step / speed, host / k)    on a GPU

On a CPU the speed is measured, on a few images of noise for each model. On a GPU small runs share the device: the
speed of all together is assumed, and the time that the host needs for a step. As soon as runs of the study are
finished in its folder, the estimate of those that are left is scaled by what they took.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vitrail.data.sources import DataSet
from vitrail.models.cost import cost
from vitrail.models.names import Config, build
from vitrail.models.resnet import BiTConfig
from vitrail.runtime.device import peak_flops
from vitrail.studies.plan import Piece, Plan
from vitrail.studies.study import Scale
from vitrail.train.assemble import model_config
from vitrail.train.settings import Experiment

# Assumed until runs are finished. A Ti/8 of 64 pixels trains at 57,000 images/s (docs/results/train_step.md), which
# is 13% of an H200's peak; convolutions are assumed to reach half of that. Models of 224 pixels reach 40%.
SHARE, SHARE_RESNET, SHARE_LARGE = 0.12, 0.06, 0.4
LARGE = 224  # pixels
HOST_STEP = 0.01  # seconds of a CPU core that feeds a GPU, for each step
STARTUP = {"cuda": 40.0, "cpu": 1.5}  # seconds of a run: opening, compiling, evaluating
OTHER_FLOPS = 1e12  # per second, of a device that is not known
MEASURED = 16  # images


@dataclass(frozen=True)
class PieceCost:
    examples: int  # to train on
    steps: int
    gflops: float  # of a forward pass of one image
    parameters: int
    flops: float  # of the whole run
    startup: float  # seconds: opening, compiling, evaluating
    step: float  # seconds of a step on the device
    shared: bool  # runs share the device

    def seconds(self, at_once: int) -> float:
        """Return what the run adds to the time of a study that has so many runs at once."""
        step = max(self.step, HOST_STEP / at_once) if self.shared else self.step / at_once
        return self.startup / at_once + step * self.steps


class Costs:
    """Estimates of pieces; each model and each split is looked at once."""

    def __init__(self, scale: Scale, device: torch.device) -> None:
        self.scale, self.device = scale, device
        self.data: dict[str, DataSet] = {}
        self.splits: dict[tuple[str, str], tuple[int, int]] = {}
        self.speeds: dict[Config, float] = {}

    def split(self, data: str, split: str) -> tuple[int, int]:
        """Return the examples and classes of a split; of the authors' data where none is given."""
        if not data:
            assert self.scale.published is not None
            share = float(split.partition("[:")[2].partition("%")[0] or 100) / 100
            return int(self.scale.published.examples * share), self.scale.published.classes
        if (data, split) not in self.splits:
            source = self.data.setdefault(data, DataSet(data)).part(split)
            self.splits[data, split] = len(source), len(source.class_names)
        return self.splits[data, split]

    def estimate(self, piece: Piece) -> PieceCost:
        experiment = piece.experiment()
        examples, classes = self.split(experiment.data.data, experiment.data.train)
        resolved = experiment.resolve(examples, cuda=self.device.type == "cuda")
        config, steps = model_config(experiment, classes), int(resolved.training.steps)
        c, batch_size = cost(config), experiment.data.batch_size
        each = c.training_flops * batch_size / self.flops_per_second(config, experiment)
        startup = STARTUP.get(self.device.type, STARTUP["cpu"])
        flops = float(c.training_flops) * batch_size * steps
        shared = self.device.type != "cpu"
        return PieceCost(examples, steps, c.flops / 1e9, c.parameters, flops, startup, each, shared)

    def flops_per_second(self, config: Config, experiment: Experiment) -> float:
        if self.device.type == "cuda" or not experiment.data.data:
            share = SHARE_RESNET if isinstance(config, BiTConfig) else SHARE
            share = SHARE_LARGE if max(config.image_size) >= LARGE else share
            return (peak_flops(self.device) or OTHER_FLOPS) * share
        if config not in self.speeds:
            self.speeds[config] = measured_speed(config, self.device)
        return self.speeds[config]


def measured_speed(config: Config, device: torch.device) -> float:
    """Return the training FLOPs per second of a fresh model: the quicker of two passes after a first one."""
    with torch.random.fork_rng(devices=[]):
        model = build(config).to(device)
        x = torch.rand(MEASURED, config.channels, *config.image_size, device=device)
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        model(x).float().sum().backward()
        times.append(time.perf_counter() - begin)
    return cost(config).training_flops * MEASURED / min(times[1:])


def remaining_seconds(
    plan: Plan, costs: Mapping[str, PieceCost], finished: Mapping[str, float], at_once: int
) -> tuple[float, str]:
    """Return the seconds until the plan is done, and what they rest on. `finished`: seconds of finished pieces."""
    left = sum(costs[piece.name].seconds(at_once) for piece in plan.pieces if piece.name not in finished)
    expected = sum(costs[name].seconds(at_once) for name in finished if name in costs)
    if not expected:
        return left, "before the first run"
    took = sum(seconds for name, seconds in finished.items() if name in costs) / at_once
    return left * took / expected, f"by {len(finished)} finished runs"
