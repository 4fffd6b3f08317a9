"""Pre-training without labels: section 4.6 and appendix B.1.2."""

from __future__ import annotations

from typing import Any

from vitrail.recipes.recipe import I1K
from vitrail.studies.claims import Claim, equal, higher
from vitrail.studies.scales import (
    COLOURS,
    FINETUNING,
    FINETUNING_LRS,
    PERCENT,
    SMALL,
    SMALL_DATA,
    SMALL_LRS,
    TINY,
    TINY_LRS,
)
from vitrail.studies.study import Paper, Point, Scale, Study

TARGETS = {"mean colours": "mean", "4x4 colours": "grid", "pixels": "pixels"}
SCRATCH, LABELS, MASKED = "from scratch", "labels", "masked patches"


def points(
    few: dict[str, Any], before: dict[str, Any], recipes: tuple[str, str] = ("", "")
) -> tuple[Point, ...]:
    """Return pre-training, then fine-tuning on `few` labels. The three targets share a learning rate."""
    masked = {"objective": "masked-patches", "monitor": ""}
    begin = [
        Point(
            f"pre-training, {name}",
            before | masked | {"target": target},
            "pre-training",
            recipe=recipes[0],
            scored=False,
        )
        for name, target in TARGETS.items()
    ]
    begin.append(Point(f"pre-training, {LABELS}", before, "pre-training", recipe=recipes[1], scored=False))
    tuned = [Point(SCRATCH, few, SCRATCH)]
    tuned += [Point(f"{MASKED}, {name}", few, MASKED, start=f"pre-training, {name}") for name in TARGETS]
    tuned.append(Point(LABELS, few, LABELS, start=f"pre-training, {LABELS}"))
    return (*begin, *tuned)


# Few labels, and all images; the labelled ones are among them.
TINY_FEW, TINY_ALL = {"train": "train[:10% per class]", "steps": 40}, {"steps": 200, "lr": 1e-3}
SMALL_FEW = {"train": "train[:10% per class]", "steps": "60ep", "batch_size": 256}
SMALL_ALL = {"steps": "30ep", "lr": 1e-3}

SELF_SUPERVISION = Study(
    name="self-supervision",
    title="What does pre-training without labels give?",
    section="4.6 and B.1.2",
    statement="Pre-training by masked patches is better than training from scratch, and worse than pre-training with "
    "labels; mean colours, finer colours and pixels as targets are about equally good.",
    scales={
        "tiny": Scale(points(TINY_FEW, TINY_ALL), TINY, COLOURS, lrs=TINY_LRS),
        "small": Scale(points(SMALL_FEW, SMALL_ALL), SMALL, lrs=SMALL_LRS, **SMALL_DATA),
        "paper": Scale(
            points(FINETUNING, {}, ("masked-b16", "vit-b16-i1k")),
            {},
            lrs=FINETUNING_LRS,
            published=I1K,
        ),
    },
    scores=("top1",),
    paper=Paper(
        (("", SCRATCH, 77.91), ("", f"{MASKED}, mean colours", 79.9), ("", LABELS, 83.97)),
        "4.6 and Table 5: B/16 fine-tuned on ImageNet, from scratch, from masked patches of JFT-300M, from "
        "ImageNet-21k",
    ),
    claims=(
        Claim("Masked patches are better than no pre-training", higher(f"{MASKED}, mean colours", SCRATCH)),
        Claim("Labels are better than masked patches", higher(LABELS, f"{MASKED}, mean colours")),
        *(
            Claim(
                f"{name} as target are as good as mean colours",
                equal(f"{MASKED}, {name}", f"{MASKED}, mean colours", PERCENT),
            )
            for name in list(TARGETS)[1:]
        ),
    ),
    remarks=(
        "Fine-tuning uses a tenth of the labels, pre-training all images of train. Pre-training with labels has seen "
        "the labels that it is fine-tuned on, and nine times as many: it is an upper bound.",
        "Each of the three ways has its own learning rate of fine-tuning, of as many trials; a trial begins with the "
        "pre-trained model of the first seed.",
    ),
)
