"""Fine-tuning at higher resolution, with position embeddings resampled or drawn anew: section 3.2."""

from __future__ import annotations

from typing import Any

from vitrail.recipes.recipe import I1K
from vitrail.studies.claims import Claim, first, higher, last
from vitrail.studies.scales import FINETUNING, FINETUNING_LRS, POSITIONS, SMALL, SMALL_DATA, TINY
from vitrail.studies.study import Figure, Point, Scale, Study

RESAMPLED, FRESH, BEFORE = "positions resampled", "positions drawn anew", "pre-training"


def points(
    sizes: tuple[int, ...], line: str, tuned: dict[str, Any], before: dict[str, Any], recipe: str = ""
) -> tuple[Point, ...]:
    """Return pre-training at the first size, and fine-tuning at each, with both kinds of positions."""
    finetuning = tuple(
        Point(
            f"{size} pixels, {family}",
            tuned | {"image_size": size} | ({"preprocess": line.format(size=size)} if line else {}),
            family,
            start=BEFORE,
            fresh_positions=family == FRESH,
        )
        for family in (RESAMPLED, FRESH)
        for size in sizes
    )
    begin = before | ({"preprocess": line.format(size=sizes[0])} if line else {})
    return (Point(BEFORE, begin, BEFORE, recipe=recipe, scored=False), *finetuning)


TINY_LINE = "inception_crop({size}, area=(0.8, 1))|uint8|to_range(-1, 1)"
SMALL_LINE = "inception_crop({size}, area=(0.25, 1))|flip_lr|uint8|to_range(-1, 1)"
PAPER_TUNED = {name: value for name, value in FINETUNING.items() if name != "image_size"}

RESOLUTION = Study(
    name="resolution",
    title="Fine-tuning at higher resolution",
    section="3.2",
    statement="Fine-tuning at a higher resolution than pre-training is often better; pre-trained position embeddings "
    "then have to be resampled to the larger grid of patches to keep their meaning.",
    scales={
        "tiny": Scale(
            points((32, 48, 64), TINY_LINE, {"steps": 60}, {"steps": 600, "lr": 1e-3, "batch_size": 64}),
            TINY | {"model": "Ti/8@32", "image_size": 32},
            POSITIONS.replace("=32", "=64"),
            lrs=(3e-4, 1e-3),
        ),
        "small": Scale(
            points((32, 48, 64), SMALL_LINE, {"steps": "6ep"}, {"steps": "40ep", "lr": 1e-3}),
            SMALL | {"model": "Ti/4@32", "image_size": 32},
            lrs=(1e-4, 3e-4, 1e-3),
            **SMALL_DATA,
        ),
        "paper": Scale(
            points((224, 384, 512), "", PAPER_TUNED, {}, "vit-b16-i1k"),
            {},
            lrs=FINETUNING_LRS,
            published=I1K,
        ),
    },
    scores=("top1",),
    figure=Figure("image_size", "pixels per side when fine-tuning"),
    claims=(
        Claim(
            "With resampled positions, the highest resolution is better than that of pre-training",
            higher(last(RESAMPLED), first(RESAMPLED)),
        ),
        Claim(
            "At the highest resolution, resampled positions are better than new ones",
            higher(last(RESAMPLED), last(FRESH)),
        ),
    ),
    remarks=(
        "Every model begins with the same pre-training, of the first size on the axis. The learning rate of each "
        "kind of positions is chosen at that size.",
    ),
)
