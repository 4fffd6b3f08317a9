"""Adam or SGD for ResNets: appendix D.1, Table 7."""

from __future__ import annotations

from typing import Any

from vitrail.recipes.recipe import JFT
from vitrail.studies.claims import Claim, higher
from vitrail.studies.scales import COLOURS, NO_VIT, SAME_DATA, SMALL, SMALL_DATA, SMALL_LRS, TINY, TINY_LRS
from vitrail.studies.study import Paper, Point, Scale, Study

SGD: dict[str, Any] = {"optimizer": "sgd", "momentum": 0.9}
# BiT's rate of 0.03 for a batch of 256, in proportion to the batch of 4,096.
BIT_LR = 0.48


OPTIMIZERS: dict[str, dict[str, Any]] = {"Adam": {"optimizer": "adamw"}, "SGD": SGD}
SMALLER, LARGER = "smaller ResNet", "larger ResNet"


def points(smaller: str, larger: str) -> tuple[Point, ...]:
    """Return two ResNets with both optimizers; each of the four has a learning rate of its own."""
    return tuple(
        Point(f"{name}, {optimizer}", NO_VIT | {"model": model} | settings, f"{name}, {optimizer}")
        for name, model in ((SMALLER, smaller), (LARGER, larger))
        for optimizer, settings in OPTIMIZERS.items()
    )


def lrs(adam: tuple[float, ...], sgd: tuple[float, ...]) -> dict[str, tuple[float, ...]]:
    tried = {"Adam": adam, "SGD": sgd}
    return {
        f"{name}, {optimizer}": tried[optimizer] for name in (SMALLER, LARGER) for optimizer in OPTIMIZERS
    }


PAPER_POINTS = tuple(
    Point(f"{name}, {optimizer}", settings, f"{name}, {optimizer}", recipe=recipe)
    for name, recipe in ((SMALLER, "r50x1-jft"), (LARGER, "r152x2-jft"))
    for optimizer, settings in (("Adam", {}), ("SGD", SGD | {"lr": BIT_LR}))
)

OPTIMIZER = Study(
    name="optimizer",
    title="Adam or SGD for ResNets?",
    section="D.1, Table 7",
    statement="ResNets that are pre-trained with Adam transfer better than those pre-trained with SGD.",
    scales={
        "tiny": Scale(
            points("R14x0.5@32", "R26x0.5@32"), TINY, COLOURS, lrs=lrs(TINY_LRS, (0.01, 0.03, 0.1))
        ),
        "small": Scale(
            points("R26x1@64", "R50x1@64"),
            SMALL | {"steps": "12ep"},
            lrs=lrs(SMALL_LRS, (0.03, 0.1, 0.3)),
            **SMALL_DATA,
        ),
        "paper": Scale(PAPER_POINTS, {}, transfer=("imagenet",), published=JFT),
    },
    scores=("linear", "5-shot", "top1"),
    paper=Paper(
        (
            ("", f"{SMALLER}, Adam", 89.33),
            ("", f"{SMALLER}, SGD", 88.79),
            ("", f"{LARGER}, Adam", 94.01),
            ("", f"{LARGER}, SGD", 93.72),
        ),
        "D.1: R50x1 and R152x2 pre-trained on JFT-300M, mean accuracy after fine-tuning",
    ),
    claims=tuple(
        Claim(f"Adam is better for the {name}", higher(f"{name}, Adam", f"{name}, SGD"))
        for name in (SMALLER, LARGER)
    ),
    remarks=(
        "Tiny: R14x0.5 and R26x0.5; small: R26x1 and R50x1; paper: R50x1 and R152x2. Adam is AdamW. "
        "Each model has its own learning rate with each optimizer, of as many trials. The paper does not "
        f"state SGD's rate; at its size {BIT_LR:g} is used, BiT's for a batch of 4,096.",
        SAME_DATA,
    ),
)
