"""A recipe: a function that makes a complete published experiment, with the result to expect and the cost.

Every number of an experiment is published, unless the file of the recipe says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vitrail.models.cost import accelerator_days
from vitrail.runtime.device import PEAK_FLOPS
from vitrail.train.assemble import model_config
from vitrail.train.estimate import UTILISATION, Estimate, estimate
from vitrail.train.settings import Experiment


@dataclass(frozen=True)
class PublishedData:
    """The data set that the authors trained on; --data is the user's own."""

    name: str
    examples: int
    classes: int


JFT = PublishedData("JFT-300M", 303_000_000, 18_000)
I21K = PublishedData("ImageNet-21k", 12_400_000, 21_843)  # as used, duplicates merged; 14.2 million nominally
I1K = PublishedData("ImageNet", 1_281_167, 1_000)


@dataclass(frozen=True)
class Recipe:
    name: str
    make: Callable[[], Experiment]  # complete but for the path of the data
    data: PublishedData
    claim: str  # what it reproduces, and the result to expect
    core_days: int = 0  # TPUv3-core-days that the paper states; 0: none
    start: str = ""  # recipe of the model to start from; "": fresh weights

    @property
    def command(self) -> str:
        begin = f" --model runs/DATA-{self.start}/model" if self.start else ""
        return f"vitrail pretrain --recipe {self.name} --data PATH{begin}"

    def estimate(self) -> Estimate:
        """Estimate the run on one TPUv3 core."""
        experiment = self.make()
        return estimate(experiment, model_config(experiment, self.data.classes), self.data.examples)

    @property
    def cost(self) -> str:
        """Return a sentence on compute and time that says what is derived."""
        on_tpu = self.estimate()
        days = f"{rounded(on_tpu.accelerator_days)} TPUv3-core-days or"
        if self.core_days:
            days = f"{self.core_days:,} TPUv3-core-days (Table 2);"
        return f"{rounded(on_tpu.exaflops)} exaFLOPs; {days} {hours_of_h200(on_tpu.flops)}"


def hours_of_h200(flops: float, scope: str = "") -> str:
    hours = 24 * accelerator_days(flops, PEAK_FLOPS["H200"], UTILISATION)
    return f"{rounded(hours)} hours of one H200{scope} (derived, at {UTILISATION:.0%} of the peak)"


def rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"
