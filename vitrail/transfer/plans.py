"""The choices of protocol `default` that cost time: image size, steps, and what is trained; within a budget.

Why these, with the measurements: docs/finetuning.md.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from vitrail.errors import ConfigError
from vitrail.train.estimate import describe_seconds
from vitrail.transfer.facts import Facts, Speed

LARGER = 1.5  # times the checkpoint's image size: the larger size
PAPERS = 384  # pixels of the paper's fine-tuning, which the larger size does not exceed
# Training FLOPs of an image up to which a CPU takes the larger size without a budget: ti8-64 up to 128 px.
CHEAP = 12e9
EVALUATIONS = 10  # of a run
START = {False: 15.0, True: 30.0}  # seconds apart from steps and evaluations, on a CPU and on a GPU
WITHIN = 0.8  # share of a budget that may be planned: an estimate is not exact
GAIN = "the larger size brought 4 points on textures (docs/finetuning.md)"


def in_seconds(budget: str) -> float:
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)\s*([smh])", budget)
    if match is None or not float(match[1]):
        raise ConfigError(f"budget {budget!r} is not a time such as 30s, 10m or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


@dataclass(frozen=True)
class Plan:
    """The choices of `default` that cost time."""

    image_size: int
    tune: str = "all"
    share: float = 1.0  # of the usual steps

    def steps(self, facts: Facts) -> int:
        return max(1, round(self.share * photo_steps(facts)))

    def seconds(self, facts: Facts, speed: Speed) -> float:
        """Estimate all runs, with the evaluations."""
        seen = facts.examples if self.tune == "head" else self.steps(facts) * photo_batch(facts)

        def cost(tune: str) -> float:
            compute = facts.flops(self.image_size, tune) / speed.flops
            return max(compute, speed.reading) if facts.gpu else compute + speed.reading

        evaluated = EVALUATIONS * facts.val_examples + facts.test_examples
        return facts.runs * (seen * cost(self.tune) + evaluated * cost("head")) + START[facts.gpu]


def choose_plan(facts: Facts) -> tuple[Plan, tuple[str, ...]]:
    """Return the best plan that fits, and what to say about the next better one."""
    plans = list_plans(facts)
    if facts.speed is not None and facts.budget:
        return fit_budget(facts, plans, facts.speed)
    best, own = plans[0], facts.pixels or facts.model_size
    if facts.gpu or best.image_size == own:
        return best, beyond(facts, best.image_size)
    if facts.flops(best.image_size, best.tune) <= CHEAP:
        return plans[1], beyond(facts, best.image_size)
    times = facts.flops(best.image_size, best.tune) / facts.flops(own, best.tune)
    text = f"Next: --image-size {best.image_size}, {times:.1f} times the time; {GAIN}"
    return plans[2], (f"{text}; --budget 2h chooses what fits into that time",)


def list_plans(facts: Facts) -> list[Plan]:
    """Return what may be done, the best first: the larger image size, with half the steps if need be; the
    checkpoint's own size; the last third of the layers; the head alone."""
    own, tune = facts.pixels or facts.model_size, facts.tune or "all"
    if tune == "head":  # frozen features suit the size that they were learned at, and steps cost nothing
        return [Plan(own, tune)]
    large = facts.pixels or largest_size(facts)
    plans = [Plan(size, tune, share) for size in dict.fromkeys((large, own)) for share in (1.0, 0.5)]
    if facts.tune is not None:
        return plans
    last = [Plan(own, f"last:{max(1, facts.layers // 3)}", 0.5)] if facts.layers else []
    return [*plans, *last, Plan(own, "head")]


def fit_budget(facts: Facts, plans: list[Plan], speed: Speed) -> tuple[Plan, tuple[str, ...]]:
    """Return the first plan that fits into the budget, else the quickest, and what the one before it would take."""
    budget = in_seconds(facts.budget)
    times = [plan.seconds(facts, speed) for plan in plans]
    fitting = [i for i, time in enumerate(times) if time <= WITHIN * budget]
    chosen = fitting[0] if fitting else times.index(min(times))
    plan = plans[chosen]
    begins = f"Within {facts.budget}" if fitting else f"Nothing fits into {facts.budget}; the least"
    said = f"{begins}: {describe_plan(plan, facts)}, about {describe_seconds(times[chosen])}"
    if not chosen:
        return plan, (said, *beyond(facts, plan.image_size))
    better, need = plans[chosen - 1], math.ceil(times[chosen - 1] / WITHIN / 60)
    gain = f"; {GAIN}" if better.image_size > plan.image_size else ""
    return plan, (said, f"Next: {describe_plan(better, facts)}, with --budget {need}m{gain}")


def describe_plan(plan: Plan, facts: Facts) -> str:
    names = {"all": "all layers", "head": "the head", "last": f"the last {plan.tune[5:]} layers"}
    what = names.get(plan.tune.partition(":")[0], plan.tune)
    return f"training {what} at {plan.image_size} px for {plan.steps(facts):,} steps"


def beyond(facts: Facts, size: int) -> tuple[str, ...]:
    """Say what was not tried, where the images have twice the size that is taken."""
    further = round_to(2 * size, facts.stride)
    if facts.pixels or facts.tune == "head" or facts.short_side < further or largest_size(facts) != size:
        return ()
    times = facts.flops(further, "all") / facts.flops(size, "all")
    return (f"Next: --image-size {further}, {times:.1f} times the time; what it brings was not measured",)


def largest_size(facts: Facts) -> int:
    """Return up to LARGER times the checkpoint's image size, no larger than the images or the paper's, but no smaller
    than its own."""
    if not facts.resizable:
        return facts.model_size
    limit = min(LARGER * facts.model_size, facts.short_side, PAPERS)
    return max(facts.model_size, round_to(limit, facts.stride))


def photo_batch(facts: Facts) -> int:
    return min(64, max(4, 2 ** ((facts.examples // 8).bit_length() - 1)))  # at least 8 steps in an epoch


def photo_steps(facts: Facts) -> int:
    n = facts.examples
    epochs = 20 if n < 5_000 else 10 if n < 50_000 else 5
    return max(200, epochs * n // photo_batch(facts))


def round_to(size: float, stride: int) -> int:
    """Return the nearest size that the patches divide."""
    return max(1, round(size / stride)) * stride
