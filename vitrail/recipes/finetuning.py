"""Table 4 of the paper, every row; the runs of its Table 2 at a higher resolution; AugReg's preset; BiT-HyperRule.

All of the paper's: SGD with momentum 0.9, batch 512, cosine, clipping at norm 1, no weight decay, 384 pixels (the
nearest size that the patches divide), inception crop and flip. lr is chosen from the row's grid on a held-out part of
train (`dev`), then all of train is used. The warmup, and lr where none is chosen, are those of the published code,
for Pets and Flowers of big_vision.

Results are top-1, for a checkpoint of the paper; the user gives checkpoint and data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vitrail.models.cost import cost
from vitrail.models.names import make_config
from vitrail.recipes.recipe import hours_of_h200, rounded
from vitrail.train.keywords import override
from vitrail.transfer.facts import Facts
from vitrail.transfer.protocols import GRID, IMAGENET_GRID, Finetuning, bit, paper
from vitrail.transfer.protocols import augreg as augreg_protocol


@dataclass(frozen=True)
class FinetuningRecipe:
    name: str
    make: Callable[[Facts], Finetuning]
    claim: str  # what it reproduces, and the result to expect
    model: str  # of the result and the cost

    @property
    def command(self) -> str:
        return f"vitrail finetune --recipe {self.name} --model PATH --data PATH"

    @property
    def cost(self) -> str:
        """Cost of one run; a sweep is one for each lr of the grid, and the final one."""
        if self.make is bit:
            return "steps by the size of the data"
        experiment = self.make(Facts(examples=1_000_000)).experiment
        flops = cost(make_config(self.model)).training_flops * 512 * int(experiment.training.steps)
        return f"{self.model}: {rounded(flops / 1e18)} exaFLOPs, {hours_of_h200(flops, ' for one run')}"


@dataclass(frozen=True)
class Row:
    """A data set of Table 4, and the result of a model from ImageNet-21k."""

    steps: int
    lrs: tuple[float, ...]
    lr: float
    dev: float | None  # fraction held out of train to choose lr on; None: nothing is chosen
    warmup: int
    result: str
    model: str = "B/16"


TABLE_4: dict[str, Row] = {
    "imagenet": Row(20_000, IMAGENET_GRID, 0.03, 0.01, 500, "ImageNet 83.97% (Table 5)"),
    "cifar100": Row(10_000, GRID, 0.03, 0.02, 500, "CIFAR-100 91.67% (Table 5)"),
    "cifar10": Row(10_000, GRID, 0.03, 0.02, 500, "CIFAR-10 98.95% (Table 5)"),
    "pets": Row(500, GRID, 0.01, 0.1, 100, "Oxford-IIIT Pets 94.43% (Table 5)"),
    "flowers": Row(500, GRID, 0.01, 0.1, 100, "Oxford Flowers-102 99.38% (Table 5)"),
    "vtab": Row(
        2500,
        (0.01,),
        0.01,
        None,
        500,
        "VTAB-1k 72.72%, the mean of 19 tasks (Table 2); this is one task, with crops; `vitrail vtab` does all",
        "L/16",
    ),
}


def table_4(row: Row, facts: Facts, **settings: Any) -> Finetuning:
    """Return the fine-tuning of a row, with any setting replaced."""
    sweep = {} if row.dev is None else {"lrs": row.lrs, "dev": row.dev}
    protocol = paper(replace(facts, sweep=facts.sweep or row.dev is not None))
    return override(protocol, {"steps": row.steps, "lr": row.lr, "warmup": row.warmup, **sweep, **settings})


def table_2(size: int, facts: Facts) -> Finetuning:
    """Return Table 2's ImageNet: a higher resolution, Polyak averaging by 0.9999 from the first step, three runs."""
    facts = replace(facts, image_size=facts.image_size or size)
    return table_4(TABLE_4["imagenet"], facts, ema=0.9999, seeds=3)


def augreg(facts: Facts) -> Finetuning:
    """Return the published code's preset for AugReg's checkpoints (configs/augreg.py), for any data."""
    return override(augreg_protocol(facts), {"warmup": 100})


FINETUNING = (
    *(
        FinetuningRecipe(
            name,
            partial(table_4, row),
            f"Table 4. {row.model} from ImageNet-21k: {row.result}",
            f"{row.model}@384",
        )
        for name, row in TABLE_4.items()
    ),
    FinetuningRecipe(
        "imagenet-512",
        partial(table_2, 512),
        "Table 2, n = 3. L/16: ImageNet 87.76% from JFT-300M, 85.30% from ImageNet-21k",
        "L/16@512",
    ),
    FinetuningRecipe(
        "imagenet-518",
        partial(table_2, 518),  # 37 patches of 14
        "Table 2, n = 3. H/14 from JFT-300M: ImageNet 88.55%",
        "H/14@518",
    ),
    FinetuningRecipe(
        "augreg",
        augreg,
        "AugReg's preset of the published code: 500 steps, a warmup of 100, lr 0.03. No result is stated",
        "B/16@384",
    ),
    FinetuningRecipe("bit-hyperrule", bit, "BiT-HyperRule. BiT-L: ImageNet 87.54% (Table 2)", "R152x4@480"),
)
