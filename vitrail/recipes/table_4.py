"""Table 4 of the paper, every row; the runs of its Table 2 at a higher resolution; AugReg's preset; BiT-HyperRule.

All of the paper's: SGD with momentum 0.9, batch 512, cosine, clipping at norm 1, no weight decay, 384 pixels (the
nearest size that the patches divide), inception crop and flip. The rate is chosen from the row's grid on a held-out
part of train (`dev`), then all of train is used. The warm-up, and the rate where none is chosen, are those of the
published code, for Pets and Flowers of big_vision.

Results are top-1, for a checkpoint of the paper; a checkpoint and the data are the user's to give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from vitrail.models.cost import cost
from vitrail.models.names import make_config
from vitrail.recipes.recipe import DERIVED, H200, rounded
from vitrail.train.estimate import UTILISATION
from vitrail.transfer.finetune_settings import Finetuning

GRID = (0.001, 0.003, 0.01, 0.03)
IMAGENET_GRID = (0.003, 0.01, 0.03, 0.06)


@dataclass(frozen=True)
class FinetuningRecipe:
    name: str
    make: Callable[[], Finetuning]  # complete but for the data and the model
    claim: str  # what it reproduces, and the result to expect
    model: str  # that the result and the cost are of

    @property
    def command(self) -> str:
        return f"vitrail finetune --recipe {self.name} --model PATH --data PATH"

    @property
    def cost(self) -> str:
        """Of one run; a sweep is one for each rate of the grid, and the final one."""
        made = self.make()
        if not isinstance(made.steps, int) or made.batch is None:
            return "steps by the size of the data"
        flops = cost(make_config(self.model)).training_flops * made.batch * made.steps
        hours = flops / (H200 * UTILISATION * 3600)
        return (
            f"{self.model}: {rounded(flops / 1e18)} exaFLOPs, {rounded(hours)} hours of one H200 for one run "
            f"({DERIVED})"
        )


@dataclass(frozen=True)
class Row:
    """A data set of Table 4, and what a model from ImageNet-21k reached on it."""

    steps: int
    rates: tuple[float, ...]
    rate: float
    dev: float | None  # held out of train to choose the rate on; None: nothing is chosen
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


def table_4(name: str) -> Finetuning:
    """The fine-tuning of a row."""
    row = TABLE_4[name]
    return Finetuning(
        protocol="paper",
        steps=row.steps,
        batch=512,
        sweep=row.dev is not None,
        rates=row.rates,
        rate=row.rate,
        dev=row.dev,
        warmup=row.warmup,
        decay="cosine",
        optimizer="sgd",
        weight_decay=0.0,
        clip=1.0,
    )


def imagenet_512() -> Finetuning:
    """Table 2's ImageNet for L/16: 512 pixels, Polyak averaging by 0.9999 from the first step, three runs."""
    return replace(table_4("imagenet"), image_size=512, average=0.9999, seeds=3)


def imagenet_518() -> Finetuning:
    """Table 2's ImageNet for H/14: 518 pixels, 37 patches of 14."""
    return replace(imagenet_512(), image_size=518)


def augreg() -> Finetuning:
    """The published code's preset for AugReg's checkpoints (configs/augreg.py), for any data."""
    return Finetuning(
        protocol="augreg",
        steps=500,
        batch=512,
        rate=0.03,
        warmup=100,
        decay="cosine",
        optimizer="sgd",
        weight_decay=0.0,
        clip=1.0,
    )


def bit_hyperrule() -> Finetuning:
    """How BiT, the paper's baseline, is fine-tuned: everything by the size of the data and of the images."""
    return Finetuning(protocol="bit")


FINETUNING = (
    *(
        FinetuningRecipe(
            name,
            partial(table_4, name),
            f"Table 4. {row.model} from ImageNet-21k: {row.result}",
            f"{row.model}@384",
        )
        for name, row in TABLE_4.items()
    ),
    FinetuningRecipe(
        "imagenet-512",
        imagenet_512,
        "Table 2, n = 3. L/16: ImageNet 87.76% from JFT-300M, 85.30% from ImageNet-21k",
        "L/16@512",
    ),
    FinetuningRecipe(
        "imagenet-518", imagenet_518, "Table 2, n = 3. H/14 from JFT-300M: ImageNet 88.55%", "H/14@518"
    ),
    FinetuningRecipe(
        "augreg",
        augreg,
        "AugReg's preset of the published code: 500 steps, a warm-up of 100, rate 0.03. No result is stated",
        "B/16@384",
    ),
    FinetuningRecipe(
        "bit-hyperrule", bit_hyperrule, "BiT-HyperRule. BiT-L: ImageNet 87.54% (Table 2)", "R152x4@480"
    ),
)
