"""Input of the head: the class token, or the mean of all patches. Appendix D.3, Figure 9."""

from __future__ import annotations

from vitrail.recipes.recipe import JFT
from vitrail.studies.claims import Claim, Pick, PointResult, Results, best, equal, higher
from vitrail.studies.scales import COLOURS, PERCENT, SAME_DATA, SMALL, SMALL_DATA, TINY
from vitrail.studies.study import Figure, Point, Scale, Study

POOLS = {"class token": "token", "mean of patches": "mean"}


def points(lrs: dict[str, tuple[float, ...]], recipe: str = "") -> tuple[Point, ...]:
    return tuple(
        Point(f"{family}, lr {lr:g}", {"pool": POOLS[family], "lr": lr}, family, recipe=recipe)
        for family, tried in lrs.items()
        for lr in tried
    )


def mean_at_best_lr_of_token(results: Results) -> PointResult | None:
    pick: Pick = best("class token")
    token = pick(results) if callable(pick) else None
    return None if token is None else results.get(token.name.replace("class token", "mean of patches"))


TINY_GRID, SMALL_GRID = (3e-4, 1e-3, 3e-3, 1e-2), (1e-4, 3e-4, 1e-3, 3e-3)

HEAD = Study(
    name="head",
    title="Class token or mean of the patches?",
    section="D.3, Figure 9",
    statement="The mean of the patches, read by a linear head, works as well as the class token, but needs another "
    "learning rate.",
    scales={
        "tiny": Scale(points(dict.fromkeys(POOLS, TINY_GRID)), TINY, COLOURS),
        "small": Scale(points(dict.fromkeys(POOLS, SMALL_GRID)), SMALL | {"steps": "18ep"}, **SMALL_DATA),
        "paper": Scale(
            points({"class token": (8e-4,), "mean of patches": (8e-4, 3e-4)}, "vit-b16-jft"),
            {},
            transfer=("imagenet",),
            published=JFT,
        ),
    },
    scores=("5-shot", "top1"),
    figure=Figure("lr", "peak learning rate"),
    claims=(
        Claim(
            "Each at the rate that is best on held-out train, the mean is as good as the token",
            equal(best("mean of patches"), best("class token"), PERCENT),
        ),
        Claim(
            "The mean is better at its own best rate than at the token's",
            higher(best("mean of patches"), mean_at_best_lr_of_token),
        ),
    ),
    remarks=("The paper has curves at lr 8e-4 for the token, 8e-4 and 3e-4 for the mean.", SAME_DATA),
)
