"""Position embeddings: appendix D.4, Table 8."""

from __future__ import annotations

from vitrail.recipes.recipe import JFT
from vitrail.studies.claims import Claim, equal, higher
from vitrail.studies.scales import PERCENT, SAME_DATA, SMALL, SMALL_DATA, SMALL_LRS, TINY
from vitrail.studies.scales import POSITIONS as DRAWN
from vitrail.studies.study import Paper, Point, Scale, Study

KINDS = {"1-D": "1d", "2-D": "2d"}
PLACES = {"at the stem": "stem", "at every layer": "every", "shared by all layers": "shared"}


def points(recipe: str = "") -> tuple[Point, ...]:
    """Return the columns of Table 8, 1-D first: the learning rate is chosen with it."""
    return (
        *(
            Point(
                f"{kind}, {place}", {"positions": KINDS[kind], "positions_at": PLACES[place]}, recipe=recipe
            )
            for kind in KINDS
            for place in PLACES
        ),
        Point("relative", {"positions": "relative"}, recipe=recipe),
        Point("none", {"positions": "none"}, recipe=recipe),
    )


TABLE_8 = {
    "1-D, at the stem": 64.206, "1-D, at every layer": 63.964, "1-D, shared by all layers": 64.292,
    "2-D, at the stem": 64.001, "2-D, at every layer": 64.046, "2-D, shared by all layers": 64.022,
    "relative": 64.032, "none": 61.382,
}  # fmt: skip

POSITION_EMBEDDINGS = Study(
    name="positions",
    title="Which position embedding?",
    section="D.4, Table 8",
    statement="Any position embedding is much better than none; how positions are encoded makes little difference.",
    scales={
        "tiny": Scale(
            points(), TINY | {"patch_size": 8, "batch_size": 64, "steps": 500}, DRAWN, lrs=(5e-4, 1e-3)
        ),
        "small": Scale(points(), SMALL | {"steps": "16ep"}, lrs=SMALL_LRS, **SMALL_DATA),
        "paper": Scale(points("vit-b16-jft"), {}, transfer=("imagenet",), published=JFT),
    },
    scores=("5-shot", "linear", "top1"),
    paper=Paper(
        tuple(("", name, percent) for name, percent in TABLE_8.items()),
        "Table 8: B/16 pre-trained on JFT-300M, 5-shot on ImageNet",
    ),
    claims=(
        Claim("1-D positions are better than none", higher("1-D, at the stem", "none")),
        *(
            Claim(f"{name} is as good as 1-D at the stem", equal(name, "1-D, at the stem", PERCENT))
            for name in ("2-D, at the stem", "relative", "1-D, at every layer", "1-D, shared by all layers")
        ),
    ),
    remarks=("The learning rate is chosen with 1-D positions at the stem, for all.", SAME_DATA),
)
