"""Weight decay, dropout, label smoothing on small and on large data: section 4.3.

The paper tunes these three where it pre-trains on ImageNet, its smallest set.
"""

from __future__ import annotations

from typing import Any

from vitrail.recipes.recipe import I1K
from vitrail.studies.claims import Claim, Pick, PointResult, Results, helps_more, higher
from vitrail.studies.scales import COLOURS, SAME_DATA, SMALL, SMALL_DATA, SMALL_LRS, TINY, TINY_LRS
from vitrail.studies.study import Point, Scale, Study

NONE: dict[str, Any] = {"weight_decay": 0.03, "dropout": 0.0, "label_smoothing": 0.0}
KINDS: dict[str, dict[str, Any]] = {
    "none": {},
    "weight decay": {"weight_decay": 0.3},
    "dropout": {"dropout": 0.1},
    "label smoothing": {"label_smoothing": 0.1},
    "all three": {"weight_decay": 0.3, "dropout": 0.1, "label_smoothing": 0.1},
}
FEW, MANY = "little data", "much data"


def points(few: dict[str, Any], many: dict[str, Any], recipe: str = "") -> tuple[Point, ...]:
    return tuple(
        Point(f"{data}, {kind}", NONE | own | settings, data, recipe=recipe)
        for data, settings in ((FEW, few), (MANY, many))
        for kind, own in KINDS.items()
    )


def chosen(data: str) -> Pick:
    """Pick the regularisation, other than none, that is best on held-out train."""

    def pick(results: Results) -> PointResult | None:
        points = [p for p in results.values() if p.family == data and not p.name.endswith(", none")]
        return max(points, key=lambda p: p.val) if len(points) == len(KINDS) - 1 else None

    return pick


REGULARISATION = Study(
    name="regularisation",
    title="How much does regularisation help on little data?",
    section="4.3",
    statement="On its smallest pre-training set a Vision Transformer needs weight decay, dropout and label "
    "smoothing, tuned; on large sets it needs them less.",
    scales={
        "tiny": Scale(
            points({"train": "train[:5% per class]", "steps": 120}, {"steps": 120}),
            TINY,
            COLOURS,
            lrs=TINY_LRS,
        ),
        "small": Scale(
            points({"train": "train[:10% per class]", "steps": 2400}, {"steps": 2400}),
            SMALL,
            lrs=SMALL_LRS,
            **SMALL_DATA,
        ),
        "paper": Scale(
            points(
                {"train": "train[:10% per class]", "warmup": "10%"},
                {"train": "train[:99% per class]"},
                "vit-b16-i1k",
            ),
            {"val": "train[99%: per class]"},
            published=I1K,
        ),
    },
    scores=("top1", "linear"),
    claims=(
        Claim(
            "On little data, the regularisation that is best on held-out train helps",
            higher(chosen(FEW), f"{FEW}, none"),
        ),
        Claim(
            "On little data it helps more than on much data",
            helps_more((chosen(FEW), f"{FEW}, none"), (chosen(MANY), f"{MANY}, none")),
        ),
    ),
    remarks=(
        "None is a weight decay of 0.03. Runs on little and on much data have as many steps, and a learning rate "
        "each, chosen without further regularisation.",
        SAME_DATA,
    ),
)
